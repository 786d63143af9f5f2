//! The control API in front of a core without a dataplane: rules are checked, compiled and stored as in a
//! daemon, but no host is touched. For fuzzers and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use api::reply::Change;
use axum::Router;
use compile::hook::Hooks;
use compile::host::{Host, Interface};
use compile::placement::{PathChoice, Support};
use config::{ApiClient, ApiClients, ApiSettings, Settings};
use igmp::listeners::Listeners;
use observe::events::Events;
use observe::stats::{Identity, Sampler};
use observe::view::View;
use rules::net::{Ifindex, Mac};
use rules::ruleset::{Policy, RuleSet};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};

use super::api_error::{ApiError, Reply};
use super::connections::Connection;
use super::remote::peer::Peer;
use super::routes;
use super::server::serve_connection;
use super::service::Service;
use crate::core::{Core, Refused};
use crate::dataplane_thread::Unthreaded;
use crate::memberships::Joined;
use crate::states;
use crate::supervisor::command::{Command, Order};

/// A client of another host.
const VIEWER: &str = "viewer";

/// A daemon of its own whose host has `eth0` and `eth1`.
#[derive(Debug)]
pub struct Rehearsal {
    router: Router,
    /// The router for clients of other hosts.
    remote: Router,
    commands: mpsc::Receiver<Command>,
    dataplane: Unthreaded,
    core: Core,
    host: Arc<Host>,
    view: watch::Sender<Arc<View>>,
}

impl Default for Rehearsal {
    fn default() -> Self {
        let (commands, incoming) = mpsc::channel(16);
        let (dataplane, unthreaded) =
            Unthreaded::open().expect("a dataplane without paths opens nothing");
        let (sender, view) = watch::channel(Arc::default());
        let service = Service {
            identity: Identity {
                instance: "rehearsal".to_owned(),
                host: String::new(),
                started: Instant::now(),
                config: crate::config_files::main_file(None),
                fleet: None,
            },
            commands,
            dataplane,
            view,
            support: support(),
            features: dataplane::features::Features::default(),
            events: Events::default(),
            sampler: Sampler::default(),
            listeners: Listeners::default(),
            fleet: None,
            generations: Default::default(),
            changes: Err("".into()),
            acknowledged: Default::default(),
            log: None,
            capture: Default::default(),
            unsaved: Arc::default(),
            responses: Arc::default(),
            is_apart: false,
            remote: Arc::default(),
            notified: Arc::default(),
        };
        let viewer = ApiClient {
            name: VIEWER.to_owned(),
            certificate: Some(VIEWER.to_owned()),
            ..ApiClient::default()
        };
        service.remote.set(ApiSettings {
            client: ApiClients(vec![viewer]),
            ..ApiSettings::default()
        });
        let service = Arc::new(service);
        Self {
            remote: routes::remote(Arc::clone(&service), Arc::from([VIEWER.to_owned()])),
            router: routes::control(service),
            commands: incoming,
            dataplane: unthreaded,
            core: core(),
            host: Arc::new(host()),
            view: sender,
        }
    }
}

impl Rehearsal {
    /// Forgets all rules.
    pub fn reset(&mut self) {
        self.core = core();
        self.view.send_replace(Arc::default());
    }

    /// Serves one connection to its end.
    pub async fn converse<S>(&mut self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.router.clone();
        self.serve(serve_connection(stream, router, Connection::default()))
            .await;
    }

    /// Serves one connection of another host; `shows`: with the certificate of a client that may only view.
    pub async fn converse_elsewhere<S>(&mut self, stream: S, shows: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Connection::default();
        connection.set_remote(Arc::new(Peer::named(shows.then_some(VIEWER))));
        let router = self.remote.clone();
        self.serve(serve_connection(stream, router, connection))
            .await;
    }

    async fn serve(&mut self, conversation: impl Future<Output = ()>) {
        tokio::pin!(conversation);
        let turn = |context: &mut Context<'_>| loop {
            if conversation.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            if !self.serve_waiting() {
                return Poll::Pending;
            }
        };
        poll_fn(turn).await;
    }

    /// The rules as a configuration file.
    #[must_use]
    pub fn export(&self) -> String {
        config::export(self.core.rules(), self.core.settings())
    }

    /// Executes the API's pending orders to the supervisor and the dataplane; returns whether there were any.
    fn serve_waiting(&mut self) -> bool {
        let mut any = self.dataplane.run_waiting();
        while let Ok(command) = self.commands.try_recv() {
            let insisted = Refused::insist(self.core.generation(), command.author.generation);
            let done = insisted.map_err(ApiError::from);
            // The requester may have disconnected.
            drop(
                command
                    .reply
                    .send(done.and_then(|()| self.execute(command.order))),
            );
            any = true;
        }
        any
    }

    fn execute(&mut self, order: Order) -> Reply<Change> {
        match order {
            Order::Change(request) => {
                let config = self.core.resolve(&request)?;
                Ok(self.change(config.rules, config.settings))
            }
            Order::DryRun(request) => {
                let config = self.core.resolve(&request)?;
                Ok(self.core.compare(&config.rules, &config.settings))
            }
            Order::Routes(asked) => {
                let table = self.core.table().of(asked.ingress, asked.destination);
                let _ = asked.table.send(table);
                Ok(Change::default())
            }
            Order::Reload | Order::Save | Order::Confirm | Order::Undo { .. } | Order::Fleet(_) => {
                let (rules, settings) = (self.core.rules(), self.core.settings());
                Ok(self.core.compare(rules, settings))
            }
        }
    }

    fn change(&mut self, rules: RuleSet, settings: Settings) -> Change {
        let (rules, settings) = (Arc::new(rules), Arc::new(settings));
        let (host, renewed) = (Arc::clone(&self.host), BTreeSet::new());
        let step = self.core.step(rules, settings, host, &renewed);
        let change = step.change.clone();
        self.core.accept(step);
        self.view.send_replace(Arc::new(View {
            generation: self.core.generation(),
            rules: Arc::clone(self.core.rules()),
            settings: Arc::clone(self.core.settings()),
            states: states::states(
                self.core.views(),
                &Joined::default(),
                (&BTreeMap::new(), &Hooks::default()),
                None,
            ),
            host: Arc::clone(self.core.host()),
            joins: states::joins(self.core.joined(), &Joined::default()),
            unsaved: None,
            pending: None,
        }));
        change
    }
}

fn support() -> Support {
    Support {
        kernel: Ok(()),
        userspace: Ok(()),
    }
}

fn core() -> Core {
    Core::new(support(), PathChoice::Auto, Policy::default())
}

fn host() -> Host {
    let link = |index: u8, name: &str| Interface {
        index: Ifindex(index.into()),
        name: name.to_owned(),
        up: true,
        mtu: 1500,
        mac: Some(Mac([2, 0, 0, 0, 0, index])),
        addresses: vec![IpAddr::from([10, 0, index, 1])],
        ..Interface::default()
    };
    let links = [link(2, "eth0"), link(3, "eth1")];
    Host {
        interfaces: links.into_iter().map(|link| (link.index, link)).collect(),
        ..Host::default()
    }
}
