//! Random streams and their transport: legs lose, delay, swap and repeat packets, fall silent and recover; streams
//! begin anew; foreign packets are among them. And the truth: each message that a leg delivered leaves, and once.
//! Exempt is what may be held back according to the guide: distant numbers before a second packet in a row
//! confirms them.

mod truth;

use std::collections::{BTreeMap, BTreeSet};

/// Random numbers that a seed repeats (xorshift64*).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3 | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit.max(1)
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// How packets are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Rtp,
    MoldUdp64,
    Mdp3,
    /// A number of four bytes and a session of four.
    Sessions,
    Payload,
}

/// One packet, as a leg may deliver it.
#[derive(Clone, Copy, Debug)]
struct Packet {
    kind: Kind,
    key: u32,
    number: u64,
    /// The messages in it: the first of them, among all of the world, and how many.
    message: u32,
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Numbered,
    /// RTCP, a heartbeat or a packet outside the sequence.
    Unnumbered,
}

/// A message: whether some leg delivered it and it has to leave.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    is_delivered: bool,
    is_excused: bool,
    /// The run of numbers that it belongs to, if that began by a jump.
    jump: Option<u32>,
}

/// A packet on a leg.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) at_us: u64,
    pub(super) leg: usize,
    pub(super) packet: usize,
}

/// All packets and their arrivals.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) format: Format,
    pub(super) legs: usize,
    streams: u64,
    packets: Vec<Packet>,
    pub(super) arrivals: Vec<Arrival>,
    messages: Vec<Message>,
    /// Legs cut the same messages into different packets.
    pub(super) is_recut: bool,
}

/// The faults of a leg.
#[derive(Clone, Copy, Debug)]
struct Leg {
    /// In a thousand.
    loss: u64,
    burst: u64,
    repeats: u64,
    delay_us: u64,
    jitter_us: u64,
    lost_until: u64,
    cut_us: (u64, u64),
}

/// A leg that recovers after three windows is foreign to a stream that the others do not deliver either: where one leg
/// is away for so long, none of them is for a window.
fn keep_one(legs: &mut [Leg]) {
    let away = |leg: &Leg| leg.cut_us.1 - leg.cut_us.0;
    let longest = legs.iter().map(away).max().unwrap_or(0);
    if longest > 1_100_000 {
        for leg in legs.iter_mut().filter(|leg| away(leg) < longest) {
            leg.cut_us.1 = leg.cut_us.1.min(leg.cut_us.0 + 300_000);
        }
    }
}

/// The least length of a jump, in numbers: more than the distance of any recorded numbers.
const FAR: u64 = 70_000;
const FAR_RTP: u64 = 9_000;

impl World {
    /// The world of a seed, with its seconds and packets a second on each leg.
    pub(super) fn new(random: &mut Random, seconds: u64, rate: u64) -> Self {
        let format = random.choose(&[
            Format::Rtp,
            Format::Rtp,
            Format::MoldUdp64,
            Format::Mdp3,
            Format::Sessions,
            Format::Payload,
        ]);
        let has_keys = !matches!(format, Format::Mdp3);
        let most = random.choose(&[1, 3, 30, 300]);
        let mut world = Self {
            format,
            legs: if format == Format::Payload {
                2
            } else {
                2 + random.below(2) as usize
            },
            streams: if has_keys { 1 + random.below(most) } else { 1 },
            packets: Vec::new(),
            arrivals: Vec::new(),
            messages: Vec::new(),
            is_recut: format == Format::MoldUdp64 && random.below(4) == 0,
        };
        let end_us = seconds * 1_000_000;
        // Either streams begin anew, or legs are away for long: after that what they begin is foreign.
        let restarts = random.below(2) == 0;
        let mut legs: Vec<Leg> = (0..world.legs)
            .map(|_| {
                let longest = if restarts { 600_000 } else { 1_600_000 };
                let from = random.below(end_us);
                let is_cut = random.below(2) == 0;
                Leg {
                    loss: random.choose(&[0, 10, 50, 200]),
                    burst: random.choose(&[0, 0, 4, 20]),
                    repeats: if format == Format::Payload {
                        0
                    } else {
                        random.choose(&[0, 0, 20])
                    },
                    delay_us: random.below(60_000),
                    jitter_us: random.choose(&[0, 500, 5_000]),
                    lost_until: 0,
                    cut_us: if is_cut {
                        (from, from + random.below(longest))
                    } else {
                        (0, 0)
                    },
                }
            })
            .collect();
        keep_one(&mut legs);
        world.introduce();
        for _ in 0..world.streams {
            world.stream(random, &mut legs, (end_us, rate), restarts);
        }
        world.keep_strangers_apart();
        world.arrivals.sort_by_key(|arrival| arrival.at_us);
        world
    }

