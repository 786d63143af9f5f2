//! Metrics of the interfaces of outputs on demand. A relay without such outputs has no samples here.

use std::borrow::Cow;

use api::reply::DemandStats;

use super::{Label, Page};

/// Writes the families.
pub(super) fn families(page: &mut Page, links: &[DemandStats]) {
    if links.is_empty() {
        return;
    }
    let label = |key, text: &String| -> Label<'_> { (key, Cow::Owned(text.clone())) };
    let links: Vec<_> = links
        .iter()
        .map(|link| {
            let labels = [
                label("interface", &link.interface),
                label("protocol", &link.protocol),
            ];
            (labels, link)
        })
        .collect();
    page.counters(DemandStats::COUNTERS, &links);
}
