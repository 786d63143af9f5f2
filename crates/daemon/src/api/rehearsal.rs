//! The control API in front of a core that carries nothing out: rules are judged, compiled and
//! remembered as in a daemon, but no host is touched. For fuzzers and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use api::reply::{Change, PathStatus, Stats, Status};
use api::request::RuleList;
use axum::Router;
use dataplane::counters::Counters;
use model::config::{Config, Settings};
use model::host::{Host, Interface};
use model::net::{Ifindex, Mac};
use model::placement::{PathChoice, Support};
use model::ruleset::Policy;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::connections::Busy;
use super::question::{Answer, Code, Question, Refusal, Scrape, Supervisor};
use super::routes;
use super::server::converse;
use crate::core::{Core, Refused, Request};
use crate::events::Board;
use crate::memberships::Joined;
use crate::stats::{self, Identity, Sampler};
use crate::view::{self, View};

/// A daemon of its own whose host has `eth0` and `eth1`.
#[derive(Debug)]
pub struct Rehearsal {
    router: Router,
    questions: mpsc::Receiver<Question>,
    core: Core,
    host: Arc<Host>,
    view: View,
}

impl Default for Rehearsal {
    fn default() -> Self {
        let (asks, questions) = mpsc::channel(16);
        Self {
            router: routes::control(Supervisor::new(asks, Board::new())),
            questions,
            core: core(),
            host: Arc::new(host()),
            view: View::default(),
        }
    }
}

impl Rehearsal {
    /// Forgets all rules.
    pub fn reset(&mut self) {
        self.core = core();
        self.view = View::default();
    }

    /// Serves one connection to its end.
    pub async fn converse<S>(&mut self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let conversation = converse(stream, self.router.clone(), Busy::default());
        tokio::pin!(conversation);
        loop {
            tokio::select! {
                () = &mut conversation => return,
                Some(question) = self.questions.recv() => self.answer(question),
            }
        }
    }

    /// The rules as a configuration file.
    #[must_use]
    pub fn export(&self) -> String {
        model::config::export(self.core.rules(), self.core.settings())
    }

    fn answer(&mut self, question: Question) {
        // Whoever asked may have gone away.
        match question {
            Question::Status(reply) => drop(reply.send(Ok(self.status()))),
            Question::Stats(reply) => drop(reply.send(Ok(self.stats()))),
            Question::Scrape(reply) => {
                let scrape = Scrape {
                    status: self.status(),
                    stats: self.stats(),
                    possible: stats::possible_drops(&self.view),
                };
                drop(reply.send(Ok(scrape)));
            }
            Question::Rules(reply) => drop(reply.send(Ok(RuleList {
                generation: Some(self.core.generation()),
                rules: self.core.rules().to_documents(),
                settings: Some(Settings::clone(self.core.settings())),
            }))),
            Question::Flows(_, reply) => drop(reply.send(Ok(Vec::new()))),
            Question::Interfaces(reply) => drop(reply.send(Ok(Vec::new()))),
            Question::Export(reply) => drop(reply.send(Ok(self.export()))),
            Question::Change(transaction, reply) => {
                drop(reply.send(self.change(&Request::Change(transaction), false)));
            }
            Question::Replace {
                rules,
                dry_run,
                reply,
            } => drop(reply.send(self.change(&Request::Replace(rules), dry_run))),
            Question::Log(level, reply) => {
                let message = "there is no log here";
                let level = level.ok_or_else(|| Refusal::new(Code::Unavailable, message));
                drop(reply.send(level));
            }
            Question::Reload(reply) => {
                let (rules, settings) = (self.core.rules(), self.core.settings());
                drop(reply.send(Ok(self.core.compare(rules, settings))));
            }
        }
    }

    fn change(&mut self, request: &Request, dry_run: bool) -> Answer<Change> {
        let asked = self.core.asked(request);
        let Config { rules, settings } =
            asked.map_err(|refused: Refused| Refusal::from(refused))?;
        if dry_run {
            return Ok(self.core.compare(&rules, &settings));
        }
        let (rules, settings) = (Arc::new(rules), Arc::new(settings));
        let (host, renewed) = (Arc::clone(&self.host), BTreeSet::new());
        let step = self.core.step(rules, settings, host, &renewed);
        let change = step.change.clone();
        self.core.accept(step);
        self.view = View {
            generation: self.core.generation(),
            rules: Arc::clone(self.core.rules()),
            settings: Arc::clone(self.core.settings()),
            states: view::states(
                self.core.views(),
                &Joined::default(),
                &BTreeMap::new(),
                None,
            ),
            host: Arc::clone(self.core.host()),
        };
        Ok(change)
    }

    fn stats(&self) -> Stats {
        let (counters, sampler) = (Counters::default(), Sampler::default());
        stats::stats(&identity(), &self.view, &counters, &sampler)
    }

    fn status(&self) -> Status {
        let available = PathStatus {
            available: true,
            reason: None,
        };
        Status {
            instance: identity().instance,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: 0,
            uptime_seconds: 0.0,
            generation: self.core.generation(),
            rules: self.core.rules().len(),
            kernel: available.clone(),
            userspace: available,
            last_reload: None,
        }
    }
}

fn identity() -> Identity {
    Identity {
        instance: "rehearsal".to_owned(),
        started: Instant::now(),
    }
}

fn core() -> Core {
    let support = Support {
        kernel: Ok(()),
        userspace: Ok(()),
    };
    Core::new(support, PathChoice::Auto, Policy::default())
}

fn host() -> Host {
    let link = |index: u8, name: &str| Interface {
        index: Ifindex(index.into()),
        name: name.to_owned(),
        up: true,
        mtu: 1500,
        mac: Some(Mac([2, 0, 0, 0, 0, index])),
        addresses: vec![IpAddr::from([10, 0, index, 1])],
        gro_list: false,
    };
    let links = [link(2, "eth0"), link(3, "eth1")];
    Host {
        interfaces: links.into_iter().map(|link| (link.index, link)).collect(),
        ..Host::default()
    }
}
