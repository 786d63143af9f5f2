//! What goes to the other relays and comes from them, and the secret that all of them know.

use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use etcd::Client;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::tasks::spawn;
use crate::keys::{FleetSettings, Key, Keys, Value};
use crate::member::KeyValue;
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

    /// Hears and speaks there from now on.
    pub(super) fn open(&mut self, socket: UdpSocket) {
        match Peers::new(socket) {
            Ok(peers) => self.peers = Some(Rc::new(peers)),
            Err(error) => tracing::error!("the other relays are not heard: {error}"),
        }
        self.listen();
    }

    /// Takes the fleet's secret.
    pub(super) fn take_settings(&mut self, found: &KeyValue) {
        // The member tells of one that makes no sense.
        if let Ok(settings) = FleetSettings::read(&found.key, &found.value) {
            self.take(settings);
        }
    }

    /// Makes a secret for the fleet where it has none, unless another relay is faster.
    pub(super) fn make_secret(&self, client: &Client, keys: &Keys) {
        if self.secret.is_some() {
            return;
        }
        let mut secret = [0; SECRET_LEN];
        if SystemRandom::new().fill(&mut secret).is_err() {
            return;
        }
        let secret = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let value = FleetSettings { secret }.write();
        let key = keys.text(&Key::Settings);
        let client = client.clone();
        spawn(async move {
            let put = etcd::Txn::new()
                .when(etcd::Compare::absent(key.as_str()))
                .then(etcd::Op::put(key.as_str(), value));
            if let Err(error) = client.txn(put, PATIENCE).await {
                tracing::debug!(%error, "the fleet has no secret yet");
            }
        });
    }

    pub(super) fn send(&self, to: SocketAddr, message: Message) {
        let (Some(peers), Some(secret)) = (self.peers.clone(), self.secret.clone()) else {
            return;
        };
        spawn(async move { peers.send(&secret, to, &message).await });
    }
}

/// The bytes of hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    hex.as_bytes().chunks(2).filter_map(byte).collect()
}
