//! A daemon that relays nothing: it records when gates open, and can be made to stall.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use api::reply::FleetCounters;
use fleet::host::{BoxFuture, Event, Fitness};
use parking_lot::Mutex;
use rules::document::RuleDocument;
use sys::clock::boottime_ns;

/// The gates of all relays.
#[derive(Debug, Default)]
pub(super) struct Board {
    shares: Mutex<BTreeMap<String, Share>>,
    openings: AtomicU64,
    overlaps: AtomicU64,
}

/// One share: until when each relay's gate is open, and the last opening.
#[derive(Debug, Default)]
struct Share {
    until_ns: BTreeMap<u16, u64>,
    opened: Option<(u16, Instant)>,
}

impl Board {
    fn set(&self, share: &str, relay: u16, until_ns: u64) {
        let now_ns = boottime_ns();
        let mut shares = self.shares.lock();
        let share = shares.entry(share.to_owned()).or_default();
        let before = share.until_ns.insert(relay, until_ns).unwrap_or_default();
        if until_ns <= now_ns || before > now_ns {
            return;
        }
        let mut others = share.until_ns.iter().filter(|(other, _)| **other != relay);
        if others.any(|(_, until)| *until > now_ns) {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        // A share that a late beat reopens has not changed hands.
        if share.opened.is_none_or(|(other, _)| other != relay) {
            share.opened = Some((relay, Instant::now()));
            self.openings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many shares are open.
    pub(super) fn open(&self) -> usize {
        let now_ns = boottime_ns();
        let shares = self.shares.lock();
        let open = shares
            .values()
            .filter(|share| share.until_ns.values().any(|until| *until > now_ns));
        open.count()
    }

    /// How often shares have changed hands.
    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }

    /// How often a gate opened while another relay's was open.
    pub(super) fn overlaps(&self) -> u64 {
        self.overlaps.load(Ordering::Relaxed)
    }

    /// The number of shares of the relay that has the fewest, and of the one that has the most.
    pub(super) fn held(&self, relays: u16) -> (usize, usize) {
        let held = (0..relays).map(|relay| self.held_by(&[relay]).len());
        held.fold((usize::MAX, 0), |(least, most), held| {
            (least.min(held), most.max(held))
        })
    }

    /// The shares that these relays opened last, and which of them.
    pub(super) fn held_by(&self, relays: &[u16]) -> Vec<(String, u16)> {
        let shares = self.shares.lock();
        let held = shares.iter().filter_map(|(name, share)| {
            let (relay, _) = share.opened.filter(|(relay, _)| relays.contains(relay))?;
            Some((name.clone(), relay))
        });
        held.collect()
    }

    /// Which relay opened a share last, if that is none of `but`, and when.
    pub(super) fn holder(&self, share: &str, but: &[u16]) -> Option<(u16, Instant)> {
        let opened = self.shares.lock().get(share)?.opened;
        opened.filter(|(relay, _)| !but.contains(relay))
    }
}

/// The daemon of one relay.
#[derive(Debug)]
pub(super) struct Host {
    number: u16,
    board: Arc<Board>,
    is_stopping: AtomicBool,
    stopped_at: Mutex<Option<Instant>>,
}

impl Host {
    pub(super) const fn new(number: u16, board: Arc<Board>) -> Self {
        Self {
            number,
            board,
            is_stopping: AtomicBool::new(false),
            stopped_at: Mutex::new(None),
        }
    }

    /// Makes the relay stall at its next call of its daemon, as at SIGSTOP: its one thread is blocked.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }

    /// When it stalled.
    pub(super) fn stopped_at(&self) -> Option<Instant> {
        *self.stopped_at.lock()
    }

    fn stall(&self) {
        *self.stopped_at.lock() = Some(Instant::now());
        loop {
            thread::park();
        }
    }
}

impl fleet::host::Host for Host {
    fn install(
        &self,
        _rules: Vec<RuleDocument>,
        _by: Option<String>,
    ) -> BoxFuture<'_, Result<BTreeMap<String, String>, String>> {
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    fn set_gate(&self, share: &str, until_ns: u64) {
        self.board.set(share, self.number, until_ns);
    }

    fn fitness(&self) -> Fitness {
        if self.is_stopping.load(Ordering::SeqCst) {
            self.stall();
        }
        Fitness::default()
    }

    fn counters(&self) -> BoxFuture<'_, BTreeMap<String, FleetCounters>> {
        Box::pin(async { BTreeMap::new() })
    }

    fn alive(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn tell(&self, _event: Event) {}
}
