//! Pinned maps: whatever was written into them, the next daemon takes over what makes sense, restores
//! the rest, and its rules relay, count and change as with new maps.

mod relay;
mod rules;

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use relay::Relay;

/// Anything that takes longer never ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Channels to the thread that owns the maps: its inputs, and a message for each that it survived.
struct Turns {
    inputs: Sender<Vec<u8>>,
    survived: Receiver<()>,
}

/// Each group of bytes selects a map, the harm, the element, and the bytes to write. State that one
/// input leaves is there for the next.
///
/// # Panics
/// If the maps' next owner does, or relays, counts or changes rules otherwise than with new maps.
pub fn pinned(data: &[u8]) {
    static TURNS: OnceLock<Option<Mutex<Turns>>> = OnceLock::new();
    let Some(turns) = TURNS.get_or_init(start) else {
        return;
    };
    // Poisoned: an earlier input was not survived, so this one is not either.
    let turns = turns.lock();
    const ENDED: &str = "the thread that has the maps ended";
    turns.inputs.send(data.to_vec()).expect(ENDED);
    let survived = turns.survived.recv_timeout(PATIENCE);
    survived.unwrap_or_else(|error| panic!("{ENDED}, or takes for ever: {error}"));
}

/// Opens a relay in namespaces of its own, which end with the process; prints the reason if it cannot.
fn start() -> Option<Mutex<Turns>> {
    let (inputs, queue) = channel::<Vec<u8>>();
    let (done, survived) = channel();
    let (opened, startup) = channel();
    let serve = move || {
        let (relay, reason) = match Relay::open() {
            Ok(relay) => (Some(relay), None),
            Err(reason) => (None, Some(reason)),
        };
        let _ = opened.send(reason);
        let Some(mut relay) = relay else { return };
        for input in queue {
            relay.survive(&input);
            let _ = done.send(());
        }
    };
    let thread = thread::Builder::new().name("pinned".to_owned());
    thread.spawn(serve).expect("a thread more");
    match startup.recv().expect("the relay opens or says why not") {
        None => Some(Mutex::new(Turns { inputs, survived })),
        Some(reason) => {
            eprintln!("skipped: pinned maps: {reason}");
            None
        }
    }
}
