//! Capture files that `mcr send` replays, and payloads that `mcr receive` parses.

use traffic::capture::Capture;
use traffic::framing;
use traffic::payload::{self, Payload};
use traffic::sequence::Sequence;

/// Reads the bytes as a capture, as a payload, and as sequence numbers.
///
/// # Panics
/// If a capture claims more datagrams than its bytes can hold.
pub fn capture(data: &[u8]) {
    if let Ok(capture) = Capture::read(data) {
        // A datagram takes 8 bytes of UDP header at least.
        assert!(capture.datagrams() <= data.len() / 8);
        assert!(capture.largest_payload() <= data.len());
        assert!(capture.flows.len() <= capture.datagrams());
        let _ = capture.length_ns();
    }
    let framed = framing::recognise(data);
    if let Some(packets) = framed.ts {
        framing::ts_packets(packets).for_each(drop);
    }
    if let Payload::Good(stamp) | Payload::Corrupt(stamp) = payload::read(data) {
        follow([stamp.sequence, 0, u64::MAX].into_iter());
    }
    let numbers = data.chunks_exact(8).filter_map(|bytes| bytes.first_chunk());
    follow(numbers.map(|bytes| u64::from_le_bytes(*bytes)));
}

fn follow(mut numbers: impl Iterator<Item = u64>) {
    let Some(first) = numbers.next() else {
        return;
    };
    let mut sequence = Sequence::starting_at(first);
    let mut count = 1;
    for number in numbers {
        sequence.record(number);
        let _ = sequence.is_plausible(number.wrapping_add(1));
        count += 1;
    }
    assert_eq!(sequence.distinct() + sequence.duplicated(), count);
    let _ = sequence.lost();
}
