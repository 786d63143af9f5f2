//! What a daemon before left on disk and in memory, and what its workers and its keeper say: whatever
//! it is, the next daemon starts.

use crate::bytes::Bytes;

/// Divides the snapshot from its journal.
const JOURNAL: &[u8] = b"\n---\n";
/// Longer conversations only take longer, and the answers have to fit into a socket.
const CONVERSATION_MAX: usize = 1 << 12;

/// A snapshot of running rules or of memberships, and the lines of its journal.
///
/// # Panics
/// Where rules that are valid are not the same once they were written down again.
pub fn journal(data: &[u8]) {
    let middle = data.windows(JOURNAL.len()).position(|at| at == JOURNAL);
    let middle = middle.unwrap_or(data.len());
    let (snapshot, journal) = data.split_at(middle);
    let lines = journal.strip_prefix(JOURNAL).unwrap_or_default();
    daemon::fuzz_entry::journal(snapshot, lines);
}

/// What stands behind the first byte: messages of a worker's control socket, the file of the
/// counters' owners, labels of descriptors, or messages to the keeper.
pub fn handover(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let kind = bytes.byte();
    let rest = bytes.rest();
    match kind % 4 {
        0 => dataplane::fuzz_entry::messages(rest),
        1 => {
            let words = rest.chunks_exact(8);
            let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
            let words: Vec<u64> = words.take(256).collect();
            dataplane::fuzz_entry::owners(&words);
        }
        2 => dataplane::fuzz_entry::label(&String::from_utf8_lossy(rest)),
        _ => daemon::fuzz_entry::keeper(&rest[..rest.len().min(CONVERSATION_MAX)]),
    }
}
