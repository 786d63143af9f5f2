//! Resolves names to all their addresses, by the name servers of resolv.conf and `/etc/hosts`, off the data
//! path. Unlike `getaddrinfo`, DNS tells how long an answer is valid, and a name without addresses from a
//! server that fails.
//!
//! Good addresses stay in use while lookups fail; a name that does not exist, or has no address, resolves to
//! nothing once two answers in a row agree.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use compile::host::{Addresses, Destination};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use rules::host_name::All;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::names::refusal;

/// The delay before the retry after a failure, or after the first answer without addresses; each further
/// failure doubles it, up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long a lookup may take, with all its queries.
const LIMIT: Duration = Duration::from_secs(15);
/// How long one server may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Concurrent lookups.
const LOOKUPS_MAX: usize = 64;
/// An answer is used for at most this long, however long it is valid.
const VALID_MAX: Duration = Duration::from_secs(30);

/// An address, for a service with its port.
type ServiceAddress = (IpAddr, Option<u16>);

/// The answer of a name server: addresses, validity, and which name of the search list matched; `Err`: why
/// there is no answer.
type Lookup = Result<(BTreeSet<ServiceAddress>, Duration, Option<Name>), String>;

/// The names that are resolved to all addresses.
#[derive(Default)]
pub(super) struct AllNames {
    entries: BTreeMap<Destination, Entry>,
    lookups: JoinSet<(Destination, Lookup)>,
}

#[derive(Debug)]
struct Entry {
    all: All,
    /// `None` before the first answer.
    resolved: Option<Addresses>,
    /// The name of the search list that matched last.
    matched: Option<Name>,
    due: Instant,
    is_pending: bool,
    failures: u32,
    /// Consecutive answers without addresses.
    empty: u32,
}

impl AllNames {
    /// Sets the names to follow; new ones are looked up at once.
    pub(super) fn follow<'a>(&mut self, names: impl Iterator<Item = &'a Destination>) {
        let names: BTreeSet<&Destination> = names.collect();
        self.entries.retain(|name, _| names.contains(name));
        for destination in names {
            let Destination::All { all, .. } = destination else {
                continue;
            };
            let entry = || Entry {
                all: *all,
                resolved: None,
                matched: None,
                due: Instant::now(),
                is_pending: false,
                failures: 0,
                empty: 0,
            };
            self.entries
                .entry(destination.clone())
                .or_insert_with(entry);
        }
        self.start_lookups();
    }

    /// The addresses of all names that were resolved.
    pub(super) fn resolved(&self) -> BTreeMap<Destination, Addresses> {
        let entries = self.entries.iter();
        entries
            .filter_map(|(name, entry)| Some((name.clone(), entry.resolved.clone()?)))
            .collect()
    }

    /// The addresses in use of one name.
    pub(super) fn used(&self, name: &Destination) -> &[ServiceAddress] {
        let entry = self.entries.get(name);
        let resolved = entry.and_then(|entry| entry.resolved.as_ref());
        resolved.map_or(&[], |resolved| &resolved.used)
    }

    /// Whether some were never answered.
    pub(super) fn has_new(&self) -> bool {
        self.entries.values().any(|entry| entry.resolved.is_none())
    }

    /// Waits until the addresses of a name change. It is cancel-safe.
    pub(super) async fn next_change(&mut self) {
        loop {
            self.start_lookups();
            let can_start = self.lookups.len() < LOOKUPS_MAX;
            let waiting = self.entries.values().filter(|entry| !entry.is_pending);
            let next = waiting.map(|entry| entry.due).min().filter(|_| can_start);
            tokio::select! {
                Some(answer) = self.lookups.join_next() => {
                    // A lookup that panicked has no answer.
                    if answer.is_ok_and(|(name, answer)| self.record(&name, answer)) {
                        return;
                    }
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                else => std::future::pending().await,
            }
        }
    }

    fn start_lookups(&mut self) {
        let now = Instant::now();
        let room = LOOKUPS_MAX.saturating_sub(self.lookups.len());
        let entries = self.entries.iter_mut();
        let due = entries.filter(|(_, entry)| !entry.is_pending && entry.due <= now);
        for (name, entry) in due.take(room) {
            entry.is_pending = true;
            let (name, matched) = (name.clone(), entry.matched.clone());
            self.lookups.spawn(async move {
                let answer = timeout(LIMIT, look_up(&name, matched.as_ref())).await;
                let late = || Err(format!("no answer within {} s", LIMIT.as_secs()));
                (name, answer.unwrap_or_else(|_| late()))
            });
        }
    }

    /// Records an answer; returns whether anything has changed.
    fn record(&mut self, name: &Destination, answer: Lookup) -> bool {
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        entry.is_pending = false;
        let now = Instant::now();
        let before = entry.resolved.clone();
        let mut resolved = before.clone().unwrap_or_default();
        let refresh = Duration::from_secs(entry.all.refresh_s.into());
        match answer {
            Ok((addresses, valid, matched)) => {
                entry.failures = 0;
                entry.matched = matched.or(entry.matched.take());
                entry.empty = if addresses.is_empty() {
                    entry.empty + 1
                } else {
                    0
                };
                entry.due = now + valid.min(VALID_MAX).max(refresh);
                if entry.empty == 1 && !resolved.used.is_empty() {
                    // Answered only once: the server may have just started.
                    entry.due = now + RETRY;
                    return false;
                }
                resolved = choose(&resolved, addresses, entry.all.max.into());
            }
            Err(problem) => {
                let wait = RETRY * 2_u32.saturating_pow(entry.failures.min(10));
                entry.failures += 1;
                entry.due = now + wait.min(RETRY_MAX);
                resolved.problem = Some(problem);
            }
        }
        let has_changed = before.as_ref() != Some(&resolved);
        entry.resolved = Some(resolved);
        has_changed
    }
}

