//! One rule's stream: rates and state, judged from successive readings of its counters.
//!
//! Whatever goes wrong keeps a stream degraded for ten seconds, so a state does not flap faster than
//! that; silence is over with the first packet.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use api::reply::{HealthStats, Rates, RtpStats, State, TsStats};
use dataplane::counters::{HealthCounters, Received, Traffic};
use model::health::{Content, Health, Rate, duration_text, rate_text};
use model::table::RateUnit;

const SECOND_NS: u64 = 1_000_000_000;
/// How long trouble is remembered.
const MEMORY_NS: u64 = 10 * SECOND_NS;
/// A look may come a little late or early.
const SLACK_NS: u64 = SECOND_NS / 10;
/// Looks that are kept of a quiet stream: the first and the last that saw the same.
const QUIET: usize = 2;
/// Looks that room is made for at a time of one that is not.
const ROOM: usize = 4;

/// What is remembered of a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Of a stream that is not watched, those between looks that saw the same are left out.
    looks: VecDeque<Look>,
    /// When packets were last seen to come, and since when they come without a break of a second.
    moved_ns: Option<u64>,
    flowing_since_ns: u64,
    first_look_ns: u64,
    watched: Option<Box<Watched>>,
}

/// What is remembered besides of a stream that is watched: most are not.
#[derive(Debug)]
struct Watched {
    health: Health,
    /// When the rate was last outside its bounds, and how.
    outside: Option<(u64, String)>,
    state: Option<(State, Option<String>)>,
}

#[derive(Clone, Debug, Default)]
struct Look {
    at_ns: u64,
    received: Traffic,
    /// Only of a stream that is watched: most are not.
    found: Option<Box<HealthCounters>>,
}

