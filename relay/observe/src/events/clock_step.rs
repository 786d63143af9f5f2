//! Steps of the host's clock, which dates events: reported because earlier dates refer to the clock before
//! the step. Nothing is timed by that clock.

use api::reply::Event;
use config::moment_text;

use super::event::event;
use super::kind::CLOCK_STEPPED;

/// More than a time daemon slews a clock between two samples.
const LEAST_MS: u64 = 1000;

/// How long reading both clocks may take.
const READ_MAX_MS: u64 = 50;

/// How far the host's clock was ahead of the boot clock, which nobody sets and no sleep stops.
#[derive(Debug, Default)]
pub struct ClockStep(Option<i64>);

impl ClockStep {
    /// Samples the clock; returns the event of a step.
    pub fn look(&mut self) -> Option<Event> {
        let boot_ms = || sys::clock::boottime_ns() / 1_000_000;
        let (before, real_ms) = (boot_ms(), sys::clock::realtime_ms());
        // Delayed between reading the two clocks, as for want of a CPU: the next sample decides.
        if boot_ms() - before > READ_MAX_MS {
            return None;
        }
        self.take(real_ms, before)
    }

    fn take(&mut self, real_ms: u64, boot_ms: u64) -> Option<Event> {
        let ahead = real_ms.wrapping_sub(boot_ms).cast_signed();
        let before = self.0.replace(ahead)?;
        let step = ahead.wrapping_sub(before);
        (step.unsigned_abs() >= LEAST_MS).then(|| {
            let now = moment_text(real_ms / 1000);
            // Less than a tenth comes from reading the two clocks one after the other.
            let far = (step.unsigned_abs() + 50) / 100;
            let way = if step > 0 { "forward" } else { "back" };
            let message = format!(
                "the host's clock was set {way} by {}.{} s, to {now}: what is dated before is by \
                 the clock as it was; rates, states and alarms go by another",
                far / 10,
                far % 10,
            );
            event(CLOCK_STEPPED, "daemon", message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_reported_once_and_a_slewed_clock_never() {
        let mut clock = ClockStep::default();
        let mut step = |real_ms, boot_ms| clock.take(real_ms, boot_ms).map(|event| event.message);
        assert_eq!(step(1_700_000_000_000, 5_000), None, "the first look");
        // An hour asleep, and half a second that a time daemon slewed meanwhile.
        assert_eq!(step(1_700_003_600_000, 3_605_500), None);
        let back = step(1_700_000_000_500, 3_606_000).unwrap();
        let expected = "set back by 3600.0 s, to 2023-11-14T22:13:20Z: ";
        assert!(back.contains(expected), "{back}");
        assert_eq!(step(1_700_000_000_999, 3_606_500), None, "told already");
        let on = step(1_800_000_001_500, 3_607_000).unwrap();
        assert!(on.contains("set forward by 100000000.0 s"), "{on}");
    }
}
