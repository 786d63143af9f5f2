//! IGMP and MLD packets from a network.

use igmp::codec::{Message, RouterMessage, craft, read, write};

/// Reads the bytes as a packet; its message is the same after it was written and read again.
///
/// # Panics
/// If it is not.
pub fn membership(data: &[u8]) {
    let Ok(received) = read(data) else {
        return;
    };
    let written = match &received.message {
        Message::Report(report) => craft::report(received.from, report),
        Message::Query(query) => {
            // A query is written in the newest version, and times as bytes hold them.
            let written = write(received.from, &RouterMessage::Query(query.clone()));
            if let Some((_, packet)) = written {
                let again = read(&packet).map(|received| received.message);
                assert!(matches!(again, Ok(Message::Query(again))
                    if again.group == query.group && again.sources == query.sources));
            }
            return;
        }
        Message::RouterSolicitation => return,
    };
    if let Some((_, packet)) = written {
        assert_eq!(read(&packet), Ok(received));
    }
}
