//! One rule's stream: rates and state, judged from successive readings of its counters.
//!
//! Any trouble keeps a stream degraded for ten seconds, so its state does not flap faster than that;
//! silence ends with the first packet.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem;

use api::reply::{HealthStats, Rates, RtpStats, State, TsStats};
use dataplane::counters::{HealthCounters, Received, Traffic};
use rules::health::{Health, Silence};
use rules::printable::things;
use rules::rule::Rule;
use rules::setting::Setting;

use super::history::TrafficHistory;
use crate::alarms::{Alarm, Alarms, Legs, Losses, Pause, Pauses, beyond, silence, unfit};

const SECOND_NS: u64 = 1_000_000_000;
/// How long trouble is remembered.
const MEMORY_NS: u64 = 10 * SECOND_NS;
/// How late or early a sample may be taken.
const SLACK_NS: u64 = SECOND_NS / 10;
/// Samples that are retained of a quiet stream: the first and the last of equal ones.
const QUIET: usize = 2;
/// Samples that are allocated at a time for a stream that is not quiet.
const ROOM: usize = 4;

/// The state of a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// For a stream that is not watched, samples between equal ones are omitted.
    samples: VecDeque<Sample>,
    /// When the last packet arrived, and since when packets arrive without a break of a second.
    last_packet_ns: Option<u64>,
    flowing_since_ns: u64,
    first_sample_ns: u64,
    watched: Option<Box<Watched>>,
    /// The drops of its rule, if there were any.
    pub(super) losses: Option<Box<Losses>>,
    /// Traffic and drops of the last hour.
    pub(super) history: TrafficHistory,
    /// The legs of its rule, under failover or merge.
    pub(super) legs: Option<Box<Legs>>,
    /// Its pauses.
    pauses: Pauses,
    /// Whether its rule is disabled, and when it was last enabled: until then nothing was to arrive.
    is_off: bool,
    on_since_ns: u64,
    /// When it is to be read even without a packet, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) due_ns: Option<u64>,
}

/// Whether time alone may change the state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Time may change it at any moment.
    No,
    /// Time will change it at this moment, in nanoseconds of `CLOCK_MONOTONIC`.
    Until(u64),
    /// Only a packet changes it.
    Yes,
    /// The same, and it has no state to retain.
    Forgettable,
}

impl Sample {
    fn equals(&self, other: &Self) -> bool {
        self.received == other.received && self.inspected == other.inspected
    }

    fn inspected(&self) -> HealthCounters {
        self.inspected.as_deref().copied().unwrap_or_default()
    }
}

/// Additional state of a stream that is watched: most are not.
#[derive(Debug, Default)]
struct Watched {
    health: Health,
    /// When the rate was last outside its bounds, and how.
    outside: Option<(u64, String)>,
    /// Its state, unless it is up.
    alarms: Alarms<State>,
}

#[derive(Clone, Debug, Default)]
struct Sample {
    at_ns: u64,
    received: Traffic,
    /// Only of a stream that is watched: most are not.
    inspected: Option<Box<HealthCounters>>,
}

impl Stream {
    /// Records a reading; returns the state if it has changed.
    pub(super) fn sample(
        &mut self,
        now_ns: u64,
        health: Option<&Health>,
        counted: &Received,
    ) -> Option<(State, Option<String>)> {
        let sample = Sample {
            at_ns: now_ns,
            received: counted.traffic,
            inspected: health.and_then(|_| counted.health.clone()),
        };
        let last = self.samples.back().map(|last| last.received.packets);
        if last.is_none_or(|last| sample.received.packets < last) {
            // The first sample, or another rule of the same name: there is no earlier state.
            *self = Self {
                first_sample_ns: now_ns,
                losses: self.losses.take(),
                history: mem::take(&mut self.history),
                legs: self.legs.take(),
                is_off: self.is_off,
                on_since_ns: self.on_since_ns,
                ..Self::default()
            };
        }
        if let Some(before) = self.samples.back() {
            let packets = sample.received.packets - before.received.packets;
            let before_ns = before.received.last_ns;
            let is_pause = before_ns >= self.on_since_ns;
            let before = (before.at_ns, if is_pause { before_ns } else { 0 });
            self.pauses.note(packets, sample.received.last_ns, before);
        }
        let has_new = last.unwrap_or(0) != sample.received.packets;
        let inspected = counted.health.as_ref();
        let last_ns = inspected.map_or(0, |inspected| inspected.arrivals.last_ns);
        if has_new && (last.is_some() || last_ns > 0) {
            self.note_packet(now_ns, last_ns);
        }
        self.retain(sample, health.is_some());
        while self.samples.len() > 2 && self.samples[1].at_ns + MEMORY_NS <= now_ns {
            self.samples.pop_front();
        }
        let Some(health) = health else {
            self.watched = None;
            return None;
        };
        let mut watched = self.watched.take().unwrap_or_default();
        watched.health = *health;
        if let Some(outside) = self.outside(now_ns, health) {
            watched.outside = Some((now_ns, outside));
        }
        let judged = self.judge(now_ns, &watched);
        // A stream that is healthy from its beginning is not reported.
        let trouble = u64::from(judged.0 != State::Up);
        let edges = watched
            .alarms
            .sample(now_ns, [(judged.0, (trouble, Alarm::above(0)))]);
        self.watched = Some(watched);
        (!edges.is_empty()).then_some(judged)
    }

