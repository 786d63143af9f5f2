//! State that a previous daemon left on disk and in memory, and messages of its workers and its keeper:
//! whatever they contain, the next daemon starts.

use crate::bytes::Bytes;

/// Separates the snapshot from its journal.
const JOURNAL: &[u8] = b"\n---\n";
/// Longer conversations only take longer, and the answers have to fit into a socket.
const CONVERSATION_MAX: usize = 1 << 12;

/// A snapshot of running rules or of memberships, and the lines of its journal.
///
/// # Panics
/// If valid rules are not the same after they were written again.
pub fn journal(data: &[u8]) {
    let divider = data.windows(JOURNAL.len()).position(|at| at == JOURNAL);
    let (snapshot, journal) = data.split_at(divider.unwrap_or(data.len()));
    let lines = journal.strip_prefix(JOURNAL).unwrap_or_default();
    daemon::fuzz_entry::journal(snapshot, lines);
}

/// By the first byte, the rest is messages of a worker's control socket, the file of the counters'
/// owners, labels of descriptors, or messages to the keeper.
pub fn handover(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let kind = bytes.byte();
    let rest = bytes.rest();
    match kind % 4 {
        0 => dataplane::fuzz_entry::messages(rest),
        1 => {
            let words: Vec<u64> = rest
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                .take(256)
                .collect();
            dataplane::fuzz_entry::owners(&words);
        }
        2 => dataplane::fuzz_entry::label(&String::from_utf8_lossy(rest)),
        _ => daemon::fuzz_entry::keeper(&rest[..rest.len().min(CONVERSATION_MAX)]),
    }
}
