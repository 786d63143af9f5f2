//! Several hosts on one screen: what each tells is put together, every rule as `HOST/RULE`. One that does
//! not answer takes its rules along and stops no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use api::query::StatsQuery;
use api::reply::{Stats, Status};
use parking_lot::Mutex;

use super::update::{HostState, Update};

type HostSample = Result<(Box<Stats>, Box<Status>), String>;

/// What hosts told last.
#[derive(Debug)]
pub(super) struct Hosts {
    began: Instant,
    told: Mutex<BTreeMap<String, HostSample>>,
}

/// The host and the rule that a name stands for.
pub(super) fn parts(name: &str) -> (Option<&str>, &str) {
    match name.rsplit_once('/') {
        Some((host, rule)) => (Some(host), rule),
        None => (None, name),
    }
}

impl Hosts {
    pub(super) fn new(names: &[String]) -> Arc<Self> {
        let unknown = |name: &String| (name.clone(), Err("is asked".to_owned()));
        Arc::new(Self {
            began: Instant::now(),
            told: Mutex::new(names.iter().map(unknown).collect()),
        })
    }

    /// Passes on what one of them tells, for as long as anybody wants to know.
    pub(super) fn pass_on(&self, host: &str, updates: &Receiver<Update>, all: &Sender<Update>) {
        for update in updates {
            let told = match update {
                Update::Stats(query, stats, status) => self.put(host, *query, Ok((stats, status))),
                Update::Gone(why) => self.put(host, StatsQuery::default(), Err(why)),
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
            if all.send(told).is_err() {
                return;
            }
        }
    }

    /// Puts together what all tell, with what one tells now.
    fn put(&self, host: &str, query: StatsQuery, told: HostSample) -> Update {
        let mut all = self.told.lock();
        all.insert(host.to_owned(), told);
        let states = all
            .iter()
            .map(|(host, told)| (host.clone(), told.as_ref().err().cloned()));
        let states: Vec<HostState> = states.collect();
        let mut answers = all
            .iter()
            .filter_map(|(host, told)| Some((host, told.as_ref().ok()?)));
        let Some((_, (first, status))) = answers.clone().next() else {
            let lines = states
                .iter()
                .map(|(host, why)| format!("{host}: {}", why.as_deref().unwrap_or("")));
            return Update::Gone(lines.collect::<Vec<String>>().join("; "));
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
        Update::Hosts(Box::new(query), Box::new(stats), status.clone(), states)
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
        let told = |host: &str, update: Update| {
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
            )
        };
        let names = |update: Update| {
            let Update::Hosts(_, stats, _, states) = update else {
                panic!("{update:?}")
            };
            let names: Vec<String> = stats.rules.iter().map(|rule| rule.name.clone()).collect();
            let gone = states.into_iter().filter(|(_, why)| why.is_some());
            (
                names.join(" "),
                gone.map(|(host, _)| host).collect::<String>(),
            )
        };
        assert!(matches!(
            told("a", Update::Gone("no".to_owned())),
            Update::Gone(_)
        ));
        assert_eq!(
            names(told("b", of("cam1"))),
            ("b/cam1".to_owned(), "a".to_owned())
        );
        assert_eq!(
            names(told("a", of("cam1"))),
            ("a/cam1 b/cam1".to_owned(), String::new())
        );
        assert_eq!(
            names(told("b", Update::Gone("no".to_owned()))),
            ("a/cam1".to_owned(), "b".to_owned())
        );
        assert_eq!(
            (parts("a/cam1"), parts("cam1")),
            ((Some("a"), "cam1"), (None, "cam1"))
        );
    }
}
