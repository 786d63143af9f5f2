//! MPEG-TS: whether each PID's continuity counter continues (ISO/IEC 13818-1, 2.4.3.3, and the continuity count
//! error of ETSI TR 101 290).
//!
//! The counter increases with every packet that has payload, is unchanged in one that has only an adaptation
//! field, may jump where the discontinuity flag is set, and one packet may be sent twice in a row.

use crate::mpeg_ts::{Header, NULL_PID, PACKET, PAYLOAD, SYNC};

const PIDS: usize = 8192;
/// The PID was seen; its last counter is in the lower four bits.
const SEEN: u8 = 0x80;
/// Its last packet has already been repeated.
const TWICE: u8 = 0x40;

/// Follows the packets of one stream.
#[derive(Clone, Debug, Default)]
pub struct Ts {
    /// Packets, including stuffing.
    pub packets: u64,
    /// Packets that do not continue from the last one of their PID.
    pub continuity_errors: u64,
    /// Packets that the sender marks as broken; the rest of them is not read.
    pub transport_errors: u64,
    /// Packets that do not begin with the sync byte.
    pub sync_errors: u64,
    /// PIDs seen so far, except stuffing.
    pub pids: u64,
    /// One byte for each PID; empty in a value that inspects nothing.
    table: Box<[u8]>,
}

impl Ts {
    /// Makes room for every PID.
    pub fn new() -> Self {
        Self {
            table: vec![0; PIDS].into_boxed_slice(),
            ..Self::default()
        }
    }

    /// Takes a payload if it is a whole number of packets and the first one begins like one.
    pub fn datagram(&mut self, payload: &[u8]) -> bool {
        let whole = !payload.is_empty() && payload.len().is_multiple_of(PACKET);
        if !whole || payload[0] != SYNC {
            return false;
        }
        for packet in payload.chunks_exact(PACKET) {
            self.packet(packet);
        }
        true
    }

    fn packet(&mut self, packet: &[u8]) {
        self.packets += 1;
        let Some(header) = Header::read(packet) else {
            self.sync_errors += 1;
            return;
        };
        if header.transport_error {
            self.transport_errors += 1;
            return;
        }
        let Header {
            pid,
            adaptation,
            counter,
            ..
        } = header;
        // No payload and no adaptation field is reserved: decoders discard the packet.
        if pid == NULL_PID || adaptation == 0 {
            return;
        }
        let Some(state) = self.table.get_mut(usize::from(pid)) else {
            return;
        };
        let last = *state & 0x0f;
        let mut next = SEEN | counter;
        if *state & SEEN == 0 {
            self.pids += 1;
        } else if header.may_jump {
            // Whatever its value, the counter starts anew from it.
        } else if adaptation & PAYLOAD == 0 {
            self.continuity_errors += u64::from(counter != last);
        } else if counter == last && *state & TWICE == 0 {
            next |= TWICE;
        } else if counter != (last + 1) & 0x0f {
            self.continuity_errors += 1;
        }
        *state = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpeg_ts::{ADAPTATION, packet};

    fn run(packets: &[[u8; PACKET]]) -> Ts {
        let mut ts = Ts::new();
        for packet in packets {
            assert!(ts.datagram(packet));
        }
        ts
    }

    fn counters(counters: &[u8]) -> Ts {
        let packets: Vec<_> = counters
            .iter()
            .map(|n| packet(0x100, *n, PAYLOAD))
            .collect();
        run(&packets)
    }

    #[test]
    fn counters_go_on_around_sixteen() {
        assert_eq!(counters(&[14, 15, 0, 1]).continuity_errors, 0);
        assert_eq!(counters(&[14, 0]).continuity_errors, 1);
    }

    #[test]
    fn a_packet_may_be_sent_twice_but_not_three_times() {
        assert_eq!(counters(&[1, 2, 2, 3, 3, 4]).continuity_errors, 0);
        assert_eq!(counters(&[1, 2, 2, 2, 3]).continuity_errors, 1);
    }

    #[test]
    fn an_adaptation_field_alone_does_not_count() {
        let ts = run(&[
            packet(1, 5, PAYLOAD),
            packet(1, 5, ADAPTATION),
            packet(1, 5, ADAPTATION),
            packet(1, 6, PAYLOAD | ADAPTATION),
        ]);
        assert_eq!(ts.continuity_errors, 0);
        let ts = run(&[packet(1, 5, PAYLOAD), packet(1, 6, ADAPTATION)]);
        assert_eq!(ts.continuity_errors, 1);
    }

    #[test]
    fn the_discontinuity_flag_permits_a_jump() {
        let mut jump = packet(1, 12, PAYLOAD | ADAPTATION);
        jump[5] = 0x80;
        let ts = run(&[packet(1, 5, PAYLOAD), jump, packet(1, 13, PAYLOAD)]);
        assert_eq!(ts.continuity_errors, 0);
        jump[4] = 0;
        let ts = run(&[packet(1, 5, PAYLOAD), jump]);
        assert_eq!(ts.continuity_errors, 1);
    }

    #[test]
    fn each_pid_has_its_own_counter_and_stuffing_none() {
        let ts = run(&[
            packet(1, 5, PAYLOAD),
            packet(2, 9, PAYLOAD),
            packet(NULL_PID, 3, PAYLOAD),
            packet(NULL_PID, 9, PAYLOAD),
            packet(1, 6, PAYLOAD),
            packet(2, 10, PAYLOAD),
        ]);
        assert_eq!((ts.packets, ts.pids, ts.continuity_errors), (6, 2, 0));
    }

    #[test]
    fn what_is_marked_broken_is_not_inspected() {
        let mut broken = packet(1, 9, PAYLOAD);
        broken[1] |= 0x80;
        let ts = run(&[packet(1, 5, PAYLOAD), broken, packet(1, 6, PAYLOAD)]);
        assert_eq!((ts.transport_errors, ts.continuity_errors), (1, 0));
        let mut two = [packet(1, 5, PAYLOAD), packet(1, 6, PAYLOAD)].concat();
        two[PACKET] = 0;
        let mut ts = Ts::new();
        assert!(ts.datagram(&two));
        assert_eq!((ts.sync_errors, ts.packets), (1, 2));
    }

    #[test]
    fn other_payloads_are_left_alone() {
        let mut ts = Ts::new();
        assert!(!ts.datagram(&[]));
        assert!(!ts.datagram(&[SYNC; 187]));
        assert!(!ts.datagram(&[0; PACKET]));
        assert_eq!(ts.packets, 0);
    }
}
