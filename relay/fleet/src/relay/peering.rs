//! What goes to the other relays and comes from them, and the secret that all of them know.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::engine::Engine;
use super::heard::Taken;
use super::tasks::spawn;
use crate::keys::{FleetSettings, Key, Value};
use crate::member::{Input, KeyValue};
use crate::peers::{Message, Peers, Secret};

/// Bytes of the fleet's secret.
const SECRET_LEN: usize = 32;
/// How long etcd may take to write it.
const PATIENCE: Duration = Duration::from_secs(2);

/// This relay among the others.
pub(super) struct Peering {
    /// Not before it is known where the others reach this relay.
    peers: Option<Rc<Peers>>,
    engine: mpsc::Sender<(Message, SocketAddr)>,
    /// As it stands in etcd, if that makes sense.
    settings: Option<FleetSettings>,
    secret: Option<Rc<Secret>>,
    listens: Option<JoinHandle<()>>,
}

impl Peering {
    pub(super) fn new(engine: mpsc::Sender<(Message, SocketAddr)>) -> Self {
        Self {
            peers: None,
            engine,
            settings: None,
            secret: None,
            listens: None,
        }
    }

    /// Hears and speaks by this secret from now on.
    fn take(&mut self, settings: FleetSettings) {
        if self.settings.as_ref() == Some(&settings) {
            return;
        }
        let secret = Rc::new(Secret::new(&bytes(&settings.secret)));
        self.settings = Some(settings);
        self.secret = Some(secret);
        self.listen();
    }

    /// Hears what is signed with the secret, if there is where, and by what.
    fn listen(&mut self) {
        let (Some(peers), Some(secret)) = (self.peers.clone(), self.secret.clone()) else {
            return;
        };
        let engine = self.engine.clone();
        let listens =
            spawn(async move { while engine.send(peers.next(&secret).await).await.is_ok() {} });
        if let Some(before) = self.listens.replace(listens) {
            before.abort();
        }
    }
}

/// The bytes of hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    hex.as_bytes().chunks(2).filter_map(byte).collect()
}

impl Engine {
    /// Takes part, now that it is known where the others reach this relay.
    pub(super) fn take_own(&mut self, (at, socket): Taken) {
        if at.ip().is_loopback() {
            tracing::info!(
                "the relays of other hosts cannot reach this one at {at}; give peer in [fleet] where \
                 there are any"
            );
        }
        match Peers::new(socket) {
            Ok(peers) => self.peers.peers = Some(Rc::new(peers)),
            Err(error) => tracing::error!("the other relays are not heard: {error}"),
        }
        self.peers.listen();
        self.take(Input::Own(at));
        if let Some(follower) = self.follower.take() {
            spawn(follower.run());
        }
    }

    /// Takes the fleet's secret.
    pub(super) fn take_settings(&mut self, found: &KeyValue) {
        // The member tells of one that makes no sense.
        if let Ok(settings) = FleetSettings::read(&found.key, &found.value) {
            self.peers.take(settings);
        }
    }

    /// Makes a secret for the fleet where it has none, unless another relay is faster.
    pub(super) fn make_secret(&self) {
        if self.peers.secret.is_some() {
            return;
        }
        let mut secret = [0; SECRET_LEN];
        if SystemRandom::new().fill(&mut secret).is_err() {
            return;
        }
        let secret = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let value = FleetSettings { secret }.write();
        let key = self.keys.text(&Key::Settings);
        let client = self.client.clone();
        spawn(async move {
            let put = etcd::Txn::new()
                .when(etcd::Compare::absent(key.as_str()))
                .then(etcd::Op::put(key.as_str(), value));
            if let Err(error) = client.txn(put, PATIENCE).await {
                tracing::debug!(%error, "the fleet has no secret yet");
            }
        });
    }

    pub(super) fn send_peer(&self, to: SocketAddr, message: Message) {
        let Some(secret) = self.peers.secret.clone() else {
            return;
        };
        let Some(peers) = self.peers.peers.clone() else {
            return;
        };
        spawn(async move { peers.send(&secret, to, &message).await });
    }

    pub(super) fn hear_peer(&mut self, message: Message, from: SocketAddr) {
        match message {
            Message::Question(question) => {
                self.asker = Some(from);
                self.tell(Input::Question(question));
                self.asker = None;
            }
            Message::Answer(answer) => self.tell(Input::Answer(answer)),
        }
    }
}
