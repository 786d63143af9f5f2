//! Resolves the names that outputs give in place of addresses, by the system's resolver (`/etc/hosts`,
//! DNS: whatever nsswitch.conf says), off the data path and off the thread that follows the host.
//!
//! The resolver does not say how long an answer is valid, so each name is looked up again and again. An
//! address stays in use as long as the answers contain it, in whatever order they come, and after they
//! fail.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use compile::host::Named;
use rules::host_name::HostName;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// How often a name is asked for.
const REFRESH: Duration = Duration::from_secs(30);
/// The same after a failure, at first; each further one doubles it, up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(1);
/// No name is asked for again sooner than so, whoever wants it.
const SOONEST: Duration = Duration::from_millis(500);
/// How long a question may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a change of the rules waits for names that are new.
const PATIENCE: Duration = Duration::from_millis(250);
/// Questions at a time.
const ASKED_MAX: usize = 16;

type Answer = (HostName, Result<Vec<IpAddr>, String>);

/// The names that are followed.
#[derive(Default)]
pub(super) struct Names {
    entries: BTreeMap<HostName, Entry>,
    asked: JoinSet<Answer>,
}

#[derive(Debug)]
struct Entry {
    /// `None` before the first answer.
    known: Option<Named>,
    /// When it is to be asked for.
    due: Instant,
    is_asked: bool,
    failures: u32,
    asked_at: Option<Instant>,
}

impl Names {
    /// Sets the names to follow; all are asked for soon.
    pub(super) fn follow(&mut self, names: &BTreeSet<&HostName>) {
        let now = Instant::now();
        self.entries.retain(|name, _| names.contains(name));
        for name in names {
            let entry = self.entries.entry((*name).clone());
            let entry = entry.or_insert_with(|| Entry {
                known: None,
                due: now,
                is_asked: false,
                failures: 0,
                asked_at: None,
            });
            let soonest = entry.asked_at.map_or(now, |asked| asked + SOONEST);
            entry.due = entry.due.min(soonest.max(now));
        }
        self.ask();
    }

    /// What the names stand for, as far as they were answered.
    pub(super) fn known(&self) -> BTreeMap<HostName, Named> {
        let known = self.entries.iter();
        known
            .filter_map(|(name, entry)| Some((name.clone(), entry.known.clone()?)))
            .collect()
    }

    /// The address that a name stands for.
    pub(super) fn address(&self, name: &HostName, ipv4: bool) -> Option<IpAddr> {
        self.entries.get(name)?.known.as_ref()?.address(ipv4)
    }

    /// Gives names that are new a moment to be answered: most are at once, and the first table is right.
    /// Says whether any name stands for something else since.
    pub(super) async fn wait_for_new(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut has_changed = false;
        while self.entries.values().any(|entry| entry.known.is_none()) {
            if timeout_at(deadline, self.next_change()).await.is_err() {
                break;
            }
            has_changed = true;
        }
        has_changed
    }

