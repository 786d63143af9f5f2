//! One rule's stream: rates and state, judged from successive readings of its counters.
//!
//! Whatever goes wrong keeps a stream degraded for ten seconds, so a state does not flap faster than
//! that; silence is over with the first packet.

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

use super::history::Past;
use crate::alarms::{Alarm, Alarms, Legs, Losses, Pause, Pauses, beyond, silence, unfit};

const SECOND_NS: u64 = 1_000_000_000;
/// How long trouble is remembered.
const MEMORY_NS: u64 = 10 * SECOND_NS;
/// A sample may come a little late or early.
const SLACK_NS: u64 = SECOND_NS / 10;
/// Samples that are kept of a quiet stream: the first and the last of equal ones.
const QUIET: usize = 2;
/// Samples that room is made for at a time where a stream is not quiet.
const ROOM: usize = 4;

/// What is remembered of a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Of a stream that is not watched, those between equal samples are left out.
    samples: VecDeque<Sample>,
    /// When a packet last came, and since when they come without a break of a second.
    last_packet_ns: Option<u64>,
    flowing_since_ns: u64,
    first_sample_ns: u64,
    watched: Option<Box<Watched>>,
    /// What is known of the drops of its rule, if there were any.
    pub(super) losses: Option<Box<Losses>>,
    /// What came and was dropped in the last hour.
    pub(super) past: Past,
    /// What is known of its rule's legs, if they stand by for each other or are merged.
    pub(super) legs: Option<Box<Legs>>,
    /// What is known of its pauses.
    pauses: Pauses,
    /// When it is to be read although no packet came, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) due_ns: Option<u64>,
}

/// Whether time alone may change what is shown of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It may, at any time.
    No,
    /// It will, at that time in nanoseconds of `CLOCK_MONOTONIC`.
    Until(u64),
    /// Nothing but a packet does.
    Yes,
    /// The same, and there is nothing to remember.
    Forgettable,
}

impl Sample {
    fn says_as(&self, other: &Self) -> bool {
        self.received == other.received && self.inspected == other.inspected
    }

    fn inspected(&self) -> HealthCounters {
        self.inspected.as_deref().copied().unwrap_or_default()
    }
}

