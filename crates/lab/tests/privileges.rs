//! Who may speak to the daemon.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use lab::daemon::{Daemon, Options};
use lab::topology::Chain;

#[test]
fn the_socket_answers_root_and_the_group_alone() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    let socket = fs::metadata(daemon.socket()).unwrap();
    assert_eq!(socket.uid(), 0);
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    let listening = chain.relay.tool("ss", "-Htln").unwrap();
    assert_eq!(listening, "", "nothing listens on TCP by default");
}