    /// Waits until a name stands for something else. Nothing is lost if it is called off.
    pub(super) async fn next_change(&mut self) {
        loop {
            self.ask();
            let waiting = self.entries.values().filter(|entry| !entry.is_asked);
            let next = waiting.map(|entry| entry.due).min();
            let is_full = self.asked.len() >= ASKED_MAX;
            let next = next.filter(|_| !is_full);
            tokio::select! {
                Some(answer) = self.asked.join_next() => {
                    // One that panicked has no answer to give.
                    if answer.is_ok_and(|answer| self.take(answer)) {
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
        let due = |entry: &&mut Entry| !entry.is_asked && entry.due <= now;
        let room = ASKED_MAX.saturating_sub(self.asked.len());
        let due = self.entries.iter_mut().filter(|(_, entry)| due(entry));
        for (name, entry) in due.take(room) {
            entry.is_asked = true;
            entry.asked_at = Some(now);
            self.asked.spawn(ask(name.clone()));
        }
    }

    /// Takes an answer; says whether anything is different from now on.
    fn take(&mut self, (name, answer): Answer) -> bool {
        let Some(entry) = self.entries.get_mut(&name) else {
            return false;
        };
        entry.is_asked = false;
        let before = entry.known.clone();
        let now = Instant::now();
        let mut known = before.clone().unwrap_or_default();
        match answer {
            Ok(addresses) => {
                entry.failures = 0;
                entry.due = now + REFRESH;
                known = chosen(&known, &addresses);
            }
            Err(problem) => {
                let wait = RETRY * 2_u32.saturating_pow(entry.failures.min(10));
                entry.failures += 1;
                entry.due = now + wait.min(REFRESH);
                known.problem = Some(problem);
            }
        }
        let is_news = before.as_ref() != Some(&known);
        entry.known = Some(known);
        is_news
    }
}

/// What is used of an answer: what was used before if it is among them, or else the first that a packet
/// can be sent to. A family that is not among them any more is not used any more.
/// What is of no other host is refused, and told where nothing is left.
fn chosen(before: &Named, addresses: &[IpAddr]) -> Named {
    let usable = |address: &&IpAddr| refusal(**address).is_none();
    let usable: Vec<&IpAddr> = addresses.iter().filter(usable).collect();
    let of = |ipv4: bool| {
        let mut all = usable.iter().filter(|address| address.is_ipv4() == ipv4);
        let before = before.address(ipv4);
        let kept = all.clone().find(|address| Some(***address) == before);
        kept.or_else(|| all.next()).map(|address| **address)
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

/// Why an address in an answer is not sent to: whoever answers is to direct streams to hosts alone.
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

/// Asks the system once what a name stands for.
pub async fn look_up(name: &HostName) -> Named {
    match ask(name.clone()).await {
        (_, Ok(addresses)) => chosen(&Named::default(), &addresses),
        (_, Err(problem)) => Named {
            problem: Some(problem),
            ..Named::default()
        },
    }
}

async fn ask(name: HostName) -> Answer {
    let found = async {
        let found = lookup_host((name.as_str(), 0)).await?;
        Ok(found.map(|socket| socket.ip()).collect())
    };
    let answer = match timeout(LIMIT, found).await {
        Ok(Ok(found)) => Ok(found),
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
    fn an_address_stays_in_use_while_answers_hold_it() {
        let first = chosen(&Named::default(), &addresses(&["10.0.0.1", "10.0.0.2"]));
        assert_eq!(first.ipv4, Some("10.0.0.1".parse().unwrap()));
        let turned = addresses(&["2001:db8::1", "10.0.0.2", "10.0.0.1"]);
        let second = chosen(&first, &turned);
        assert_eq!(second.ipv4, first.ipv4);
        assert_eq!(second.ipv6, Some("2001:db8::1".parse().unwrap()));
        let third = chosen(&second, &addresses(&["10.0.0.2"]));
        assert_eq!(third.ipv4, Some("10.0.0.2".parse().unwrap()));
        assert_eq!(third.ipv6, None);
        let none = chosen(&third, &addresses(&["239.1.1.1", "0.0.0.0", "::"]));
        assert_eq!((none.ipv4, none.ipv6), (None, None));
        let mixed = addresses(&[
            "127.0.0.1",
            "169.254.1.1",
            "fe80::1",
            "::ffff:127.0.0.1",
            "255.255.255.255",
            "10.0.0.9",
        ]);
        let good = chosen(&third, &mixed);
        assert_eq!(good.ipv4, Some("10.0.0.9".parse().unwrap()));
        assert!(good.problem.unwrap().starts_with("127.0.0.1 is refused"));
    }

    #[tokio::test]
    async fn what_was_good_is_kept_when_nobody_answers() {
        let mut names = Names::default();
        let cloud = name("cloud.example");
        names.entries.insert(
            cloud.clone(),
            Entry {
                known: None,
                due: Instant::now() + REFRESH,
                is_asked: true,
                failures: 0,
                asked_at: None,
            },
        );
        assert!(names.take((cloud.clone(), Ok(addresses(&["10.0.0.1"])))));
        assert!(!names.take((cloud.clone(), Ok(addresses(&["10.0.0.1"])))));
        assert!(names.take((cloud.clone(), Err("no such host".into()))));
        assert_eq!(
            names.address(&cloud, true),
            Some("10.0.0.1".parse().unwrap())
        );
        let wait = names.entries[&cloud].due - Instant::now();
        assert!(wait <= RETRY, "{wait:?}");
        for _ in 0..100 {
            assert!(!names.take((cloud.clone(), Err("no such host".into()))));
        }
        let wait = names.entries[&cloud].due - Instant::now();
        assert!(wait > RETRY && wait <= REFRESH, "{wait:?}");
        assert!(names.take((cloud.clone(), Ok(addresses(&["10.0.0.1"])))));
        assert_eq!(names.known()[&cloud].problem, None);
        // One that is followed no more is of no interest.
        names.follow(&BTreeSet::new());
        assert!(!names.take((cloud, Ok(Vec::new()))));
    }

    #[tokio::test]
    async fn the_system_is_asked() {
        let mut names = Names::default();
        // From /etc/hosts: nobody else is asked.
        let here = name("localhost");
        names.follow(&BTreeSet::from([&here]));
        while names.known().is_empty() {
            names.next_change().await;
        }
        // Whose answer is refused.
        let problem = names.known()[&here].problem.clone().unwrap();
        assert!(problem.contains("this host itself"), "{problem}");
    }
}
