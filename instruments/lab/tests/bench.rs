//! A smoke run of the bench: two scenarios at small size. It asserts delivery and reconciliation,
//! never speed.

use anyhow::Result;
use lab::bench::results::{Results, Trial};
use lab::bench::run::engine;
use lab::bench::run::relay::Relay;
use lab::bench::run::scenario::Options;
use traffic::trial::Outcome;

#[test]
fn two_small_scenarios_deliver_everything_and_add_up() {
    let relays = Relay::ALL.into_iter().filter(is_installed).collect();
    let options = Options {
        scenarios: vec![3, 5],
        trials: Some(1),
        quick: true,
        relays,
        streams: vec![3],
        rate_pps: Some(300.0),
        packets: Some(150),
        size: Some(200),
        ..Options::default()
    };
    let results = engine::run(&options, "smoke", &mut Quiet).unwrap();
    assert!(!results.cases.is_empty());
    for case in &results.cases {
        let what = format!("{}, scenario {}", case.relay, case.scenario);
        if case.relay == Relay::KernelRouting.to_string() && case.scenario == 5 {
            assert!(case.skipped.is_some(), "{what}: 50 outputs are beyond it");
            continue;
        }
        assert_eq!(case.skipped, None, "{what}");
        assert_eq!(case.trials.len(), 1, "{what}");
        for trial in &case.trials {
            check(&what, trial);
        }
    }
}

/// Runs alone: at full speed it fills each core's queue, which packets of other tests use too.
#[test]
#[ignore = "fills the queues of both cores; run with --ignored and nothing beside it"]
fn what_the_relay_says_it_sent_of_a_drivers_frames_the_sink_has() {
    let relays = [Relay::Kernel, Relay::KernelRouting].into_iter();
    let options = Options {
        scenarios: vec![11],
        trials: Some(1),
        seconds: 0.2,
        quick: true,
        relays: relays.filter(is_installed).collect(),
        ..Options::default()
    };
    let results = engine::run(&options, "smoke", &mut Quiet).unwrap();
    let relays: Vec<&str> = results
        .cases
        .iter()
        .map(|case| case.relay.as_str())
        .collect();
    assert!(
        relays.contains(&"mcr-xdp") && relays.contains(&"xdp-floor"),
        "{relays:?}"
    );
    for case in &results.cases {
        assert_eq!(case.skipped, None, "{}", case.relay);
        let trial = &case.trials[0];
        assert!(
            trial.volume.delivered > 0 && trial.missing() >= 0,
            "{}: {trial:?}",
            case.relay
        );
        if let Some(relay) = trial.relay.filter(|_| case.relay == "mcr-xdp") {
            assert_eq!(relay.sent, trial.volume.delivered, "{trial:?}");
            assert_eq!(relay.received, relay.sent + relay.dropped, "{trial:?}");
        }
    }
}

struct Quiet;

impl engine::Watch for Quiet {
    fn trial(&mut self, _: engine::Progress<'_>) -> Result<()> {
        Ok(())
    }

    fn keep(&mut self, _: &Results) -> Result<()> {
        Ok(())
    }
}

fn check(what: &str, trial: &Trial) {
    assert!(trial.volume.sent > 0, "{what}");
    assert_eq!(trial.missing(), 0, "{what}: {:?}", trial.drops);
    assert_eq!(trial.unexplained(), 0, "{what}: {:?}", trial.drops);
    if let Some(relay) = trial.relay {
        assert_eq!(relay.received, trial.volume.sent, "{what}");
        assert_eq!(relay.sent, trial.volume.expected, "{what}");
        assert_eq!(relay.dropped, 0, "{what}");
    }
}

fn is_installed(relay: &Relay) -> bool {
    let program = match relay {
        Relay::Socat => "socat",
        Relay::KernelRouting => "smcrouted",
        _ => return true,
    };
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|directory| directory.join(program).exists());
    if !found {
        eprintln!("skipped: {relay}: {program} is not installed");
    }
    found
}
