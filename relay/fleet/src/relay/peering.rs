//! Messages to and from the other relays, and the secret that all of them share.

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

/// This relay's exchange with the others.
pub(super) struct Peering {
    /// `None` until the address is known at which the others reach this relay.
    peers: Option<Rc<Peers>>,
    engine: mpsc::Sender<(Message, SocketAddr)>,
    /// The value in etcd, if it is valid.
    settings: Option<FleetSettings>,
    secret: Option<Rc<Secret>>,
    listener: Option<JoinHandle<()>>,
}

impl Peering {
    pub(super) fn new(engine: mpsc::Sender<(Message, SocketAddr)>) -> Self {
        Self {
            peers: None,
            engine,
            settings: None,
            secret: None,
            listener: None,
        }
    }

    /// Receives and sends with this secret from now on.
    fn take(&mut self, settings: FleetSettings) {
        if self.settings.as_ref() == Some(&settings) {
            return;
        }
        let secret = Rc::new(Secret::new(&bytes(&settings.secret)));
        self.settings = Some(settings);
        self.secret = Some(secret);
        self.listen();
    }

    /// Receives messages signed with the secret, once there are a socket and a secret.
    fn listen(&mut self) {
        let (Some(peers), Some(secret)) = (self.peers.clone(), self.secret.clone()) else {
            return;
        };
        let engine = self.engine.clone();
        let listener =
            spawn(async move { while engine.send(peers.next(&secret).await).await.is_ok() {} });
        if let Some(previous) = self.listener.replace(listener) {
            previous.abort();
        }
    }

    /// Receives and sends over this socket from now on.
    pub(super) fn open(&mut self, socket: UdpSocket) {
        match Peers::new(socket) {
            Ok(peers) => self.peers = Some(Rc::new(peers)),
            Err(error) => tracing::error!("the other relays are not heard: {error}"),
        }
        self.listen();
    }

    /// Takes the fleet's secret.
    pub(super) fn take_settings(&mut self, kv: &KeyValue) {
        // The member reports an invalid one.
        if let Ok(settings) = FleetSettings::read(&kv.key, &kv.value) {
            self.take(settings);
        }
    }

    /// Makes a secret for the fleet if it has none, unless another relay is faster.
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