    /// A foreign packet cannot be distinguished from one of the stream with a near number, even after a jump: none
    /// arrives.
    fn keep_strangers_apart(&mut self) {
        let near = match self.format {
            Format::MoldUdp64 => 65_536,
            _ => 2_048,
        };
        let (messages, packets, format) = (&self.messages, &self.packets, self.format);
        let is_excused = |packet: &Packet| messages[packet.message as usize].is_excused;
        let mut numbers = BTreeMap::<u32, BTreeSet<u64>>::new();
        for packet in packets.iter().filter(|packet| !is_excused(packet)) {
            numbers
                .entry(truth::key(packet, format))
                .or_default()
                .insert(packet.number);
        }
        let is_near = |packet: &Packet| {
            let others = numbers.get(&truth::key(packet, format)).into_iter();
            others
                .flatten()
                .any(|number| truth::ahead(packet.number, *number, format).abs() <= near)
        };
        self.arrivals.retain(|arrival| {
            let packet = &packets[arrival.packet];
            !(is_excused(packet) && is_near(packet))
        });
    }

    /// All legs deliver the same first packets, one after the other: none is foreign.
    fn introduce(&mut self) {
        let number = if self.format == Format::Rtp {
            5
        } else {
            1_000_000_000
        };
        for step in 0..3 {
            let packet = self.packet(Kind::Numbered, 1, number + step, 1);
            for leg in 0..self.legs {
                self.arrive((step + 1) * 15_000 + leg as u64 * 3_000, leg, packet);
            }
        }
    }

    fn stream(
        &mut self,
        random: &mut Random,
        legs: &mut [Leg],
        (end_us, rate): (u64, u64),
        restarts: bool,
    ) {
        let interval = (1_000_000 * self.streams / rate).max(20);
        let most = if self.format == Format::MoldUdp64 {
            30
        } else {
            1
        };
        let count = 1 + random.below(most) as u32;
        let mut begun_us = 100_000 + random.below(interval.min(1_000_000));
        let mut key = random.below(u64::from(u32::MAX)) as u32;
        let mut number = self.some_number(random);
        // Without keys what follows the introduction is a jump.
        let mut jump = (self.format == Format::Mdp3).then_some(0);
        let mut next_restart = if restarts {
            begun_us + 500_000 + random.below(end_us)
        } else {
            u64::MAX
        };
        let strangers = random.choose(&[0, 0, 5, 30]);
        let mut at = begun_us;
        let mut steady = 0;
        // Numbers of the packets that the first leg has sent of messages, where the others cut them anew.
        let mut run = Vec::new();
        while at < end_us {
            if at >= next_restart {
                self.recut(random, legs, &mut run);
                next_restart = at + 1_000_000 + random.below(end_us);
                begun_us = at;
                let is_jump = self.format == Format::Mdp3 || random.below(2) == 0;
                jump = (is_jump && !self.is_recut).then(|| 1 + random.below(1 << 31) as u32);
                if jump.is_some() {
                    number = self.jump_from(random, number);
                } else {
                    key = random.below(u64::from(u32::MAX)) as u32;
                    number = self.some_number(random);
                }
            }
            let packet = self.packet(Kind::Numbered, key, number, count);
            self.messages_of(packet)
                .for_each(|message| message.jump = jump);
            number = self.wrapped(number + u64::from(count));
            let all = if self.is_recut { 1 } else { legs.len() };
            for (leg, faults) in legs.iter_mut().enumerate().take(all) {
                self.deliver(random, (leg, faults), at, packet);
            }
            if self.is_recut {
                run.push((at, packet));
            }
            let is_delivered = self.messages_of(packet).any(|message| message.is_delivered);
            steady = if is_delivered { steady + 1 } else { 0 };
            // The first packet after a pause, or of a stream, is not foreign.
            let strangers = if steady > 3 && at > begun_us + 3 * interval + 100_000 {
                strangers * interval / 1_000
            } else {
                0
            };
            self.company(random, legs, at, (key, number, strangers));
            at += interval;
        }
        self.recut(random, legs, &mut run);
    }

