//! What packets of chance look like, and what is wrong with what leaves of them.

use std::collections::BTreeMap;

use super::{Format, HELD_BACK, Kind, Packet, World};

impl World {
    /// A packet's payload; its last bytes say which it is.
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
        let count = if self.format == Format::MoldUdp64 {
            30
        } else {
            1
        };
        let mut missing = Vec::new();
        let mut twice = Vec::new();
        // Of each jump, how many of its messages were brought, and of the first of them held back.
        let mut jumps = BTreeMap::<u32, (u32, u32)>::new();
        for (number, (message, times)) in self.messages.iter().zip(&times).enumerate() {
            if *times > 1 && !self.is_recut {
                twice.push(number);
            }
            if !message.is_brought || message.is_excused {
                continue;
            }
            let jump = message.jump.map(|run| jumps.entry(run).or_default());
            let is_missing = *times == 0;
            match jump {
                Some((brought, held)) if *brought < HELD_BACK.1 * count => {
                    (*brought, *held) = (*brought + 1, *held + u32::from(is_missing));
                }
                _ if is_missing => missing.push(number),
                _ => {}
            }
        }
        let held = jumps
            .values()
            .filter(|(_, held)| *held > HELD_BACK.0 * count)
            .count();
        (missing.len() + twice.len() + held > 0).then(|| {
            let of = |messages: &[usize]| {
                let first = messages.first().map(|message| self.packets.iter().enumerate().find(|(_, packet)| {
                    (packet.message..packet.message + packet.count).contains(&(*message as u32))
                }));
                format!("{} ({:?})", messages.len(), first.flatten())
            };
            format!(
                "{:?}, {} legs, {} streams, recut {}, of {} messages {} missing, {} twice, {held} jumps held \
                 back for too long",
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