/// Chooses the addresses to use of an answer: those already in use, then the lowest ones.
fn choose(before: &Addresses, answer: BTreeSet<ServiceAddress>, most: usize) -> Addresses {
    let refused = answer.iter().find_map(|(address, _)| refusal(*address));
    let is_usable = |(address, _): &ServiceAddress| refusal(*address).is_none();
    let usable: BTreeSet<ServiceAddress> = answer.into_iter().filter(is_usable).collect();
    let retained = before.used.iter().filter(|one| usable.contains(one));
    let mut used: BTreeSet<ServiceAddress> = retained.take(most).copied().collect();
    for address in &usable {
        if used.len() >= most {
            break;
        }
        used.insert(*address);
    }
    Addresses {
        left_out: usable.len() - used.len(),
        used: used.into_iter().collect(),
        problem: refused,
    }
}

/// Looks up all addresses of a name once.
pub async fn look_up_all(destination: &Destination) -> Addresses {
    let none = Addresses::default();
    let most = match destination {
        Destination::All { all, .. } => all.max.into(),
        _ => return none,
    };
    match timeout(LIMIT, look_up(destination, None)).await {
        Ok(Ok((addresses, ..))) => choose(&none, addresses, most),
        Ok(Err(problem)) => Addresses {
            problem: Some(problem),
            ..none
        },
        Err(_) => none,
    }
}

async fn look_up(destination: &Destination, matched: Option<&Name>) -> Lookup {
    let Destination::All { name, ipv4, all } = destination else {
        return Err("is no name".to_owned());
    };
    let resolver = Resolver::of_system().map_err(|error| error.to_string())?;
    let kind = if *ipv4 {
        RecordType::A
    } else {
        RecordType::AAAA
    };
    if !all.is_service {
        let (records, valid, matched) = resolver.records(name.as_str(), kind, matched).await?;
        let hosts = addresses(&records).map(|address| (address, None));
        return Ok((hosts.collect(), valid, matched));
    }
    let query = resolver.records(name.as_str(), RecordType::SRV, matched);
    let (services, mut valid, matched) = query.await?;
    let servers = services.iter().filter_map(|record| match record {
        RData::SRV(server) if !server.target.is_root() => Some(server),
        _ => None,
    });
    let least = servers.clone().map(|server| server.priority).min();
    let mut hosts = BTreeSet::new();
    for server in servers.filter(|server| Some(server.priority) == least) {
        let target = server.target.to_string();
        let (records, of_target, _) = resolver.records(&target, kind, None).await?;
        valid = valid.min(of_target);
        hosts.extend(addresses(&records).map(|address| (address, Some(server.port))));
    }
    Ok((hosts, valid, matched))
}

fn addresses(records: &[RData]) -> impl Iterator<Item = IpAddr> + '_ {
    records.iter().filter_map(|record| match record {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    })
}

/// The servers of resolv.conf, which is read anew for each lookup because it may have changed.
struct Resolver {
    resolver: TokioResolver,
    search: Vec<Name>,
    ndots: usize,
}

