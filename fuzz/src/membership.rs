//! IGMP and MLD as they come by a network.

use igmp::codec::{Message, RouterMessage, craft, read, write};

/// Reads the bytes as a packet; what was read comes out the same when it is written and read again.
///
/// # Panics
/// Where it does not.
pub fn membership(data: &[u8]) {
    let Ok(heard) = read(data) else {
        return;
    };
    let written = match &heard.message {
        Message::Report(report) => craft::report(heard.from, report),
        Message::Query(query) => {
            // A query is written in the newest version, and times as bytes hold them.
            let written = write(heard.from, &RouterMessage::Query(query.clone()));
            if let Some((_, packet)) = written {
                let again = read(&packet).map(|heard| heard.message);
                assert!(matches!(again, Ok(Message::Query(again))
                    if again.group == query.group && again.sources == query.sources));
            }
            return;
        }
        Message::RouterSolicitation => return,
    };
    if let Some((_, packet)) = written {
        assert_eq!(read(&packet), Ok(heard));
    }
}