    /// Cuts the messages of a run of packets for the other legs.
    fn recut(&mut self, random: &mut Random, legs: &mut [Leg], run: &mut Vec<(u64, usize)>) {
        let (Some(&(_, first)), Some(&(_, last))) = (run.first(), run.last()) else {
            return;
        };
        let Packet { key, number, .. } = self.packets[first];
        let total = self.packets[last].number + u64::from(self.packets[last].count) - number;
        for (leg, faults) in legs.iter_mut().enumerate().skip(1) {
            let mut done = 0;
            let mut at = 0;
            while done < total {
                let count = (1 + random.below(40)).min(total - done) as u32;
                let end = number + done + u64::from(count);
                while at + 1 < run.len()
                    && self.packets[run[at].1].number + u64::from(self.packets[run[at].1].count)
                        < end
                {
                    at += 1;
                }
                // Messages of a stream are not consecutive among all: those of each packet are.
                let packet = self.packets.len();
                let message = self.message_at(run, number + done);
                self.packets.push(Packet {
                    kind: Kind::Numbered,
                    key,
                    number: number + done,
                    message,
                    count,
                });
                self.deliver(random, (leg, faults), run[at].0, packet);
                done += u64::from(count);
            }
        }
        run.clear();
    }

    fn message_at(&self, run: &[(u64, usize)], number: u64) -> u32 {
        let of = |&(_, packet): &(u64, usize)| self.packets[packet].number;
        let at = run.partition_point(|entry| of(entry) <= number) - 1;
        let packet = self.packets[run[at].1];
        packet.message + (number - packet.number) as u32
    }

    /// What else arrives with a stream's packet: a foreign packet on one leg, and packets without numbers on all.
    fn company(
        &mut self,
        random: &mut Random,
        legs: &mut [Leg],
        at: u64,
        (key, number, strangers): (u32, u64, u64),
    ) {
        if self.format == Format::Payload || self.is_recut {
            return;
        }
        if random.below(1_000) < strangers {
            let far = self.jump_from(random, number);
            let packet = self.packet(Kind::Numbered, key, far, 1);
            self.messages_of(packet)
                .for_each(|message| message.is_excused = true);
            let leg = random.below(self.legs as u64) as usize;
            self.deliver(random, (leg, &mut legs[leg]), at, packet);
        }
        if random.below(100) < 2 {
            let packet = self.packet(Kind::Unnumbered, key, number, 1);
            for (leg, faults) in legs.iter_mut().enumerate() {
                self.deliver(random, (leg, faults), at, packet);
            }
        }
    }

    fn some_number(&self, random: &mut Random) -> u64 {
        match self.format {
            Format::Rtp => random.below(65_536),
            // Far from 0, which is outside the sequence.
            _ => 10_000_000 + random.below(1_000_000_000),
        }
    }

    fn jump_from(&self, random: &mut Random, number: u64) -> u64 {
        match self.format {
            Format::Rtp => self.wrapped(number + FAR_RTP + random.below(65_536 - 2 * FAR_RTP)),
            _ => 10_000_000 + (number + FAR + random.below(1_000_000_000)) % 2_000_000_000,
        }
    }

    const fn wrapped(&self, number: u64) -> u64 {
        match self.format {
            Format::Rtp => number % 65_536,
            _ => number,
        }
    }

    fn packet(&mut self, kind: Kind, key: u32, number: u64, count: u32) -> usize {
        let message = self.messages.len() as u32;
        self.messages
            .resize(self.messages.len() + count as usize, Message::default());
        self.packets.push(Packet {
            kind,
            key,
            number,
            message,
            count,
        });
        self.packets.len() - 1
    }

    fn messages_of(&mut self, packet: usize) -> impl Iterator<Item = &mut Message> {
        let Packet { message, count, .. } = self.packets[packet];
        self.messages[message as usize..(message + count) as usize].iter_mut()
    }

    fn arrive(&mut self, at_us: u64, leg: usize, packet: usize) {
        self.messages_of(packet)
            .for_each(|message| message.is_delivered = true);
        self.arrivals.push(Arrival { at_us, leg, packet });
    }

    fn deliver(
        &mut self,
        random: &mut Random,
        (leg, faults): (usize, &mut Leg),
        at: u64,
        packet: usize,
    ) {
        let is_cut = (faults.cut_us.0..faults.cut_us.1).contains(&at);
        if random.below(1_000) < faults.loss / (faults.burst / 2).max(1) {
            faults.lost_until = self.packets.len() as u64 + random.below(faults.burst + 1);
        }
        if is_cut || (self.packets.len() as u64) <= faults.lost_until && faults.loss > 0 {
            return;
        }
        let at = at + faults.delay_us + random.below(faults.jitter_us + 1);
        self.arrive(at, leg, packet);
        if random.below(1_000) < faults.repeats {
            self.arrive(at + random.below(10_000), leg, packet);
        }
    }
}
