//! What the packets of a watched route are inspected for, on both paths.

use packet::health::Content;
use rules::health::Inspect;

/// The content to look for. For a range, whose packets belong to many streams, only arrival times are
/// recorded.
pub(crate) const fn content(inspect: Inspect, is_range: bool) -> Content {
    match inspect.content {
        _ if is_range => Content::None,
        rules::health::Content::None => Content::None,
        rules::health::Content::Auto => Content::Auto,
        rules::health::Content::Rtp => Content::Rtp,
        rules::health::Content::Ts => Content::Ts,
    }
}
