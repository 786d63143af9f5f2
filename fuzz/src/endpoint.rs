//! Endpoints, outputs and limits as operators write them: whatever can be parsed is written so that it
//! parses the same.

use rules::endpoint::Endpoint;
use rules::limit;
use rules::rule::OutputSpec;
use traffic::endpoint::{Destination, Listen};

/// Largest range that the generator resolves here; larger ones only take longer.
const GROUPS_MAX: u128 = 256;

/// Reads the text as an endpoint, as an output with options, and as a limit with a burst.
///
/// # Panics
/// If the written text does not parse to the same value.
pub fn endpoint(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<Endpoint>() {
        Ok(endpoint) => {
            let written = endpoint.to_string();
            assert_eq!(written.parse().as_ref(), Ok(&endpoint), "{written}");
            assert_eq!(
                written.parse::<Endpoint>().map(|e| e.to_string()),
                Ok(written)
            );
            resolve(&endpoint);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<OutputSpec>() {
        Ok(output) => {
            let written = output.to_string();
            assert_eq!(written.parse().as_ref(), Ok(&output), "{written}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let (rate, burst) = match text.split_once(' ') {
        Some((rate, burst)) => (rate, Some(burst)),
        None => (text, None),
    };
    if let Ok(Some(read)) = limit::parse(Some(rate), burst) {
        let (rate, burst) = (limit::rate_text(&read), limit::burst_text(&read));
        assert_eq!(limit::parse(Some(&rate), burst.as_deref()), Ok(Some(read)));
        let runs = packet::limit::Limit::new(read.rate, read.burst);
        let mut due = 0;
        runs.admit(&mut due, u64::MAX / 2, read.burst);
    }
}

/// Resolves it as `mcr send` and `mcr receive` do.
fn resolve(endpoint: &Endpoint) {
    let groups = 1_u128.checked_shl(endpoint.destination.host_bits().into());
    let count = groups.map(|groups| groups.saturating_mul(endpoint.ports.count().into()));
    if count.is_some_and(|count| count <= GROUPS_MAX) {
        let resolved = Destination::resolve(endpoint).map(|all| all.len() as u128);
        assert!(resolved.is_err() || resolved.ok() == count);
        let listened = Listen::resolve(endpoint).map(|listen| listen.addresses.len() as u128);
        assert!(listened.is_err() || listened.ok() == count);
    }
    let _ = traffic::endpoint::count_up(endpoint, 3);
}
