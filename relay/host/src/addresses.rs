//! All that names stand for, asked of the name servers of resolv.conf and of `/etc/hosts`, off the data
//! path. Unlike `getaddrinfo` DNS says how long an answer is valid, and whether a name stands for nobody
//! or its server fails.
//!
//! What was good stays in use while lookups fail; a name that is not there, or has no address, stands for
//! nobody once that was said twice.

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

/// How long after a failure, or after nobody was found for the first time, a name is asked for again;
/// each further failure doubles it, up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long a question may take, with all that are asked in turn.
const LIMIT: Duration = Duration::from_secs(15);
/// How long one server may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Questions at a time.
const ASKED_MAX: usize = 64;
/// However long an answer is valid, it is not believed for longer.
const BELIEVED_MAX: Duration = Duration::from_secs(30);

/// An address, of a service with its port.
type ServiceAddress = (IpAddr, Option<u16>);

/// What a name server said, for how long it is valid, and which of the names that were searched for has it;
/// `Err`: that nothing can be said.
type Lookup = Result<(BTreeSet<ServiceAddress>, Duration, Option<Name>), String>;

/// The names of which all addresses are followed.
#[derive(Default)]
pub(super) struct AllNames {
    entries: BTreeMap<Destination, Entry>,
    asked: JoinSet<(Destination, Lookup)>,
}

#[derive(Debug)]
struct Entry {
    all: All,
    /// `None` before the first answer.
    known: Option<Addresses>,
    /// Of the names that are searched for the one that was there last.
    found: Option<Name>,
    due: Instant,
    is_asked: bool,
    failures: u32,
    /// How often in turn nobody was found.
    empty: u32,
}

impl AllNames {
    /// Sets the names to follow; new ones are asked for at once.
    pub(super) fn follow<'a>(&mut self, names: impl Iterator<Item = &'a Destination>) {
        let names: BTreeSet<&Destination> = names.collect();
        self.entries.retain(|name, _| names.contains(name));
        for destination in names {
            let Destination::All { all, .. } = destination else {
                continue;
            };
            let entry = || Entry {
                all: *all,
                known: None,
                found: None,
                due: Instant::now(),
                is_asked: false,
                failures: 0,
                empty: 0,
            };
            self.entries
                .entry(destination.clone())
                .or_insert_with(entry);
        }
        self.ask();
    }

    /// What they stand for, as far as they were answered.
    pub(super) fn known(&self) -> BTreeMap<Destination, Addresses> {
        let known = self.entries.iter();
        known
            .filter_map(|(name, entry)| Some((name.clone(), entry.known.clone()?)))
            .collect()
    }

    /// The addresses in use of one.
    pub(super) fn used(&self, name: &Destination) -> &[ServiceAddress] {
        let known = self
            .entries
            .get(name)
            .and_then(|entry| entry.known.as_ref());
        known.map_or(&[], |known| &known.used)
    }

    /// Whether some were never answered.
    pub(super) fn has_new(&self) -> bool {
        self.entries.values().any(|entry| entry.known.is_none())
    }

    /// Waits until a name stands for something else. Nothing is lost if it is called off.
    pub(super) async fn next_change(&mut self) {
        loop {
            self.ask();
            let waiting = self.entries.values().filter(|entry| !entry.is_asked);
            let next = waiting.map(|entry| entry.due).min();
            let next = next.filter(|_| self.asked.len() < ASKED_MAX);
            tokio::select! {
                Some(answer) = self.asked.join_next() => {
                    // One that panicked has no answer to give.
                    if answer.is_ok_and(|(name, answer)| self.take(&name, answer)) {
                        return;
                    }
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                else => std::future::pending().await,
            }
        }
    }

    fn ask(&mut self) {
        let now = Instant::now();
        let room = ASKED_MAX.saturating_sub(self.asked.len());
        let due = self.entries.iter_mut();
        let due = due.filter(|(_, entry)| !entry.is_asked && entry.due <= now);
        for (name, entry) in due.take(room) {
            entry.is_asked = true;
            let (name, found) = (name.clone(), entry.found.clone());
            self.asked.spawn(async move {
                let answer = timeout(LIMIT, look_up(&name, found.as_ref())).await;
                let late = || Err(format!("no answer within {} s", LIMIT.as_secs()));
                (name, answer.unwrap_or_else(|_| late()))
            });
        }
    }

    /// Takes an answer; says whether anything is different from now on.
    fn take(&mut self, name: &Destination, answer: Lookup) -> bool {
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        entry.is_asked = false;
        let now = Instant::now();
        let before = entry.known.clone();
        let mut known = before.clone().unwrap_or_default();
        let refresh = Duration::from_secs(entry.all.refresh_s.into());
        match answer {
            Ok((places, valid, found)) => {
                entry.failures = 0;
                entry.found = found.or(entry.found.take());
                entry.empty = if places.is_empty() {
                    entry.empty + 1
                } else {
                    0
                };
                entry.due = now + valid.min(BELIEVED_MAX).max(refresh);
                if entry.empty == 1 && !known.used.is_empty() {
                    // Said but once: it may be a server that has just begun.
                    entry.due = now + RETRY;
                    return false;
                }
                known = chosen(&known, places, entry.all.max.into());
            }
            Err(problem) => {
                let wait = RETRY * 2_u32.saturating_pow(entry.failures.min(10));
                entry.failures += 1;
                entry.due = now + wait.min(RETRY_MAX);
                known.problem = Some(problem);
            }
        }
        let is_news = before.as_ref() != Some(&known);
        entry.known = Some(known);
        is_news
    }
}

