//! Rate limits as a virtual schedule (the generic cell rate algorithm of ITU-T I.371): equal to a
//! token bucket, but its whole state is one time, so that a path can keep it in one atomic word.

/// Fixed-point digits of [`Limit::per_token`], so that 100 Gbit/s are still exact to 0.01 %.
const SCALE: u32 = 20;

/// A token bucket's rate and depth in units of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Nanoseconds per token, times 2^20.
    pub per_token: u64,
    /// Nanoseconds in which an empty bucket fills up.
    pub depth_ns: u64,
}

impl Limit {
    /// Makes a limit of `rate` tokens per second and `burst` tokens at once. A packet that costs
    /// more than `burst` never passes.
    pub const fn new(rate: u64, burst: u64) -> Self {
        let rate = if rate == 0 { 1 } else { rate };
        let per_token = (1_000_000_000 << SCALE) / rate;
        Self {
            per_token,
            depth_ns: time_of(per_token, burst),
        }
    }

    /// Returns whether a packet that costs `tokens` passes at `now_ns`, and books it if so. `due_ns`
    /// is the state: when the bucket will be full again; 0 at first, and whenever the limit changes.
    /// Clocks that step back only make the limit stricter for as long.
    #[inline]
    pub const fn admit(self, due_ns: &mut u64, now_ns: u64, tokens: u64) -> bool {
        let cost = time_of(self.per_token, tokens);
        // A packet seldom arrives at the very moment that has room for it. One that arrives later by less than its
        // own cost is booked from that moment on, or a small burst would lose the rest.
        let end = due_ns.saturating_add(cost);
        let is_on_schedule = *due_ns > 0 && end > now_ns;
        let end = if is_on_schedule {
            end
        } else {
            now_ns.saturating_add(cost)
        };
        if cost > self.depth_ns || end > now_ns.saturating_add(self.depth_ns) {
            return false;
        }
        *due_ns = end;
        true
    }
}

/// `per_token * tokens >> SCALE`, in two halves that do not overflow.
#[inline]
const fn time_of(per_token: u64, tokens: u64) -> u64 {
    let fraction = per_token & ((1 << SCALE) - 1);
    let whole = (per_token >> SCALE).saturating_mul(tokens);
    whole.saturating_add(fraction.saturating_mul(tokens) >> SCALE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_fresh_limit_passes_its_burst_and_no_more() {
        let limit = Limit::new(1000, 5);
        let mut due = 0;
        let passed = (0..20).filter(|_| limit.admit(&mut due, SECOND, 1)).count();
        assert_eq!(passed, 5);
        assert!(!limit.admit(&mut due, SECOND + 999_000, 1));
        assert!(limit.admit(&mut due, SECOND + 1_000_000, 1));
    }

    #[test]
    fn a_burst_of_one_packet_does_not_lower_the_rate() {
        let passed_in_two_seconds = |limit: Limit, tokens, step| {
            let mut due = 0;
            let times = (SECOND..3 * SECOND).step_by(step);
            times
                .filter(|now| limit.admit(&mut due, *now, tokens))
                .count()
        };
        // 200 packets a second in a stream of 1,000, of 900 and of 300.
        let limit = Limit::new(200, 1);
        for step in [1_000_000, 1_111_111, 3_333_333] {
            let passed = passed_in_two_seconds(limit, 1, step);
            assert!((399..=401).contains(&passed), "{passed} at {step}");
        }
        // 160 kbit/s in packets of 100 bytes.
        let passed = passed_in_two_seconds(Limit::new(160_000, 800), 800, 1_111_111);
        assert!((399..=401).contains(&passed), "{passed}");
    }

    #[test]
    fn late_packets_do_not_add_up_to_a_larger_burst() {
        let limit = Limit::new(1000, 1);
        let mut due = 0;
        assert!(limit.admit(&mut due, SECOND, 1));
        let later = SECOND + 1_999_999;
        assert!(limit.admit(&mut due, later, 1));
        assert!(!limit.admit(&mut due, later, 1));
        assert!(!limit.admit(&mut 0, 1, 2), "more than the burst");
        // Nothing was late yet, however recently the clock began.
        let mut fresh = 0;
        assert!(limit.admit(&mut fresh, 500_000, 1));
        assert!(!limit.admit(&mut fresh, 1_000_001, 1));
    }

    #[test]
    fn a_packet_above_the_burst_never_passes() {
        let limit = Limit::new(1000, 5);
        assert!(!limit.admit(&mut 0, 3600 * SECOND, 6));
    }

    #[test]
    fn a_refused_packet_costs_nothing() {
        let limit = Limit::new(1000, 5);
        let mut due = 0;
        assert!(limit.admit(&mut due, 0, 4));
        assert!(!limit.admit(&mut due, 0, 2));
        assert!(limit.admit(&mut due, 0, 1));
    }

    proptest! {
        #[test]
        fn over_time_the_rate_holds(
            rate in 100u64..100_000_000_000, cost in 1u64..12_000, load in 2u64..20,
        ) {
            // One second in steps that offer `load` times the rate.
            // Below that, whole nanoseconds are too coarse; no link carries such packets.
            prop_assume!(time_of(Limit::new(rate, 1).per_token, cost) >= 100);
            let limit = Limit::new(rate, cost * 2);
            let step = (SECOND as u128 * u128::from(cost) / u128::from(rate) / u128::from(load))
                .clamp(1, u128::from(SECOND)) as u64;
            let (mut due, mut now, mut passed) = (0, 0, 0u64);
            for _ in 0..20_000 {
                passed += u64::from(limit.admit(&mut due, now, cost));
                now += step;
            }
            let allowed = now as f64 / SECOND as f64 * rate as f64 / cost as f64;
            let offered = 20_000.0;
            prop_assert!(passed as f64 <= allowed * 1.02 + 3.0);
            prop_assert!(passed as f64 >= (allowed * 0.85 - 3.0).min(offered * 0.85));
        }
    }
}
