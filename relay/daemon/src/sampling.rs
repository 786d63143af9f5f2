//! Samples twice a second the counters that may have changed, publishes the resulting events, and switches
//! away from legs of bad quality.

use std::sync::Arc;

use dataplane::Seen;
use dataplane::counters::Arrived;
use host::tick;
use observe::events::{ClockStep, Events};
use observe::stats::Sampler;
use observe::stats::sampler::INTERVAL;
use observe::view::View;
use tokio::sync::watch;
use tokio::task::block_in_place;

use crate::dataplane_thread::DataplaneThread;

/// From this many rules on, sampling takes so long that other tasks must not wait for it.
const MANY: usize = 1024;

/// Samples for as long as the daemon runs.
pub(crate) async fn run(
    sampler: Sampler,
    dataplane: DataplaneThread,
    view: watch::Receiver<Arc<View>>,
    events: Events,
) {
    let mut seen = Seen::default();
    let mut clock = ClockStep::default();
    // The first sample is taken at once: what was counted before is not reported.
    let mut interval = None;
    loop {
        if let Some(interval) = interval.replace(INTERVAL) {
            tick::after(interval).await;
        }
        events.log_held_back();
        events.publish_all(clock.look().into_iter().collect());
        let view = Arc::clone(&view.borrow());
        let now_ns = sys::clock::monotonic_ns();
        let attended = sampler.attended(now_ns, &view.rules);
        let is_quiet = attended.is_empty() && dataplane.activity().is_quiet(&seen);
        events.publish_all(sampler.devices(now_ns, &view, is_quiet).await);
        let arrived = if is_quiet {
            Arrived::default()
        } else {
            match dataplane.arrived(std::mem::take(&mut seen), attended).await {
                Ok((arrived, now_seen)) => {
                    seen = now_seen;
                    arrived
                }
                // The error is reported elsewhere; the next reading starts over.
                Err(_) => continue,
            }
        };
        let now_ns = sys::clock::monotonic_ns();
        let take_sample = || sampler.sample(now_ns, &view.rules, &arrived);
        let mut sample = if arrived.len() > MANY {
            block_in_place(take_sample)
        } else {
            take_sample()
        };
        interval = Some(sampler.pause(now_ns));
        let leaves = std::mem::take(&mut sample.leaves);
        events.publish_all(sample.events(&view));
        for (rule, leg) in leaves {
            // If the leg was removed meanwhile, the next reading shows it.
            let _ = dataplane.switch(rule, leg).await;
        }
    }
}
