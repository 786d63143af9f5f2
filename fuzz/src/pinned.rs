//! Pinned maps: whatever somebody wrote into them, the next daemon takes over what makes sense, brings
//! back the rest, and its rules relay, count and change as they would from nothing.

mod relay;
mod rules;

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use relay::Relay;

/// What takes longer does not come to an end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The thread that has the maps: where inputs go, and what it says of each.
struct Turns {
    inputs: Sender<Vec<u8>>,
    survived: Receiver<()>,
}

/// Each group of bytes says which map, what harm, which element, and what to put there. What an input
/// leaves, the next one finds.
///
/// # Panics
/// Where the maps' next owner does, or relays, counts or changes rules otherwise than from nothing.
pub fn pinned(data: &[u8]) {
    static TURNS: OnceLock<Option<Mutex<Turns>>> = OnceLock::new();
    let Some(turns) = TURNS.get_or_init(start) else {
        return;
    };
    // Poisoned: an earlier input was not survived, so this one is not either.
    let turns = turns.lock();
    let gone = "the thread that has the maps ended";
    turns.inputs.send(data.to_vec()).expect(gone);
    let survived = turns.survived.recv_timeout(PATIENCE);
    survived.unwrap_or_else(|error| panic!("{gone}, or takes for ever: {error}"));
}

/// Opens a relay in namespaces of its own, which end with the process; says why where there is none.
fn start() -> Option<Mutex<Turns>> {
    let (inputs, queue) = channel::<Vec<u8>>();
    let (ends, survived) = channel();
    let (opened, found) = channel();
    let serve = move || {
        let relay = Relay::open();
        let (relay, reason) = match relay {
            Ok(relay) => (Some(relay), None),
            Err(reason) => (None, Some(reason)),
        };
        let _ = opened.send(reason);
        let Some(mut relay) = relay else { return };
        for input in queue {
            relay.survive(&input);
            let _ = ends.send(());
        }
    };
    let thread = thread::Builder::new().name("pinned".to_owned());
    thread.spawn(serve).expect("a thread more");
    match found.recv().expect("the relay opens or says why not") {
        None => Some(Mutex::new(Turns { inputs, survived })),
        Some(reason) => {
            eprintln!("skipped: pinned maps: {reason}");
            None
        }
    }
}