impl Resolver {
    fn of_system() -> Result<Self, NetError> {
        // Without any server the default is this host's own (resolv.conf(5)); names in /etc/hosts need none.
        let local = || {
            let server = NameServerConfig::udp_and_tcp(IpAddr::from([127, 0, 0, 1]));
            let servers = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
            (servers, ResolverOpts::default())
        };
        let (system, system_options) = read_system_conf().unwrap_or_else(|_| local());
        let search = system.domain().into_iter().chain(system.search());
        let mut options = ResolverOpts::default();
        options.attempts = system_options.attempts;
        options.timeout = system_options.timeout.min(PATIENCE);
        options.edns0 = system_options.edns0;
        options.use_hosts_file = ResolveHosts::Always;
        options.cache_size = 0;
        // The search list is handled below: a failing server is no answer about a name elsewhere.
        let servers = ResolverConfig::from_parts(None, Vec::new(), system.name_servers().to_vec());
        let builder = TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default());
        Ok(Self {
            search: search.cloned().collect(),
            ndots: system_options.ndots,
            resolver: builder.with_options(options).build()?,
        })
    }

    /// The records of a name, how long they are valid, and which candidate has them; none if there is no
    /// such name. Once `matched`, the candidate that had them last, has none any more, failures of later
    /// candidates are ignored.
    async fn records(
        &self,
        name: &str,
        kind: RecordType,
        matched: Option<&Name>,
    ) -> Result<(Vec<RData>, Duration, Option<Name>), String> {
        let names = self.candidates(name).map_err(|error| error.to_string())?;
        let (mut valid, mut is_removed) = (Duration::ZERO, false);
        for name in names {
            let had_them = matched == Some(&name);
            match self.resolver.lookup(name.clone(), kind).await {
                Ok(answer) => {
                    let data = answer.answers().iter().map(|record| record.data.clone());
                    let remaining = answer
                        .valid_until()
                        .saturating_duration_since(std::time::Instant::now());
                    let records: Vec<RData> =
                        data.filter(|data| data.record_type() == kind).collect();
                    if !records.is_empty() {
                        return Ok((records, remaining, Some(name)));
                    }
                    valid = remaining;
                }
                Err(error) if error.is_no_records_found() || is_removed => {}
                Err(NetError::NoConnections | NetError::Timeout) => {
                    return Err("no name server of /etc/resolv.conf answers".to_owned());
                }
                Err(error) => return Err(error.to_string()),
            }
            is_removed |= had_them;
        }
        Ok((Vec::new(), valid, None))
    }

    /// The names to look up in turn, as in resolv.conf(5).
    fn candidates(&self, name: &str) -> Result<Vec<Name>, NetError> {
        let mut plain = Name::from_utf8(name)?;
        if plain.is_fqdn() {
            return Ok(vec![plain]);
        }
        let domains = self.search.iter();
        let mut names: Vec<Name> = domains
            .filter_map(|domain| plain.clone().append_domain(domain).ok())
            .collect();
        let is_first = name.matches('.').count() >= self.ndots;
        plain.set_fqdn(true);
        names.insert(if is_first { 0 } else { names.len() }, plain);
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(texts: &[&str]) -> BTreeSet<ServiceAddress> {
        texts
            .iter()
            .map(|text| (text.parse().unwrap(), None))
            .collect()
    }

    fn used(addresses: &Addresses) -> Vec<String> {
        addresses
            .used
            .iter()
            .map(|(address, _)| address.to_string())
            .collect()
    }

    #[test]
    fn addresses_in_use_stay_then_the_lowest_follow() {
        let first = choose(&Addresses::default(), answer(&["10.0.0.5", "10.0.0.7"]), 3);
        assert_eq!(
            (used(&first), first.left_out),
            (vec!["10.0.0.5".into(), "10.0.0.7".into()], 0)
        );
        let more = answer(&["10.0.0.1", "10.0.0.2", "10.0.0.7", "10.0.0.5"]);
        let second = choose(&first, more, 3);
        assert_eq!(used(&second), ["10.0.0.1", "10.0.0.5", "10.0.0.7"]);
        assert_eq!(second.left_out, 1);
        let refused = answer(&[
            "127.0.0.1",
            "169.254.1.1",
            "224.1.1.1",
            "255.255.255.255",
            "10.0.0.9",
        ]);
        let third = choose(&second, refused, 3);
        assert_eq!(used(&third), ["10.0.0.9"]);
        assert!(third.problem.unwrap().contains("127.0.0.1"));
    }

    #[tokio::test]
    async fn addresses_are_dropped_after_two_empty_answers_and_failures_change_nothing() {
        let all = All {
            max: 4,
            refresh_s: 5,
            is_service: false,
        };
        let name = Destination::All {
            name: rules::host_name::HostName::new("a.example").unwrap(),
            ipv4: true,
            all,
        };
        let mut names = AllNames::default();
        let entry = Entry {
            all,
            resolved: None,
            matched: None,
            due: Instant::now(),
            is_pending: true,
            failures: 0,
            empty: 0,
        };
        names.entries.insert(name.clone(), entry);
        let valid = |seconds| Duration::from_secs(seconds);
        let mut record = |answer: Lookup| {
            let has_changed = names.record(&name, answer);
            let entry = &names.entries[&name];
            let wait = (entry.due - Instant::now()).as_secs_f64().round();
            (has_changed, names.used(&name).len(), wait)
        };
        assert_eq!(
            record(Ok((answer(&["10.0.0.1", "10.0.0.2"]), valid(20), None))),
            (true, 2, 20.0)
        );
        assert_eq!(
            record(Ok((answer(&["10.0.0.1", "10.0.0.2"]), valid(0), None))),
            (false, 2, 5.0)
        );
        assert_eq!(record(Err("SERVFAIL".to_owned())), (true, 2, 1.0));
        assert_eq!(record(Err("SERVFAIL".to_owned())), (false, 2, 2.0));
        assert_eq!(
            record(Ok((BTreeSet::new(), valid(30), None))),
            (false, 2, 1.0)
        );
        assert_eq!(record(Err("SERVFAIL".to_owned())).1, 2);
        assert_eq!(
            record(Ok((BTreeSet::new(), valid(0), None))),
            (true, 0, 5.0)
        );
        assert_eq!(
            record(Ok((answer(&["10.0.0.3"]), valid(600), None))),
            (true, 1, 30.0)
        );
    }
}
