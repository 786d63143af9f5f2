//! An output whose name has several addresses, each of which gets a copy.

use std::collections::BTreeMap;

use api::reply::{AddressStats, State, Traffic};
use compile::OutputView;
use compile::table::Output;
use dataplane::counters::{OutputCounters, RuleCounters};

use super::dropped;

/// The counters of an output, summed over all addresses that its name has or had.
pub(super) fn sum(counted: &RuleCounters, number: u64) -> OutputCounters {
    let mut sum = OutputCounters::default();
    for (index, output) in &counted.outputs {
        if Output::number(*index) == number {
            sum.sent.add(output.sent);
            sum.dropped.add(&output.dropped);
        }
    }
    sum
}

/// The statistics of each address of a name.
pub(super) fn addresses(
    view: &OutputView,
    enabled: bool,
    counted: &RuleCounters,
) -> Option<Vec<AddressStats>> {
    let copies = view.copies.as_ref()?.all.iter();
    let stats = copies.map(|copy| {
        let counted = counted.outputs.get(&copy.index);
        AddressStats {
            address: copy.address.clone(),
            state: match &copy.down {
                _ if !enabled => State::Disabled,
                Some(_) => State::Down,
                None => State::Up,
            },
            reason: copy.down.as_ref().map(|down| down.text.clone()),
            sent: counted.map_or_else(Traffic::default, |counted| counted.sent),
            dropped: counted.map_or_else(BTreeMap::new, |counted| dropped(&counted.dropped)),
        }
    });
    Some(stats.collect())
}

/// Why some of the addresses of a name get no copies.
pub(super) fn copy_down(view: &OutputView) -> Option<String> {
    let copies = view.copies.as_ref()?;
    let mut down = copies.all.iter().filter_map(|copy| copy.down.as_ref());
    let first = down.next()?;
    Some(format!(
        "{} of {} addresses get no copies: {}",
        1 + down.count(),
        copies.all.len(),
        first.text
    ))
}
