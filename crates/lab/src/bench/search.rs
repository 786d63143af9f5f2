//! The highest offered rate without loss, searched by bisection as RFC 2544 section 26.1 has it
//! (with shorter trials: it asks for 60 seconds each).

use anyhow::Result;

use super::results::Trial;

/// The search ends when the bounds are this close to each other.
const PRECISION: f64 = 0.03;
/// Below this share of the highest rate it gives up.
const LOWEST: f64 = 0.005;

/// Searches between 0 and `highest` datagrams per second. `attempt` offers a rate and hands back
/// the trial. Hands back the best trial without loss with its rate in `zero_loss_pps`, or the last
/// trial with 0 there if every rate lost something.
///
/// # Errors
/// What `attempt` returns.
pub fn zero_loss(highest: f64, mut attempt: impl FnMut(f64) -> Result<Trial>) -> Result<Trial> {
    let (mut low, mut high) = (0.0, highest);
    let mut best: Option<Trial> = None;
    let mut rate = highest;
    loop {
        let mut trial = attempt(rate)?;
        let lost = trial.missing() > 0;
        // A generator that could not keep up offered less than it was asked for.
        let offered = trial.offered_pps().min(rate);
        trial.zero_loss_pps = Some(if lost { 0.0 } else { offered });
        if lost {
            high = rate;
        } else {
            low = rate;
        }
        if !lost || best.is_none() {
            best = Some(trial);
        }
        if high - low <= PRECISION * high || high <= LOWEST * highest {
            break;
        }
        rate = f64::midpoint(low, high);
    }
    Ok(best.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loses_above(limit: f64) -> impl FnMut(f64) -> Result<Trial> {
        move |rate| {
            let sent = rate as u64;
            Ok(Trial {
                sent,
                seconds: 1.0,
                expected: sent,
                delivered: sent.min(limit as u64),
                ..Trial::default()
            })
        }
    }

    #[test]
    fn finds_the_rate_where_loss_begins() {
        let found = zero_loss(1e6, loses_above(400_000.0)).unwrap();
        let rate = found.zero_loss_pps.unwrap();
        assert!((380_000.0..=400_000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_relay_that_never_loses_gets_the_highest_rate() {
        let found = zero_loss(1e6, loses_above(2e6)).unwrap();
        assert_eq!(found.zero_loss_pps, Some(1e6));
    }

    #[test]
    fn a_relay_that_always_loses_gets_zero() {
        let found = zero_loss(1e6, loses_above(-1.0)).unwrap();
        assert_eq!(found.zero_loss_pps, Some(0.0));
    }
}
