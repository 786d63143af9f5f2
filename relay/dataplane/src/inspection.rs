//! What the packets of a watched route are inspected for, on both paths.

use model::health::Inspect;
use packet::health::Content;

/// The content that is looked for. Of a range, whose packets belong to many streams, only arrival
/// times are noted.
pub(crate) const fn content(inspect: Inspect, is_range: bool) -> Content {
    match inspect.content {
        _ if is_range => Content::None,
        model::health::Content::None => Content::None,
        model::health::Content::Auto => Content::Auto,
        model::health::Content::Rtp => Content::Rtp,
        model::health::Content::Ts => Content::Ts,
    }
}