/// What is used of an answer: what was used before and is still there, then the lowest addresses.
fn chosen(before: &Addresses, places: BTreeSet<ServiceAddress>, most: usize) -> Addresses {
    let refused = places.iter().find_map(|(address, _)| refusal(*address));
    let good = |(address, _): &ServiceAddress| refusal(*address).is_none();
    let good: BTreeSet<ServiceAddress> = places.into_iter().filter(good).collect();
    let stay = before.used.iter().filter(|place| good.contains(place));
    let mut used: BTreeSet<ServiceAddress> = stay.take(most).copied().collect();
    for place in &good {
        if used.len() >= most {
            break;
        }
        used.insert(*place);
    }
    Addresses {
        left_out: good.len() - used.len(),
        used: used.into_iter().collect(),
        problem: refused,
    }
}

/// Asks once for all that a name stands for.
pub async fn look_up_all(destination: &Destination) -> Addresses {
    let none = Addresses::default();
    let most = match destination {
        Destination::All { all, .. } => all.max.into(),
        _ => return none,
    };
    match timeout(LIMIT, look_up(destination, None)).await {
        Ok(Ok((places, ..))) => chosen(&none, places, most),
        Ok(Err(problem)) => Addresses {
            problem: Some(problem),
            ..none
        },
        Err(_) => none,
    }
}

async fn look_up(destination: &Destination, found: Option<&Name>) -> Lookup {
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
        let (records, valid, found) = resolver.records(name.as_str(), kind, found).await?;
        let places = addresses(&records).map(|at| (at, None)).collect();
        return Ok((places, valid, found));
    }
    let services = resolver.records(name.as_str(), RecordType::SRV, found);
    let (services, mut valid, found) = services.await?;
    let servers = services.iter().filter_map(|record| match record {
        RData::SRV(server) if !server.target.is_root() => Some(server),
        _ => None,
    });
    let least = servers.clone().map(|server| server.priority).min();
    let mut places = BTreeSet::new();
    for server in servers.filter(|server| Some(server.priority) == least) {
        let target = server.target.to_string();
        let (records, of_target, _) = resolver.records(&target, kind, None).await?;
        valid = valid.min(of_target);
        places.extend(addresses(&records).map(|at| (at, Some(server.port))));
    }
    Ok((places, valid, found))
}

fn addresses(records: &[RData]) -> impl Iterator<Item = IpAddr> + '_ {
    records.iter().filter_map(|record| match record {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    })
}

/// The servers of resolv.conf, which is read for each question: it may be another one by then.
struct Resolver {
    resolver: TokioResolver,
    search: Vec<Name>,
    ndots: usize,
}

