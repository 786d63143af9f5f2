//! Resolves the names that outputs have instead of addresses, by the system's resolver (`/etc/hosts`, DNS:
//! whatever nsswitch.conf specifies), off the data path and off the thread that follows the host.
//!
//! The resolver does not report how long an answer is valid, so each name is looked up periodically. An
//! address stays in use as long as the answers contain it, in any order, and while lookups fail.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use compile::host::Named;
use rules::host_name::HostName;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// How often a name is looked up.
const REFRESH: Duration = Duration::from_secs(30);
/// The same after a first failure; each further one doubles it, up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(1);
/// The shortest time between two lookups of a name, whoever requests them.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
/// How long a lookup may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a change of the rules waits for new names.
const PATIENCE: Duration = Duration::from_millis(250);
/// Concurrent lookups.
const LOOKUPS_MAX: usize = 16;

type Answer = (HostName, Result<Vec<IpAddr>, String>);

/// The names that are followed.
#[derive(Default)]
pub(super) struct Names {
    entries: BTreeMap<HostName, Entry>,
    lookups: JoinSet<Answer>,
}

#[derive(Debug)]
struct Entry {
    /// `None` before the first answer.
    resolved: Option<Named>,
    /// When it is to be looked up.
    due: Instant,
    is_pending: bool,
    failures: u32,
    last_lookup: Option<Instant>,
}

impl Names {
    /// Sets the names to follow; all are looked up soon.
    pub(super) fn follow(&mut self, names: &BTreeSet<&HostName>) {
        let now = Instant::now();
        self.entries.retain(|name, _| names.contains(name));
        for name in names {
            let slot = self.entries.entry((*name).clone());
            let entry = slot.or_insert_with(|| Entry {
                resolved: None,
                due: now,
                is_pending: false,
                failures: 0,
                last_lookup: None,
            });
            let soonest = entry.last_lookup.map_or(now, |last| last + INTERVAL_MIN);
            entry.due = entry.due.min(soonest.max(now));
        }
        self.start_lookups();
    }

    /// The addresses of all names that were resolved.
    pub(super) fn resolved(&self) -> BTreeMap<HostName, Named> {
        let entries = self.entries.iter();
        entries
            .filter_map(|(name, entry)| Some((name.clone(), entry.resolved.clone()?)))
            .collect()
    }

    /// The address of a name.
    pub(super) fn address(&self, name: &HostName, ipv4: bool) -> Option<IpAddr> {
        self.entries.get(name)?.resolved.as_ref()?.address(ipv4)
    }

    /// Waits a moment for answers about new names: most arrive at once, so that the first table is right.
    /// Returns whether the addresses of any name have changed.
    pub(super) async fn wait_for_new(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut has_changed = false;
        while self.entries.values().any(|entry| entry.resolved.is_none()) {
            if timeout_at(deadline, self.next_change()).await.is_err() {
                break;
            }
            has_changed = true;
        }
        has_changed
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
                    if answer.is_ok_and(|answer| self.record(answer)) {
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
            entry.last_lookup = Some(now);
            self.lookups.spawn(query(name.clone()));
        }
    }

    /// Records an answer; returns whether anything has changed.
    fn record(&mut self, (name, answer): Answer) -> bool {
        let Some(entry) = self.entries.get_mut(&name) else {
            return false;
        };
        entry.is_pending = false;
        let before = entry.resolved.clone();
        let now = Instant::now();
        let mut resolved = before.clone().unwrap_or_default();
        match answer {
            Ok(addresses) => {
                entry.failures = 0;
                entry.due = now + REFRESH;
                resolved = choose(&resolved, &addresses);
            }
            Err(problem) => {
                let wait = RETRY * 2_u32.saturating_pow(entry.failures.min(10));
                entry.failures += 1;
                entry.due = now + wait.min(REFRESH);
                resolved.problem = Some(problem);
            }
        }
        let has_changed = before.as_ref() != Some(&resolved);
        entry.resolved = Some(resolved);
        has_changed
    }
}

/// Chooses the addresses to use of an answer: the one in use if the answer contains it, otherwise the first
/// that a packet can be sent to. A family without addresses in the answer is no longer used. Addresses that
/// belong to no other host are refused, and one of them is reported.
fn choose(before: &Named, addresses: &[IpAddr]) -> Named {
    let is_usable = |address: &&IpAddr| refusal(**address).is_none();
    let usable: Vec<&IpAddr> = addresses.iter().filter(is_usable).collect();
    let of = |ipv4: bool| {
        let mut all = usable.iter().filter(|address| address.is_ipv4() == ipv4);
        let before = before.address(ipv4);
        let in_use = all.clone().find(|address| Some(***address) == before);
        in_use.or_else(|| all.next()).map(|address| **address)
    };
    let mut named = Named {
        problem: addresses.iter().find_map(|address| refusal(*address)),
        ..Named::default()
    };
    if let Some(IpAddr::V4(address)) = of(true) {
        named.ipv4 = Some(address);
    }
    if let Some(IpAddr::V6(address)) = of(false) {
        named.ipv6 = Some(address);
    }
    named
}

