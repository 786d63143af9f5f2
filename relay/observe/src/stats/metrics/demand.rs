//! Metrics of the interfaces of outputs on demand. A relay without such outputs has no samples here.

use api::reply::DemandStats;

use super::Page;

/// Writes the families.
pub(super) fn families<'a>(page: &mut Page, links: &'a [DemandStats]) {
    if links.is_empty() {
        return;
    }
    let labels = |link: &'a DemandStats| {
        let (interface, protocol) = (link.interface.as_str(), link.protocol.as_str());
        [
            ("interface", interface.into()),
            ("protocol", protocol.into()),
        ]
    };
    let links: Vec<_> = links.iter().map(|link| (labels(link), link)).collect();
    page.counters(DemandStats::COUNTERS, &links);
}
