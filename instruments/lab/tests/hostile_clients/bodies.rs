//! Large bodies that are never completed.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::{bed, connect, size};

const BODIES: usize = 400;
/// So much of each body is sent: more than is buffered without reserving room.
const BEGUN: usize = 100 << 10;
/// What is applied meanwhile: some megabytes.
const RULES: u16 = 10_000;
/// Megabytes that they and the change may cost the daemon: the room for bodies, what is buffered
/// without reserving room, and ten thousand rules.
const GROWTH_MB: u64 = 256;

fn begin(bed: &super::Bed) -> UnixStream {
    let mut stream = connect(&bed.socket);
    let head = "POST /v1/rules HTTP/1.1\r\nHost: x\r\nContent-Length: 15000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // Cut off in the middle, it has made room for others.
    let _ = stream.write_all(&vec![b' '; BEGUN]);
    stream
}

#[test]
fn unfinished_bodies_refuse_nobody_a_large_change() {
    let bed = bed();
    let pid = bed.daemon.id();
    let before = size(pid).0;
    let streams: Vec<UnixStream> = (0..BODIES).map(|_| begin(&bed)).collect();
    let begun = size(pid).0;
    let rule = |number: u16| {
        let [high, low] = number.to_be_bytes();
        format!(
            "[[rule]]\nname = \"rule{number}\"\ninput = \"239.2.{high}.{low}%veth1:5001\"\n\
             outputs = [\"239.20.{high}.{low}%veth2:6001\"]\n"
        )
    };
    let text: String = (0..RULES).map(rule).collect();
    let start = Instant::now();
    bed.daemon.apply(&format!("version = 1\n{text}")).unwrap();
    let took = start.elapsed();
    let after = size(pid).0;
    println!(
        "{BODIES} unfinished bodies: {before} MB before, {begun} MB with them, {after} MB with \
         {RULES} rules besides, which took {} ms",
        took.as_millis()
    );
    assert_eq!(bed.daemon.stats().unwrap().rules.len(), usize::from(RULES));
    assert!(after < before + GROWTH_MB, "{before} MB, {after} MB");
    drop(streams);
    assert!(fs::exists(&bed.socket).unwrap(), "the daemon goes on");
}