impl Stream {
    /// Takes in a reading; gives the state if it is another one than before.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        health: Option<&Health>,
        counted: &Received,
    ) -> Option<(State, Option<String>)> {
        let look = Look {
            at_ns: now_ns,
            received: counted.traffic,
            found: health.and_then(|_| counted.health.clone()),
        };
        let last = self.looks.back().map(|last| last.received.packets);
        if last.is_none_or(|last| look.received.packets < last) {
            // The first look, or another rule of the same name: nothing is known of before.
            *self = Self {
                first_look_ns: now_ns,
                ..Self::default()
            };
        }
        let came = last.unwrap_or(0) != look.received.packets;
        let last_ns = counted.health.as_ref();
        let last_ns = last_ns.map_or(0, |found| found.arrivals.last_ns);
        if came && (last.is_some() || last_ns > 0) {
            self.moved(now_ns, last_ns);
        }
        self.remember(look, health.is_some());
        while self.looks.len() > 2 && self.looks[1].at_ns + MEMORY_NS <= now_ns {
            self.looks.pop_front();
        }
        let Some(health) = health else {
            self.watched = None;
            return None;
        };
        let mut watched = self.watched.take().unwrap_or_else(|| {
            Box::new(Watched {
                health: *health,
                outside: None,
                state: None,
            })
        });
        watched.health = *health;
        if let Some(outside) = self.outside(now_ns, health) {
            watched.outside = Some((now_ns, outside));
        }
        let before = watched.state.take().map(|(state, _)| state);
        self.watched = Some(watched);
        let judged = self.judge(now_ns, health);
        let is_new = before != Some(judged.0);
        // A stream that is well from its beginning is no news.
        let tell = is_new && !(before.is_none() && judged.0 == State::Up);
        if let Some(watched) = &mut self.watched {
            watched.state = Some(judged.clone());
        }
        tell.then_some(judged)
    }

    /// Keeps a look. While nothing comes the first and the last say all; of a stream that is watched
    /// each counts, for one may have found something.
    fn remember(&mut self, look: Look, is_watched: bool) {
        let first = self.looks.front().map(|first| first.received);
        let is_quiet = first == Some(look.received) && !is_watched;
        if is_quiet && self.looks.len() >= QUIET {
            self.looks.drain(1..self.looks.len() - 1);
            self.looks.shrink_to(QUIET);
            if let Some(last) = self.looks.back_mut() {
                *last = look;
            }
            return;
        }
        if self.looks.len() == self.looks.capacity() {
            let room = if self.looks.is_empty() { QUIET } else { ROOM };
            self.looks.reserve_exact(room);
        }
        self.looks.push_back(look);
    }

    fn moved(&mut self, now_ns: u64, last_ns: u64) {
        let at = if last_ns > 0 {
            last_ns.min(now_ns)
        } else {
            now_ns
        };
        let gone_on = self
            .moved_ns
            .is_some_and(|moved| at.saturating_sub(moved) < SECOND_NS);
        if !gone_on {
            self.flowing_since_ns = at;
        }
        self.moved_ns = Some(at);
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

    /// How the stream does, if it is watched; `found` is what was found in its packets by now.
    pub(super) fn health(&self, now_ns: u64, found: &HealthCounters) -> Option<HealthStats> {
        let health = &self.watched.as_ref()?.health;
        let (state, reason) = self.judge(now_ns, health);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let gap = |within| self.gap(within);
        Some(HealthStats {
            state,
            reason,
            silent_seconds: self.moved_ns.map(|at| seconds(now_ns.saturating_sub(at))),
            gap_seconds_1s: seconds(gap(SECOND_NS)),
            gap_seconds_10s: seconds(gap(MEMORY_NS)),
            unrecognised: found.unrecognised,
            rtp: found.source.map(|source| rtp(found, source)),
            ts: (found.ts_packets > 0).then(|| ts(found)),
        })
    }

    /// Packets and bits per second between the last look and the one so long before it.
    fn rate(&self, within_ns: u64) -> (f64, f64) {
        let Some(now) = self.looks.back() else {
            return (0.0, 0.0);
        };
        let is_within = |look: &&Look| now.at_ns - look.at_ns <= within_ns + SLACK_NS;
        let looks = self.looks.iter().rev();
        let within = looks.take_while(is_within).count();
        let then = self.looks.len() - within;
        let before = then.checked_sub(1).and_then(|at| self.looks.get(at));
        let then = self.looks.get(then).unwrap_or(now);
        // Nothing came since a look before, so the time begins where it should.
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

    /// The longest gap that looks within the time saw. One look sees two epochs of a second.
    fn gap(&self, within_ns: u64) -> u64 {
        let Some(now) = self.looks.back() else {
            return 0;
        };
        let looks = self.looks.iter().rev();
        let recent = looks.take_while(|look| now.at_ns - look.at_ns <= within_ns);
        // Before an epoch is over, the one before it belongs to the last second too.
        let of = |look: &Look| {
            let arrivals = look
                .found
                .as_ref()
                .map_or_else(Default::default, |f| f.arrivals);
            let is_recent = now.at_ns.saturating_sub(arrivals.last_ns) <= within_ns;
            let gap = arrivals.gap_ns.max(arrivals.gap_before_ns);
            if is_recent { gap } else { 0 }
        };
        recent.map(of).max().unwrap_or(0)
    }

    /// How the rate is outside its bounds; that of a stream that only begins or ends never is.
    fn outside(&self, now_ns: u64, health: &Health) -> Option<String> {
        let is_flowing = self.moved_ns.is_some_and(|moved| {
            now_ns - moved.min(now_ns) < SECOND_NS
                && self.flowing_since_ns + SECOND_NS + 2 * SLACK_NS <= now_ns
        });
        let is_known = self.first_look_ns + SECOND_NS <= now_ns;
        if !is_flowing || !is_known {
            return None;
        }
        let (packets, bits) = self.rate(SECOND_NS);
        let measured = |bound: Rate| match bound.unit {
            RateUnit::Packets => packets,
            RateUnit::Bits => bits,
        };
        let least = health
            .rate_min
            .filter(|least| measured(*least) < least.rate as f64);
        let most = health
            .rate_max
            .filter(|most| measured(*most) > most.rate as f64);
        let text = |bound: Rate, word: &str, key: &str| {
            let rate = roughly(measured(bound), word == "above");
            let rate = rate_text(Rate { rate, ..bound });
            format!("the rate was {rate}, {word} {key} = {}", rate_text(bound))
        };
        let outside = least.map(|bound| text(bound, "below", "rate_min"));
        outside.or_else(|| most.map(|bound| text(bound, "above", "rate_max")))
    }

    fn judge(&self, now_ns: u64, health: &Health) -> (State, Option<String>) {
        if let Some(reason) = self.silence(now_ns, health) {
            return (State::Down, Some(reason));
        }
        match self.trouble(now_ns, health) {
            Some(reason) => (State::Degraded, Some(reason)),
            None => (State::Up, None),
        }
    }

    fn silence(&self, now_ns: u64, health: &Health) -> Option<String> {
        let longest = health.silence?;
        let since = self.moved_ns.unwrap_or(self.first_look_ns);
        let silent = now_ns.saturating_sub(since);
        if u128::from(silent) < longest.as_nanos() {
            return None;
        }
        let allowed = duration_text(longest);
        let seconds = silent as f64 / 1e9;
        Some(match self.moved_ns {
            Some(_) => format!("silent for {seconds:.1} s (silence = {allowed})"),
            None => format!("nothing came within {seconds:.1} s (silence = {allowed})"),
        })
    }

    fn trouble(&self, now_ns: u64, health: &Health) -> Option<String> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        let none = HealthCounters::default();
        let before = first.found.as_deref().unwrap_or(&none);
        let news = last.found.as_deref().unwrap_or(&none).since(before);
        let many =
            |count: u64, what: &str| (count > 0).then(|| format!("{count} {what} within 10 s"));
        let outside = self.watched.as_ref();
        let outside = outside.and_then(|watched| watched.outside.as_ref());
        let outside = outside.filter(|(at, _)| now_ns.saturating_sub(*at) < MEMORY_NS);
        let received = last.received.packets - first.received.packets;
        let expected = match health.inspect.content {
            Content::Rtp => Some("RTP"),
            Content::Ts => Some("MPEG-TS"),
            Content::Auto | Content::None => None,
        };
        let other = expected.filter(|_| received > 0 && news.unrecognised >= received);
        let other = other.map(|content| format!("no packet is {content} (content)"));
        many(news.lost, "RTP packets lost")
            .or_else(|| many(news.continuity_errors, "MPEG-TS continuity errors"))
            .or_else(|| many(news.transport_errors, "MPEG-TS packets marked broken"))
            .or_else(|| many(news.sync_errors, "MPEG-TS packets without sync byte"))
            .or_else(|| many(news.ssrc_changes, "changes of the RTP source"))
            .or_else(|| many(news.restarts, "restarts of the RTP sequence"))
            .or_else(|| outside.map(|(_, text)| text.clone()))
            .or(other)
    }
}

/// A rate in three digits, rounded away from the bound that it lies beyond.
fn roughly(rate: f64, up: bool) -> u64 {
    let digits = rate.max(1.0).log10().floor() as i32;
    let unit = 10f64.powi((digits - 2).max(0));
    let units = if up {
        (rate / unit).ceil()
    } else {
        (rate / unit).floor()
    };
    (units * unit) as u64
}

fn rtp(found: &HealthCounters, (ssrc, payload_type): (u32, u8)) -> RtpStats {
    RtpStats {
        packets: found.rtp_packets,
        lost: found.lost,
        reordered: found.reordered,
        duplicated: found.duplicated,
        restarts: found.restarts,
        ssrc_changes: found.ssrc_changes,
        jitter_seconds: found.jitter_ns as f64 / 1e9,
        ssrc,
        payload_type,
    }
}

const fn ts(found: &HealthCounters) -> TsStats {
    TsStats {
        packets: found.ts_packets,
        continuity_errors: found.continuity_errors,
        transport_errors: found.transport_errors,
        sync_errors: found.sync_errors,
        pids: found.pids,
    }
}
