//! Several hosts on one screen: their statistics are combined, every rule as `HOST/RULE`. The rules of a host
//! that does not answer disappear; the others are not affected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use api::query::StatsQuery;
use api::reply::{Stats, Status};
use parking_lot::Mutex;

use super::update::{HostState, Update};

type HostSample = Result<(Box<Stats>, Box<Status>), String>;

/// The latest statistics of each host.
#[derive(Debug)]
pub(super) struct Hosts {
    began: Instant,
    samples: Mutex<BTreeMap<String, HostSample>>,
}

/// Splits a name into host and rule.
pub(super) fn parts(name: &str) -> (Option<&str>, &str) {
    match name.rsplit_once('/') {
        Some((host, rule)) => (Some(host), rule),
        None => (None, name),
    }
}

impl Hosts {
    pub(super) fn new(names: &[String]) -> Arc<Self> {
        let unanswered = |name: &String| (name.clone(), Err("is asked".to_owned()));
        Arc::new(Self {
            began: Instant::now(),
            samples: Mutex::new(names.iter().map(unanswered).collect()),
        })
    }

    /// Passes on the updates of one host for as long as anybody receives them.
    pub(super) fn pass_on(&self, host: &str, updates: &Receiver<Update>, all: &Sender<Update>) {
        for update in updates {
            let combined = match update {
                Update::Stats(query, stats, status, _) => {
                    self.put(host, *query, Ok((stats, status)))
                }
                Update::Unreachable(why) => self.put(host, StatsQuery::default(), Err(why)),
                Update::Past(mut past, interval) => {
                    for rule in &mut past.rules {
                        rule.name = format!("{host}/{}", rule.name);
                    }
                    Update::Past(past, interval)
                }
                Update::Event(mut event) => {
                    event.message = format!("{host}: {}", event.message);
                    Update::Event(event)
                }
                other => other,
            };
            if all.send(combined).is_err() {
                return;
            }
        }
    }

    /// Stores a host's newest sample and combines those of all hosts.
    fn put(&self, host: &str, query: StatsQuery, sample: HostSample) -> Update {
        let mut all = self.samples.lock();
        all.insert(host.to_owned(), sample);
        let states: Vec<HostState> = all
            .iter()
            .map(|(host, sample)| (host.clone(), sample.as_ref().err().cloned()))
            .collect();
        let mut answers = all
            .iter()
            .filter_map(|(host, sample)| Some((host, sample.as_ref().ok()?)));
        let Some((_, (first, status))) = answers.clone().next() else {
            let lines = states
                .iter()
                .map(|(host, why)| format!("{host}: {}", why.as_deref().unwrap_or("")));
            return Update::Unreachable(lines.collect::<Vec<String>>().join("; "));
        };
        let rules = answers.by_ref().flat_map(|(host, (stats, _))| {
            stats.rules.iter().map(move |rule| {
                let mut rule = rule.clone();
                rule.name = format!("{host}/{}", rule.name);
                rule
            })
        });
        let stats = Stats {
            rules: rules.collect(),
            workers: Vec::new(),
            selection: None,
            uptime_seconds: self.began.elapsed().as_secs_f64(),
            ..Stats::clone(first)
        };
        Update::Stats(Box::new(query), Box::new(stats), status.clone(), states)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::history::tests::stats;
    use super::*;

    #[test]
    fn rules_of_all_that_answer_are_shown_and_who_does_not_is_named() {
        let hosts = Hosts::new(&["a".to_owned(), "b".to_owned()]);
        let status = || {
            let text = r#"{"instance":"default","version":"1","pid":1,"uptime_seconds":1,"generation":1,
                "rules":0,"kernel":{"available":true},"userspace":{"available":true},"features":[]}"#;
            Box::new(serde_json::from_str::<Status>(text).unwrap())
        };
        let pass_on = |host: &str, update: Update| {
            let (sender, receiver) = channel();
            let (all, shown) = channel();
            sender.send(update).unwrap();
            drop(sender);
            hosts.pass_on(host, &receiver, &all);
            shown.recv().unwrap()
        };
        let of = |rule: &str| {
            Update::Stats(
                Default::default(),
                Box::new(stats(1.0, &[(rule, 1)])),
                status(),
                Vec::new(),
            )
        };
        let names = |update: Update| {
            let Update::Stats(_, stats, _, states) = update else {
                panic!("{update:?}")
            };
            let names: Vec<String> = stats.rules.iter().map(|rule| rule.name.clone()).collect();
            let unreachable = states.into_iter().filter(|(_, why)| why.is_some());
            (
                names.join(" "),
                unreachable.map(|(host, _)| host).collect::<String>(),
            )
        };
        assert!(matches!(
            pass_on("a", Update::Unreachable("no".to_owned())),
            Update::Unreachable(_)
        ));
        assert_eq!(
            names(pass_on("b", of("cam1"))),
            ("b/cam1".to_owned(), "a".to_owned())
        );
        assert_eq!(
            names(pass_on("a", of("cam1"))),
            ("a/cam1 b/cam1".to_owned(), String::new())
        );
        assert_eq!(
            names(pass_on("b", Update::Unreachable("no".to_owned()))),
            ("a/cam1".to_owned(), "b".to_owned())
        );
        assert_eq!(
            (parts("a/cam1"), parts("cam1")),
            ((Some("a"), "cam1"), (None, "cam1"))
        );
    }
}
