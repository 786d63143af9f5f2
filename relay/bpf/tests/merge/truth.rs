//! The bytes of random packets, and what is wrong with what leaves of them.

use std::collections::BTreeMap;

use super::{Format, Kind, Message, Packet, World};

/// Packets within which a second one confirms that a stream continues elsewhere.
const CONFIRM: i64 = 16;

/// Three windows: this long after it delivered anything established a leg is foreign to a stream that no leg has
/// delivered since.
const PATIENCE_US: u64 = 3 * 400_000;

/// What has been delivered of the streams of one key, which begin anew by jumps.
#[derive(Default)]
struct Established {
    /// When the last of it was delivered.
    at_us: u64,
    /// Established runs of numbers, a jump's since it was confirmed: each leg's newest message, plus one.
    runs: BTreeMap<Option<u32>, [u32; 3]>,
    /// The last unconfirmed number of a leg, if nothing of the stream has continued there since.
    unconfirmed: [Option<u64>; 3],
}

impl Established {
    /// Returns whether a packet can be recognised as the stream's.
    fn accepts(&mut self, leg: usize, packet: &Packet, message: Message, format: Format) -> bool {
        let Packet { number, count, .. } = *packet;
        let is_second = |(other, unconfirmed): (usize, &Option<u64>)| {
            unconfirmed.is_some_and(|unconfirmed| {
                let apart = ahead(number, unconfirmed, format).abs();
                apart <= CONFIRM * i64::from(count) && (other != leg || apart > 0)
            })
        };
        let is_run = message.jump.is_none() || self.runs.contains_key(&message.jump);
        let is_confirmed = is_run || self.unconfirmed.iter().enumerate().any(is_second);
        if message.is_excused || !is_confirmed {
            self.unconfirmed[leg] = Some(number);
            return false;
        }
        let newest = &mut self.runs.entry(message.jump).or_default()[leg];
        if packet.message >= *newest {
            *newest = packet.message + 1;
            self.unconfirmed[leg] = None;
        }
        true
    }
}

/// The key of a packet's stream; without keys all is one stream.
pub(super) const fn key(packet: &Packet, format: Format) -> u32 {
    match format {
        Format::Mdp3 => 0,
        _ => packet.key,
    }
}

/// How far a number is ahead of another.
pub(super) fn ahead(a: u64, b: u64, format: Format) -> i64 {
    match format {
        Format::Rtp => i64::from(a.wrapping_sub(b) as i16),
        _ => a.wrapping_sub(b) as i64,
    }
}

impl World {
    /// For each message whether it has to leave: a leg delivered it when it could be recognised as the stream's.
    fn have_to_leave(&self) -> Vec<bool> {
        let mut have_to = vec![false; self.messages.len()];
        let mut streams = BTreeMap::<u32, Established>::new();
        // When each leg last delivered something established.
        let mut legs = [0; 3];
        for arrival in &self.arrivals {
            let packet = &self.packets[arrival.packet];
            let messages = packet.message as usize..(packet.message + packet.count) as usize;
            if packet.kind == Kind::Numbered && self.format != Format::Payload {
                let stream = streams.entry(key(packet, self.format)).or_default();
                let is_away = |at_us: u64| arrival.at_us > at_us + PATIENCE_US;
                let is_foreign = is_away(legs[arrival.leg])
                    && is_away(stream.at_us)
                    && !legs.iter().all(|at_us| is_away(*at_us));
                let message = self.messages[messages.start];
                if is_foreign || !stream.accepts(arrival.leg, packet, message, self.format) {
                    continue;
                }
                stream.at_us = arrival.at_us;
                legs[arrival.leg] = arrival.at_us;
            }
            have_to[messages].fill(true);
        }
        have_to
    }

    /// A packet's payload; its last bytes identify it.
    pub(crate) fn payload(&self, index: usize) -> Vec<u8> {
        let packet = &self.packets[index];
        let is_numbered = packet.kind == Kind::Numbered;
        let number = if is_numbered { packet.number } else { 0 };
        let mut payload = Vec::with_capacity(64);
        match self.format {
            Format::Rtp => {
                payload.extend([0x80, if is_numbered { 33 } else { 200 }]);
                payload.extend((packet.number as u16).to_be_bytes());
                payload.extend([0; 4]);
                payload.extend(packet.key.to_be_bytes());
            }
            Format::MoldUdp64 => {
                payload.extend(format!("{:010}", packet.key).bytes());
                payload.extend(packet.number.to_be_bytes());
                let count = if is_numbered { packet.count as u16 } else { 0 };
                payload.extend(count.to_be_bytes());
            }
            Format::Mdp3 => {
                payload.extend((number as u32).to_le_bytes());
                payload.extend([0; 8]);
            }
            Format::Sessions => {
                payload.extend(packet.key.to_be_bytes());
                payload.extend((number as u32).to_be_bytes());
            }
            Format::Payload => payload.extend([7; 12]),
        }
        payload.extend([packet.key as u8; 20]);
        payload.extend((index as u32).to_be_bytes());
        payload
    }

    /// What is wrong with what left; `None`: nothing.
    pub(crate) fn judge(&self, left: impl IntoIterator<Item = usize>) -> Option<String> {
        let mut times = vec![0u32; self.messages.len()];
        for packet in left {
            let Packet { message, count, .. } = self.packets[packet];
            (message..message + count).for_each(|message| times[message as usize] += 1);
        }
        let mut missing = Vec::new();
        let mut twice = Vec::new();
        let have_to = self.have_to_leave();
        for (number, times) in times.iter().enumerate() {
            if *times > 1 && !self.is_recut {
                twice.push(number);
            }
            if *times == 0 && have_to[number] && !self.messages[number].is_excused {
                missing.push(number);
            }
        }
        (missing.len() + twice.len() > 0).then(|| {
            let of = |messages: &[usize]| {
                let first = messages.first().map(|message| {
                    self.packets.iter().enumerate().find(|(_, packet)| {
                        (packet.message..packet.message + packet.count).contains(&(*message as u32))
                    })
                });
                format!("{} ({:?})", messages.len(), first.flatten())
            };
            format!(
                "{:?}, {} legs, {} streams, recut {}, of {} messages {} missing, {} twice",
                self.format,
                self.legs,
                self.streams,
                self.is_recut,
                self.messages.len(),
                of(&missing),
                of(&twice)
            )
        })
    }
}
