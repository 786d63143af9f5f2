//! From a configuration to a running relay.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread::Builder;

use config::{FleetSettings, OnIsolation};
use etcd::{Client, Endpoint, Secret, Tls};
use ring::rand::{SecureRandom, SystemRandom};
use sys::abort_on_panic::AbortOnPanic;
use sys::clock::boottime_ns;
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use super::engine::{Engine, Receivers, boot_unix_ms};
use super::installer::{self, Wanted};
use super::peering::Peering;
use super::received::Received;
use super::retained::Retained;
use super::status::{self, Tally};
use super::tasks::spawn;
use super::watching::Follower;
use super::{Config, Relay, Status, own_address};
use crate::error::Error;
use crate::host::Host;
use crate::keys::Keys;
use crate::member::{self, Adopted, Member, Patience, Session};
use crate::record::Recorder;
use crate::rules::Rules;

/// Datagrams of other relays that wait for the engine.
const PEERS_WAITING: usize = 64;

/// The client of etcd, with the files that it needs.
pub(super) fn client(settings: &FleetSettings) -> Result<Client, Error> {
    let client = Client::new(client_config(settings)?);
    client.map_err(|error| Error::invalid(format!("[fleet] {error}")))
}

pub(super) fn start(config: Config, host: Arc<dyn Host>) -> Result<Relay, Error> {
    let keys = Keys::new(&config.settings.name)
        .ok_or_else(|| Error::invalid("[fleet] name is no name"))?;
    let client = client(&config.settings)?;
    let own = own_address::configured(&config.settings, client.endpoints())?;
    let (received, received_receiver) = mpsc::unbounded_channel();
    let (peer_sender, peers) = mpsc::channel(PEERS_WAITING);
    let (request_sender, requests) = mpsc::unbounded_channel();
    let receivers = Receivers {
        received: received_receiver,
        peers,
        requests,
    };
    let member = Member::new(member_config(&config, keys.clone()), None);
    let initial = status::of(
        member.status(boottime_ns()),
        &Rules::default(),
        &Tally::default(),
    );
    let (publisher, published) = watch::channel(Arc::new(initial));
    let hold = config.settings.hold();
    // Last: on an error after this, the runtime would be dropped within the caller's, which panics.
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::unavailable(error.to_string()))?;
    let spawned = Builder::new().name("fleet".to_owned()).spawn(move || {
        let _guard = AbortOnPanic;
        let work = async move {
            let peers = Peering::new(peer_sender);
            if let Some(own) = own {
                let _ = received.send(Received::Own(own));
            } else {
                let endpoints = client.endpoints().to_vec();
                spawn(own_address::resolve(endpoints, received.clone()));
            }
            let engine = engine_of(config, host, (client, keys), peers, (received, publisher));
            engine.run(receivers).await;
        };
        LocalSet::new().block_on(&runtime, work);
    });
    spawned.map_err(|error| Error::unavailable(error.to_string()))?;
    Ok(Relay {
        requests: request_sender,
        published,
        hold,
        by: None,
    })
}

fn engine_of(
    config: Config,
    host: Arc<dyn Host>,
    (client, keys): (Client, Keys),
    peers: Peering,
    (received, published): (mpsc::UnboundedSender<Received>, watch::Sender<Arc<Status>>),
) -> Engine {
    let retained = Retained::new(&config.run, &config.cache);
    let adopted = adopt(&config, &retained, &*host);
    let of_member = member_config(&config, keys.clone());
    let recorder = Recorder::new(of_member.clone(), adopted.clone());
    let member = Member::new(of_member, adopted);
    let (watches, commands) = mpsc::unbounded_channel();
    let (wanted, to_install) = watch::channel(Wanted::default());
    let interfaces = config.settings.interfaces.clone();
    spawn(installer::run(
        Arc::clone(&host),
        interfaces,
        to_install,
        received.clone(),
    ));
    let follower = Follower {
        client: client.clone(),
        keys: keys.clone(),
        relay: config.relay.clone(),
        commands,
        engine: received.clone(),
        lists_again: false,
    };
    let mut engine = Engine {
        config: Arc::new(config),
        host,
        client,
        keys,
        member,
        recorder,
        retained,
        rules: Arc::default(),
        current: None,
        reading: None,
        unread: None,
        published_version: 0,
        samples: 0,
        boot_unix_ms: boot_unix_ms(),
        received,
        watches,
        wanted,
        has_new_rules: false,
        peers,
        follower: Some(follower),
        requester: None,
        published,
        leaving: Vec::new(),
        fitness: Default::default(),
        tally: Default::default(),
        outage: Default::default(),
        is_checking_alive: Default::default(),
        is_publishing_counters: Default::default(),
    };
    engine.use_saved_rules();
    engine
}

/// The state that a former process of this relay left behind. Gates that must not stay open are shut.
fn adopt(config: &Config, retained: &Retained, host: &dyn Host) -> Option<Adopted> {
    let settings = &config.settings;
    let is_ours =
        |retained: &Session| retained.fleet == settings.name && retained.relay == config.relay;
    let session = retained.session().filter(is_ours);
    let holds_on = settings.on_isolation == Some(OnIsolation::Hold);
    let latest = boottime_ns() + settings.hold().as_nanos() as u64;
    let may_stay = |until: u64| session.is_some() && (holds_on || until <= latest);
    let (gates, shut): (BTreeMap<_, _>, BTreeMap<_, _>) = config
        .gates
        .clone()
        .into_iter()
        .partition(|(_, until)| may_stay(*until));
    shut.keys().for_each(|share| host.set_gate(share, 0));
    session.map(|session| Adopted { session, gates })
}

fn member_config(config: &Config, keys: Keys) -> member::Config {
    let settings = &config.settings;
    let hold = settings.hold();
    let mut process = [0; 8];
    // Without randomness two processes of one name cannot be distinguished; their sessions still can.
    let _ = SystemRandom::new().fill(&mut process);
    member::Config {
        keys,
        fleet: settings.name.clone(),
        relay: config.relay.clone(),
        process: u64::from_le_bytes(process),
        policy: settings.on_isolation.unwrap_or_default(),
        hold_ns: hold.as_nanos() as u64,
        // Not published before the address is known.
        peer: (Ipv4Addr::UNSPECIFIED, 0).into(),
        roles: settings.interfaces.keys().cloned().collect(),
        weight: u32::from(settings.weight()),
        version: config.version.clone(),
        patience_ns: Patience {
            down: settings.output_down().as_nanos() as u64,
            // The host reports silence after the first half.
            silent: settings.input_silence().as_nanos() as u64 / 2,
        },
        boot_unix_ms: boot_unix_ms(),
    }
}

fn client_config(settings: &FleetSettings) -> Result<etcd::Config, Error> {
    let invalid = |error: etcd::ConfigError| Error::invalid(format!("[fleet] {error}"));
    let endpoints: Result<Vec<Endpoint>, _> =
        settings.endpoints.iter().map(|at| at.parse()).collect();
    let mut config = etcd::Config::new(endpoints.map_err(invalid)?);
    config.tls = settings.tls.clone().map(|tls| Tls {
        ca: tls.ca,
        certificate: tls.cert,
        key: tls.key,
    });
    if let (Some(user), Some(file)) = (&settings.user, &settings.password_file) {
        let text = fs::read_to_string(file).map_err(|error| {
            let file = file.display();
            Error::invalid(format!(
                "[fleet] password_file {file}: {error}: give a file that the daemon's user can read"
            ))
        })?;
        let password = text.trim_end_matches(['\r', '\n']).to_owned();
        config.user = Some((user.clone(), Secret::from(password)));
    }
    Ok(config)
}