impl Resolver {
    fn of_system() -> Result<Self, NetError> {
        // Without any server that is this host's own (resolv.conf(5)); names in /etc/hosts need none.
        let own = || {
            let server = NameServerConfig::udp_and_tcp(IpAddr::from([127, 0, 0, 1]));
            let servers = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
            (servers, ResolverOpts::default())
        };
        let (system, found) = read_system_conf().unwrap_or_else(|_| own());
        let search = system.domain().into_iter().chain(system.search());
        let mut options = ResolverOpts::default();
        options.attempts = found.attempts;
        options.timeout = found.timeout.min(PATIENCE);
        options.edns0 = found.edns0;
        options.use_hosts_file = ResolveHosts::Always;
        options.cache_size = 0;
        // Names are searched for below: a server that fails says nothing of a name elsewhere.
        let servers = ResolverConfig::from_parts(None, Vec::new(), system.name_servers().to_vec());
        let builder = TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default());
        Ok(Self {
            search: search.cloned().collect(),
            ndots: found.ndots,
            resolver: builder.with_options(options).build()?,
        })
    }

    /// The records of a name, how long they are valid, and under which of the names in turn they are; none
    /// where there is no such name. Once the one that had them says so, others behind it are nobody's
    /// business that cannot be asked.
    async fn records(
        &self,
        name: &str,
        kind: RecordType,
        found: Option<&Name>,
    ) -> Result<(Vec<RData>, Duration, Option<Name>), String> {
        let names = self.candidates(name).map_err(|error| error.to_string())?;
        let (mut valid, mut is_gone) = (Duration::ZERO, false);
        for name in names {
            let had_them = found == Some(&name);
            match self.resolver.lookup(name.clone(), kind).await {
                Ok(answer) => {
                    let records = answer.answers().iter().map(|record| record.data.clone());
                    let left = answer
                        .valid_until()
                        .saturating_duration_since(std::time::Instant::now());
                    let records: Vec<RData> = records
                        .filter(|record| record.record_type() == kind)
                        .collect();
                    if !records.is_empty() {
                        return Ok((records, left, Some(name)));
                    }
                    valid = left;
                }
                Err(error) if error.is_no_records_found() || is_gone => {}
                Err(NetError::NoConnections | NetError::Timeout) => {
                    return Err("no name server of /etc/resolv.conf answers".to_owned());
                }
                Err(error) => return Err(error.to_string()),
            }
            is_gone |= had_them;
        }
        Ok((Vec::new(), valid, None))
    }

    /// The names to ask for in turn, as resolv.conf(5) has it.
    fn candidates(&self, name: &str) -> Result<Vec<Name>, NetError> {
        let mut plain = Name::from_utf8(name)?;
        if plain.is_fqdn() {
            return Ok(vec![plain]);
        }
        let searched = self.search.iter();
        let mut names: Vec<Name> = searched
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

    fn places(texts: &[&str]) -> BTreeSet<ServiceAddress> {
        texts
            .iter()
            .map(|text| (text.parse().unwrap(), None))
            .collect()
    }

    fn used(known: &Addresses) -> Vec<String> {
        known
            .used
            .iter()
            .map(|(address, _)| address.to_string())
            .collect()
    }

    #[test]
    fn those_in_use_stay_then_the_lowest_come() {
        let first = chosen(&Addresses::default(), places(&["10.0.0.5", "10.0.0.7"]), 3);
        assert_eq!(
            (used(&first), first.left_out),
            (vec!["10.0.0.5".into(), "10.0.0.7".into()], 0)
        );
        let more = places(&["10.0.0.1", "10.0.0.2", "10.0.0.7", "10.0.0.5"]);
        let second = chosen(&first, more, 3);
        assert_eq!(used(&second), ["10.0.0.1", "10.0.0.5", "10.0.0.7"]);
        assert_eq!(second.left_out, 1);
        let refused = places(&[
            "127.0.0.1",
            "169.254.1.1",
            "224.1.1.1",
            "255.255.255.255",
            "10.0.0.9",
        ]);
        let third = chosen(&second, refused, 3);
        assert_eq!(used(&third), ["10.0.0.9"]);
        assert!(third.problem.unwrap().contains("127.0.0.1"));
    }

    #[tokio::test]
    async fn nobody_is_believed_when_it_was_said_twice_and_failures_change_nothing() {
        let all = All {
            max: 4,
            refresh_s: 5,
            is_service: false,
        };
        let name = rules::host_name::HostName::new("a.example").unwrap();
        let name = Destination::All {
            name,
            ipv4: true,
            all,
        };
        let mut names = AllNames::default();
        let entry = Entry {
            all,
            known: None,
            found: None,
            due: Instant::now(),
            is_asked: true,
            failures: 0,
            empty: 0,
        };
        names.entries.insert(name.clone(), entry);
        let valid = |seconds| Duration::from_secs(seconds);
        let mut take = |answer: Lookup| {
            let is_news = names.take(&name, answer);
            let entry = &names.entries[&name];
            let wait = (entry.due - Instant::now()).as_secs_f64().round();
            (is_news, names.used(&name).len(), wait)
        };
        assert_eq!(
            take(Ok((places(&["10.0.0.1", "10.0.0.2"]), valid(20), None))),
            (true, 2, 20.0)
        );
        assert_eq!(
            take(Ok((places(&["10.0.0.1", "10.0.0.2"]), valid(0), None))),
            (false, 2, 5.0)
        );
        assert_eq!(take(Err("SERVFAIL".to_owned())), (true, 2, 1.0));
        assert_eq!(take(Err("SERVFAIL".to_owned())), (false, 2, 2.0));
        assert_eq!(
            take(Ok((BTreeSet::new(), valid(30), None))),
            (false, 2, 1.0)
        );
        assert_eq!(take(Err("SERVFAIL".to_owned())).1, 2);
        assert_eq!(take(Ok((BTreeSet::new(), valid(0), None))), (true, 0, 5.0));
        assert_eq!(
            take(Ok((places(&["10.0.0.3"]), valid(600), None))),
            (true, 1, 30.0)
        );
    }
}