    /// Notes whether its rule is enabled, before it is sampled.
    pub(super) const fn follow(&mut self, now_ns: u64, enabled: bool) {
        if self.is_off && enabled {
            self.on_since_ns = now_ns;
        }
        self.is_off = !enabled;
    }

    /// Checks whether the stream, just sampled, has stopped or is back; `allowed` is `None` if it is not to
    /// be judged by this.
    pub(super) fn pause(
        &mut self,
        now_ns: u64,
        allowed: Option<Silence>,
        is_first: bool,
    ) -> Option<Pause> {
        let last_ns = self.counted().map_or(0, |counted| counted.last_ns);
        let since_ns = if last_ns > 0 {
            last_ns.max(self.on_since_ns)
        } else {
            0
        };
        self.pauses.check(now_ns, since_ns, (allowed, is_first))
    }

    /// How long it may pause, if it is not watched.
    pub(super) const fn longest_ns(&self) -> Option<u64> {
        self.pauses.allowed_ns()
    }

    /// Retains a sample. While nothing arrives, the first and the last suffice; for a watched stream all are
    /// needed, because its packets may have been inspected.
    fn retain(&mut self, sample: Sample, is_watched: bool) {
        let first = self.samples.front().map(|first| first.received);
        let is_quiet = first == Some(sample.received) && !is_watched;
        if is_quiet && self.samples.len() >= QUIET {
            self.samples.drain(1..self.samples.len() - 1);
            self.samples.shrink_to(QUIET);
            if let Some(last) = self.samples.back_mut() {
                *last = sample;
            }
            return;
        }
        if self.samples.len() == self.samples.capacity() {
            let room = if self.samples.is_empty() { QUIET } else { ROOM };
            self.samples.reserve_exact(room);
        }
        self.samples.push_back(sample);
    }

    /// Whether the stream of a rule, just sampled, has to be in the next samples even if nothing
    /// arrives. Ten seconds after the last packet all state that depends on time has expired; a stream
    /// that never had a packet, and is not watched, has no state to retain.
    pub(super) fn rest(&self, rule: &Rule) -> Rest {
        let has_legs = rule.failover.is_some() || rule.merge.is_some();
        let has_drops = self.losses.as_ref().is_some_and(|it| it.has_pending());
        let is_blank = self.watched.is_none() && self.is_blank();
        if has_legs && rule.enabled || has_drops || !is_blank && !self.is_settled() {
            return Rest::No;
        }
        let Some(watched) = &self.watched else {
            let last_ns = self.counted().map_or(0, |counted| counted.last_ns);
            return match self.pauses.due_after_ns().filter(|_| last_ns > 0) {
                _ if is_blank => Rest::Forgettable,
                Some(after_ns) => Rest::Until(last_ns.saturating_add(after_ns + 1)),
                None => Rest::Yes,
            };
        };
        let is_down = watched
            .alarms
            .standing()
            .any(|(state, _)| state == State::Down);
        let longest_ns = self.pauses.longest_ns(watched.health.silence);
        let due = |longest_ns| Rest::Until(self.since_ns().saturating_add(longest_ns));
        longest_ns.filter(|_| !is_down).map_or(Rest::Yes, due)
    }

