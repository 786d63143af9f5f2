//! Super-packets and fragments on merged lines.

use std::time::Duration;

use anyhow::Result;
use dataplane::counters::DropReason;
use lab::frame::FrameSender;
use lab::socket::payload;
use packet::craft::Craft;

use super::{LINES, PORT, Stream, assert_lawful, dropped, how, long, merged};
use crate::bed::Bed;

#[test]
fn of_a_super_packet_what_is_new_leaves() -> Result<()> {
    let mut stream = Stream::new(1, long())?;
    let group = stream.bed.address(LINES[1]);
    let segmented = |stream: &mut Stream, first: u64, count: u64| {
        stream.sent += count;
        stream.sender.send_segmented(group, PORT, first, count, 100)
    };
    // Some have passed: at the beginning, alone, at the end.
    stream.send(0, [0, 1, 4, 7])?;
    stream.settled()?;
    segmented(&mut stream, 0, 8)?;
    stream.expect(0..8)?;
    // All are new.
    segmented(&mut stream, 8, 40)?;
    stream.expect(8..48)?;
    // None is.
    stream.send(0, 8..48)?;
    segmented(&mut stream, 8, 7)?;
    segmented(&mut stream, 48, 20)?;
    stream.expect(48..68)?;
    // Each second one, of many.
    stream.send(0, (68..132).step_by(2))?;
    stream.settled()?;
    segmented(&mut stream, 68, 64)?;
    stream.expect(68..132)?;
    let counters = stream.settled()?;
    let output = &counters.outputs[&0];
    assert_eq!((output.sent.packets, output.sent.bytes), (132, 13_200));
    assert_eq!(counters.received.bytes, 100 * stream.sent);
    assert_eq!(dropped(&counters, DropReason::Duplicate), stream.sent - 132);
    Ok(())
}

/// More pieces than a batch has room for.
#[test]
fn many_super_packets_that_wait_together_are_cut() -> Result<()> {
    const SEGMENTS: u64 = 16;
    const SUPER_PACKETS: u64 = 250;
    const PACKETS: u64 = SEGMENTS * SUPER_PACKETS;
    let mut stream = Stream::new(1, how(Duration::from_secs(5), 8_192))?;
    for start in (0..PACKETS).step_by(400) {
        stream.send(0, (start..start + 400).step_by(2))?;
        stream.settled()?;
    }
    let (sender, group) = (&stream.sender, stream.bed.address(LINES[1]));
    stream.bed.while_workers_sleep(|| {
        let starts = (0..PACKETS).step_by(SEGMENTS as usize);
        let mut starts = starts.map(|start| (start, SEGMENTS));
        starts.try_for_each(|(start, count)| sender.send_segmented(group, PORT, start, count, 100))
    })?;
    stream.sent += PACKETS;
    stream.expect(0..PACKETS)?;
    let counters = stream.settled()?;
    assert_eq!(dropped(&counters, DropReason::Duplicate), PACKETS / 2);
    Ok(())
}

#[test]
fn fragments_follow_the_first_of_their_datagram() -> Result<()> {
    let mut bed = Bed::new(1)?;
    bed.apply(merged(&bed, "cam1", long(), &[0, 1]))?;
    let wire = FrameSender::open((&bed.chain.sender, "veth0"))?;
    let piece = |line: usize, id: u16, fragment: u16, number: u64| -> Result<Vec<u8>> {
        let to = format!("{}:{PORT}", LINES[line]).parse()?;
        let craft = Craft {
            id,
            fragment,
            ..Craft::new("10.0.0.1:4000".parse()?, to, payload(number, 96))
        };
        Ok(craft.frame())
    };
    const FIRST: u16 = 0x2000;
    const LAST: u16 = 13;
    // The first line's passes, repeated or not; the other's does not.
    for (line, fragment) in [(0, FIRST), (0, FIRST), (0, LAST), (1, FIRST), (1, LAST)] {
        wire.send(&piece(line, 7, fragment, 1)?)?;
    }
    let counters = bed.settled("cam1", 5)?;
    assert_lawful(&counters);
    assert_eq!(counters.outputs[&0].sent.packets, 2);
    assert_eq!(dropped(&counters, DropReason::Duplicate), 3);
    let by_second = &counters.inputs[LINES[1]].dropped;
    assert_eq!(by_second.0[DropReason::Duplicate as usize], 2);
    // The verdict on the first is not known yet.
    wire.send(&piece(1, 8, LAST, 1)?)?;
    let counters = bed.settled("cam1", 6)?;
    assert_eq!(counters.outputs[&0].sent.packets, 3);
    Ok(())
}
