//! A log that is not read blocks nothing.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

use lab::daemon::{Daemon, Options};
use lab::topology::Chain;
use nix::libc::O_NONBLOCK;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

#[test]
fn a_log_that_nobody_reads_holds_up_no_change_and_no_end() {
    let chain = Chain::plain().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("log");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let mut open = OpenOptions::new();
    open.read(true).write(true).custom_flags(O_NONBLOCK);
    let mut ends = open.open(&pipe).unwrap();
    let run = format!("exec \"$@\" 2> {}", pipe.display());
    let through = ["sh", "-c", &run, "sh"].map(str::to_owned).to_vec();
    let options = Options {
        under: through,
        ..Options::default()
    };
    let mut daemon = Daemon::start(&chain.relay, options).unwrap();
    let full = loop {
        if let Err(error) = ends.write(&[b'x'; 512]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    for number in 1..=20 {
        let (input, output) = (
            format!("239.1.1.{number}%veth1:5001"),
            format!("239.10.1.{number}%veth2:6001"),
        );
        daemon
            .add(&format!("cam{number}"), &input, &[&output])
            .unwrap();
    }
    assert_eq!(daemon.stats().unwrap().rules.len(), 20);
    let ended = daemon.stop(Signal::SIGTERM).unwrap();
    assert!(ended.status.success(), "{:?}", ended.status);
}