    /// Whether all samples of the last ten seconds are equal.
    fn is_settled(&self) -> bool {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return false;
        };
        let is_past = |at_ns: u64| at_ns + MEMORY_NS + SECOND_NS <= last.at_ns;
        let watched = self.watched.as_ref();
        let outside = watched.and_then(|watched| watched.outside.as_ref());
        first.at_ns + MEMORY_NS <= last.at_ns
            && self.samples.iter().all(|sample| sample.equals(last))
            && self.last_packet_ns.is_none_or(is_past)
            && outside.is_none_or(|(at_ns, _)| is_past(*at_ns))
    }

    /// Whether it has the state of a stream that never had a packet.
    fn is_blank(&self) -> bool {
        let has_counted = self.counted().is_some_and(|now| now != Traffic::default());
        let is_judged = self.losses.is_some() || self.legs.is_some();
        !has_counted && !is_judged && self.last_packet_ns.is_none() && self.history.is_empty()
    }

    /// A stream that was sampled from `since_ns` until `until_ns` and never had a packet.
    pub(super) fn silent(since_ns: u64, until_ns: u64) -> Self {
        let first = Sample {
            at_ns: since_ns.min(until_ns),
            ..Sample::default()
        };
        let mut stream = Self {
            samples: VecDeque::from([first]),
            first_sample_ns: until_ns,
            ..Self::default()
        };
        stream.wake(until_ns);
        stream
    }

    /// Updates a stream at rest as if it had been sampled until `until_ns` without any packet.
    pub(super) fn wake(&mut self, until_ns: u64) {
        let mut last = self.samples.pop_back().unwrap_or_default();
        if self.samples.is_empty() {
            self.samples.push_back(last.clone());
        }
        self.samples.truncate(1);
        last.at_ns = last.at_ns.max(until_ns);
        self.samples.push_back(last);
    }

    fn note_packet(&mut self, now_ns: u64, last_ns: u64) {
        let exact_ns = Some(last_ns).filter(|at_ns| (1..now_ns).contains(at_ns));
        let at_ns = exact_ns.unwrap_or(now_ns);
        if !self.is_flowing(at_ns) {
            self.flowing_since_ns = at_ns;
        }
        self.last_packet_ns = Some(at_ns);
    }

    /// Whether packets arrived until `at_ns` without a break of a second.
    fn is_flowing(&self, at_ns: u64) -> bool {
        let is_silent = |last_ns| silence(at_ns, last_ns, SECOND_NS - 1).is_some();
        !self.last_packet_ns.is_none_or(is_silent)
    }

    /// The traffic counted by the last reading.
    pub(super) fn counted(&self) -> Option<Traffic> {
        self.samples.back().map(|last| last.received)
    }

    /// The rates at which the rule receives.
    pub(super) fn rates(&self) -> Rates {
        let (short, long) = (self.rate(SECOND_NS), self.rate(MEMORY_NS));
        Rates {
            packets_1s: short.0,
            bits_1s: short.1,
            packets_10s: long.0,
            bits_10s: long.1,
        }
    }

    /// The health of the stream if it is watched; `inspected` are the current counters of its inspected
    /// packets.
    pub(super) fn health(&self, now_ns: u64, inspected: &HealthCounters) -> Option<HealthStats> {
        let watched = self.watched.as_ref()?;
        let (state, reason) = self.judge(now_ns, watched);
        let seconds = |ns: u64| ns as f64 / 1e9;
        Some(HealthStats {
            state,
            reason,
            silent_seconds: self
                .last_packet_ns
                .map(|at| seconds(now_ns.saturating_sub(at))),
            gap_seconds_1s: seconds(self.gap(SECOND_NS)),
            gap_seconds_10s: seconds(self.gap(MEMORY_NS)),
            unrecognised: inspected.unrecognised,
            rtp: inspected.source.map(|source| rtp(inspected, source)),
            ts: (inspected.ts_packets > 0).then(|| ts(inspected)),
        })
    }

    /// Packets and bits per second between the last sample and the one `within_ns` before it.
    fn rate(&self, within_ns: u64) -> (f64, f64) {
        let Some(now) = self.samples.back() else {
            return (0.0, 0.0);
        };
        let is_within = |sample: &&Sample| now.at_ns - sample.at_ns <= within_ns + SLACK_NS;
        let samples = self.samples.iter().rev();
        let within = samples.take_while(is_within).count();
        let start = self.samples.len() - within;
        let before = start.checked_sub(1).and_then(|at| self.samples.get(at));
        let then = self.samples.get(start).unwrap_or(now);
        // If nothing arrived since the sample before, the time begins exactly where it should.
        let quiet = before.filter(|before| before.received == then.received);
        let time = match quiet {
            Some(before) => (now.at_ns - before.at_ns).min(within_ns),
            None => now.at_ns - then.at_ns,
        };
        let seconds = time as f64 / 1e9;
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        let packets = now.received.packets - then.received.packets;
        let bytes = now.received.bytes - then.received.bytes;
        (packets as f64 / seconds, bytes as f64 * 8.0 / seconds)
    }

    /// The longest gap within a time. One sample covers two epochs of a second.
    fn gap(&self, within_ns: u64) -> u64 {
        let Some(now) = self.samples.back() else {
            return 0;
        };
        let samples = self.samples.iter().rev();
        let recent = samples.take_while(|sample| now.at_ns - sample.at_ns <= within_ns);
        // Until an epoch is over, the previous one belongs to the last second too.
        let of = |sample: &Sample| {
            let arrivals = sample.inspected().arrivals;
            let is_recent = now.at_ns.saturating_sub(arrivals.last_ns) <= within_ns;
            let gap = arrivals.gap_ns.max(arrivals.gap_before_ns);
            if is_recent { gap } else { 0 }
        };
        recent.map(of).max().unwrap_or(0)
    }

    /// How the rate is outside its bounds; a stream that is just beginning or ending is not judged.
    fn outside(&self, now_ns: u64, health: &Health) -> Option<String> {
        let since_ns = self
            .first_sample_ns
            .max(self.flowing_since_ns + 2 * SLACK_NS);
        if !self.is_flowing(now_ns) || now_ns < since_ns + SECOND_NS {
            return None;
        }
        let (packets, bits) = self.rate(SECOND_NS);
        beyond(health, packets, bits)
    }

    fn judge(&self, now_ns: u64, watched: &Watched) -> (State, Option<String>) {
        if let Some(reason) = self.silence(now_ns, &watched.health) {
            return (State::Down, Some(reason));
        }
        match self.trouble(now_ns, watched) {
            Some(reason) => (State::Degraded, Some(reason)),
            None => (State::Up, None),
        }
    }

    fn silence(&self, now_ns: u64, health: &Health) -> Option<String> {
        let longest_ns = self.pauses.longest_ns(health.silence)?;
        // A stream that is silent for exactly that long is down.
        let silent_ns = silence(now_ns, self.since_ns(), longest_ns - 1)?;
        let seconds = silent_ns as f64 / 1e9;
        let allowed = match health.silence {
            Silence::Auto => format!("auto, {:.1} s now", longest_ns as f64 / 1e9),
            other => other.text(&Silence::FORM),
        };
        let what = match self.last_packet_ns {
            Some(_) => "silent for",
            None => "nothing came within",
        };
        Some(format!("{what} {seconds:.1} s (silence = {allowed})"))
    }

    /// Since when nothing has arrived.
    fn since_ns(&self) -> u64 {
        let since_ns = self.last_packet_ns.unwrap_or(self.first_sample_ns);
        since_ns.max(self.on_since_ns)
    }

    fn trouble(&self, now_ns: u64, watched: &Watched) -> Option<String> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let new = last.inspected().since(&first.inspected());
        let many = |count: u64, one: &str, rest: &str| {
            (count > 0).then(|| format!("{}{rest} within 10 s", things(count, one)))
        };
        let is_recent = |at_ns: u64| now_ns.saturating_sub(at_ns) < MEMORY_NS;
        let outside = watched.outside.as_ref().filter(|(at, _)| is_recent(*at));
        let other = unfit(&new, watched.health.inspect.content);
        many(new.lost, "RTP packet", " lost")
            .or_else(|| many(new.continuity_errors, "MPEG-TS continuity error", ""))
            .or_else(|| many(new.transport_errors, "MPEG-TS packet", " marked broken"))
            .or_else(|| many(new.sync_errors, "MPEG-TS packet", " without sync byte"))
            .or_else(|| many(new.ssrc_changes, "change", " of the RTP source"))
            .or_else(|| many(new.restarts, "restart", " of the RTP sequence"))
            .or_else(|| outside.map(|(_, text)| text.clone()))
            .or(other)
    }
}

fn rtp(inspected: &HealthCounters, (ssrc, payload_type): (u32, u8)) -> RtpStats {
    RtpStats {
        packets: inspected.rtp_packets,
        lost: inspected.lost,
        reordered: inspected.reordered,
        duplicated: inspected.duplicated,
        restarts: inspected.restarts,
        ssrc_changes: inspected.ssrc_changes,
        jitter_seconds: inspected.jitter_ns as f64 / 1e9,
        ssrc,
        payload_type,
    }
}

const fn ts(inspected: &HealthCounters) -> TsStats {
    TsStats {
        packets: inspected.ts_packets,
        continuity_errors: inspected.continuity_errors,
        transport_errors: inspected.transport_errors,
        sync_errors: inspected.sync_errors,
        pids: inspected.pids,
    }
}