/// Why an address in an answer is refused: a name server may direct streams to hosts only.
pub(super) fn refusal(address: IpAddr) -> Option<String> {
    let what = match address.to_canonical() {
        address if address.is_multicast() => "a group",
        address if address.is_loopback() || address.is_unspecified() => "this host itself",
        IpAddr::V4(address) if address.is_broadcast() => "every host",
        IpAddr::V4(address) if address.is_link_local() => "an address of one link",
        IpAddr::V6(address) if address.is_unicast_link_local() => "an address of one link",
        _ => return None,
    };
    Some(format!(
        "{address} is refused, for it is {what}; write it in place of the name if it is meant"
    ))
}

/// Resolves a name once by the system's resolver.
pub async fn look_up(name: &HostName) -> Named {
    match query(name.clone()).await {
        (_, Ok(addresses)) => choose(&Named::default(), &addresses),
        (_, Err(problem)) => Named {
            problem: Some(problem),
            ..Named::default()
        },
    }
}

async fn query(name: HostName) -> Answer {
    let lookup = async {
        let sockets = lookup_host((name.as_str(), 0)).await?;
        Ok(sockets.map(|socket| socket.ip()).collect())
    };
    let answer = match timeout(LIMIT, lookup).await {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => {
            let error: std::io::Error = error;
            // "failed to lookup address information: Name or service not known"
            let text = error.to_string();
            let reason = text.rsplit(": ").next().unwrap_or(&text);
            Err(reason.to_owned())
        }
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    };
    (name, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn name(text: &str) -> HostName {
        HostName::new(text).unwrap()
    }

    #[test]
    fn an_address_stays_in_use_while_answers_contain_it() {
        let first = choose(&Named::default(), &addresses(&["10.0.0.1", "10.0.0.2"]));
        assert_eq!(first.ipv4, Some("10.0.0.1".parse().unwrap()));
        let turned = addresses(&["2001:db8::1", "10.0.0.2", "10.0.0.1"]);
        let second = choose(&first, &turned);
        assert_eq!(second.ipv4, first.ipv4);
        assert_eq!(second.ipv6, Some("2001:db8::1".parse().unwrap()));
        let third = choose(&second, &addresses(&["10.0.0.2"]));
        assert_eq!(third.ipv4, Some("10.0.0.2".parse().unwrap()));
        assert_eq!(third.ipv6, None);
        let none = choose(&third, &addresses(&["239.1.1.1", "0.0.0.0", "::"]));
        assert_eq!((none.ipv4, none.ipv6), (None, None));
        let mixed = addresses(&[
            "127.0.0.1",
            "169.254.1.1",
            "fe80::1",
            "::ffff:127.0.0.1",
            "255.255.255.255",
            "10.0.0.9",
        ]);
        let good = choose(&third, &mixed);
        assert_eq!(good.ipv4, Some("10.0.0.9".parse().unwrap()));
        assert!(good.problem.unwrap().starts_with("127.0.0.1 is refused"));
    }

    #[tokio::test]
    async fn addresses_are_retained_while_lookups_fail() {
        let mut names = Names::default();
        let cloud = name("cloud.example");
        names.entries.insert(
            cloud.clone(),
            Entry {
                resolved: None,
                due: Instant::now() + REFRESH,
                is_pending: true,
                failures: 0,
                last_lookup: None,
            },
        );
        assert!(names.record((cloud.clone(), Ok(addresses(&["10.0.0.1"])))));
        assert!(!names.record((cloud.clone(), Ok(addresses(&["10.0.0.1"])))));
        assert!(names.record((cloud.clone(), Err("no such host".into()))));
        assert_eq!(
            names.address(&cloud, true),
            Some("10.0.0.1".parse().unwrap())
        );
        let wait = names.entries[&cloud].due - Instant::now();
        assert!(wait <= RETRY, "{wait:?}");
        for _ in 0..100 {
            assert!(!names.record((cloud.clone(), Err("no such host".into()))));
        }
        let wait = names.entries[&cloud].due - Instant::now();
        assert!(wait > RETRY && wait <= REFRESH, "{wait:?}");
        assert!(names.record((cloud.clone(), Ok(addresses(&["10.0.0.1"])))));
        assert_eq!(names.resolved()[&cloud].problem, None);
        // The answer for a name that is no longer followed is ignored.
        names.follow(&BTreeSet::new());
        assert!(!names.record((cloud, Ok(Vec::new()))));
    }

    #[tokio::test]
    async fn names_are_resolved_by_the_system() {
        let mut names = Names::default();
        // This name is in /etc/hosts, so no server is queried.
        let here = name("localhost");
        names.follow(&BTreeSet::from([&here]));
        while names.resolved().is_empty() {
            names.next_change().await;
        }
        // Its address is refused.
        let problem = names.resolved()[&here].problem.clone().unwrap();
        assert!(problem.contains("this host itself"), "{problem}");
    }
}