/// What is remembered besides of a stream that is watched: most are not.
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
    /// Takes in a reading; gives the state if it is another one than before.
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
            // The first sample, or another rule of the same name: nothing is known of before.
            *self = Self {
                first_sample_ns: now_ns,
                losses: self.losses.take(),
                past: mem::take(&mut self.past),
                legs: self.legs.take(),
                ..Self::default()
            };
        }
        if let Some(before) = self.samples.back() {
            let packets = sample.received.packets - before.received.packets;
            let before = (before.at_ns, before.received.last_ns);
            self.pauses.note(packets, sample.received.last_ns, before);
        }
        let came = last.unwrap_or(0) != sample.received.packets;
        let last_ns = counted.health.as_ref();
        let last_ns = last_ns.map_or(0, |inspected| inspected.arrivals.last_ns);
        if came && (last.is_some() || last_ns > 0) {
            self.note_packet(now_ns, last_ns);
        }
        self.remember(sample, health.is_some());
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
        // A stream that is well from its beginning is not reported.
        let trouble = u64::from(judged.0 != State::Up);
        let turns = watched
            .alarms
            .sample(now_ns, [(judged.0, (trouble, Alarm::above(0)))]);
        self.watched = Some(watched);
        (!turns.is_empty()).then_some(judged)
    }

    /// Looks whether the stream, just sampled, has stopped or is back; `allowed` is none where it is not
    /// to be judged by this.
    pub(super) fn pause(
        &mut self,
        now_ns: u64,
        allowed: Option<Silence>,
        is_first: bool,
    ) -> Option<Pause> {
        let last_ns = self.counted().map_or(0, |counted| counted.last_ns);
        self.pauses.look(now_ns, last_ns, (allowed, is_first))
    }

    /// How long it may pause, where it is not watched.
    pub(super) const fn longest_ns(&self) -> Option<u64> {
        self.pauses.allowed_ns()
    }

    /// Keeps a sample. While nothing comes the first and the last say all; of a stream that is watched
    /// each counts, for its packets may have shown something.
    fn remember(&mut self, sample: Sample, is_watched: bool) {
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

    /// Says whether the stream of a rule, just sampled, has to be with the next samples, if nothing
    /// comes. Ten seconds after the last packet all that is remembered of a time has passed; of a stream
    /// that never had one, and is not watched, there is nothing to remember.
    pub(super) fn rest(&self, rule: &Rule) -> Rest {
        let is_judged_by_lines = rule.failover.is_some() || rule.merge.is_some();
        let goes_on = self.losses.as_ref().is_some_and(|losses| losses.go_on());
        let is_blank = self.watched.is_none() && self.is_blank();
        if is_judged_by_lines && rule.enabled || goes_on || !is_blank && !self.is_settled() {
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

    /// Whether all samples of the last ten seconds say the same.
    fn is_settled(&self) -> bool {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return false;
        };
        let is_past = |at_ns: u64| at_ns + MEMORY_NS + SECOND_NS <= last.at_ns;
        let watched = self.watched.as_ref();
        let outside = watched.and_then(|watched| watched.outside.as_ref());
        first.at_ns + MEMORY_NS <= last.at_ns
            && self.samples.iter().all(|sample| sample.says_as(last))
            && self.last_packet_ns.is_none_or(is_past)
            && outside.is_none_or(|(at_ns, _)| is_past(*at_ns))
    }

    /// Whether it is as one that never had a packet.
    fn is_blank(&self) -> bool {
        let has_counted = self.counted().is_some_and(|now| now != Traffic::default());
        let is_judged = self.losses.is_some() || self.legs.is_some();
        !has_counted && !is_judged && self.last_packet_ns.is_none() && self.past.is_empty()
    }

    /// One that had been sampled since then and until then, and had never had a packet.
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

    /// Makes one at rest as if it had been sampled until then, and nothing had come.
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
        let at_ns = Some(last_ns).filter(|at_ns| (1..now_ns).contains(at_ns));
        let at_ns = at_ns.unwrap_or(now_ns);
        if !self.is_flowing(at_ns) {
            self.flowing_since_ns = at_ns;
        }
        self.last_packet_ns = Some(at_ns);
    }

    /// Whether packets came until then without a break of a second.
    fn is_flowing(&self, at_ns: u64) -> bool {
        let is_silent = |last_ns| silence(at_ns, last_ns, SECOND_NS - 1).is_some();
        !self.last_packet_ns.is_none_or(is_silent)
    }

    /// What was counted by the last reading.
    pub(super) fn counted(&self) -> Option<Traffic> {
        self.samples.back().map(|last| last.received)
    }

    /// What the rule receives.
    pub(super) fn rates(&self) -> Rates {
        let (short, long) = (self.rate(SECOND_NS), self.rate(MEMORY_NS));
        Rates {
            packets_1s: short.0,
            bits_1s: short.1,
            packets_10s: long.0,
            bits_10s: long.1,
        }
    }

    /// The health of the stream if it is watched; `inspected` counts what was found in its packets by
    /// now.
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

    /// Packets and bits per second between the last sample and the one so long before it.
    fn rate(&self, within_ns: u64) -> (f64, f64) {
        let Some(now) = self.samples.back() else {
            return (0.0, 0.0);
        };
        let is_within = |sample: &&Sample| now.at_ns - sample.at_ns <= within_ns + SLACK_NS;
        let samples = self.samples.iter().rev();
        let within = samples.take_while(is_within).count();
        let then = self.samples.len() - within;
        let before = then.checked_sub(1).and_then(|at| self.samples.get(at));
        let then = self.samples.get(then).unwrap_or(now);
        // Nothing came since a sample before, so the time begins where it should.
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

    /// The longest gap within the time. One sample covers two epochs of a second.
    fn gap(&self, within_ns: u64) -> u64 {
        let Some(now) = self.samples.back() else {
            return 0;
        };
        let samples = self.samples.iter().rev();
        let recent = samples.take_while(|sample| now.at_ns - sample.at_ns <= within_ns);
        // Before an epoch is over, the one before it belongs to the last second too.
        let of = |sample: &Sample| {
            let arrivals = sample.inspected().arrivals;
            let is_recent = now.at_ns.saturating_sub(arrivals.last_ns) <= within_ns;
            let gap = arrivals.gap_ns.max(arrivals.gap_before_ns);
            if is_recent { gap } else { 0 }
        };
        recent.map(of).max().unwrap_or(0)
    }

    /// How the rate is outside its bounds; that of a stream that only begins or ends never is.
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
        // One that is silent for just so long is down.
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

    /// Since when nothing has come.
    fn since_ns(&self) -> u64 {
        self.last_packet_ns.unwrap_or(self.first_sample_ns)
    }

    fn trouble(&self, now_ns: u64, watched: &Watched) -> Option<String> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let news = last.inspected().since(&first.inspected());
        let many = |count: u64, one: &str, rest: &str| {
            (count > 0).then(|| format!("{}{rest} within 10 s", things(count, one)))
        };
        let outside = watched.outside.as_ref();
        let outside = outside.filter(|(at, _)| now_ns.saturating_sub(*at) < MEMORY_NS);
        let other = unfit(&news, watched.health.inspect.content);
        many(news.lost, "RTP packet", " lost")
            .or_else(|| many(news.continuity_errors, "MPEG-TS continuity error", ""))
            .or_else(|| many(news.transport_errors, "MPEG-TS packet", " marked broken"))
            .or_else(|| many(news.sync_errors, "MPEG-TS packet", " without sync byte"))
            .or_else(|| many(news.ssrc_changes, "change", " of the RTP source"))
            .or_else(|| many(news.restarts, "restart", " of the RTP sequence"))
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
