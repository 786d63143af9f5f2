//! One bad output stops nothing else, and comes up once it can.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use api::reply::State;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    a_missing_output_interface_is_counted_and_comes_up_later,
    an_input_interface_that_appears_later_is_joined,
    an_output_interface_that_goes_down_is_counted_and_returns,
    the_source_address_follows_the_interface,
    an_output_ends_up_whose_addresses_are_replaced_while_rules_change,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn sender(chain: &Chain) -> Sender {
    Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap()
}

fn config(input: &str, outputs: &[&str]) -> Options {
    Options {
        config: Some(format!(
            "version = 1\n[[rule]]\nname = \"cam1\"\ninput = {input:?}\noutputs = {outputs:?}\n"
        )),
        ..Options::default()
    }
}

fn start(chain: &Chain, path: &str, input: &str, outputs: &[&str]) -> Daemon {
    let mut options = config(input, outputs);
    options.path = Some(path.to_owned());
    Daemon::start(&chain.relay, options).unwrap()
}

fn wait_for_output(daemon: &Daemon, output: usize, state: State) {
    daemon
        .wait_for("cam1", &format!("output {output} is {state:?}"), |rule| {
            rule.outputs[output].state == state
        })
        .unwrap();
}

fn a_missing_output_interface_is_counted_and_comes_up_later(path: &str) {
    let chain = Chain::plain().unwrap();
    let outputs = ["239.10.1.1%veth2:6001", "239.10.1.2%late0:6002"];
    let daemon = start(&chain, path, "239.1.1.1%veth1:5001", &outputs);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = sender(&chain);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 100)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    let rule = daemon.settled("cam1", 50).unwrap();
    assert_eq!(rule.state, State::Degraded);
    assert_eq!(rule.outputs[1].dropped.get("interface_missing"), Some(&50));

    let other = Namespace::new("late").unwrap();
    link::veth((&chain.relay, "late0"), (&other, "late1")).unwrap();
    link::address((&chain.relay, "late0"), "10.0.5.1/24").unwrap();
    link::address((&other, "late1"), "10.0.5.2/24").unwrap();
    wait_for_output(&daemon, 1, State::Up);
    let late = Receiver::join((&other, "late1"), ip("239.10.1.2"), 6002).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 100)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    late.expect(50, PATIENCE).unwrap();
    daemon.settled("cam1", 100).unwrap();
}

fn an_input_interface_that_appears_later_is_joined(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = start(
        &chain,
        path,
        "239.1.1.1%late0:5001",
        &["239.10.1.1%veth2:6001"],
    );
    assert!(!daemon.rule("cam1").unwrap().inputs[0].joined);
    let other = Namespace::new("late").unwrap();
    link::veth((&chain.relay, "late0"), (&other, "late1")).unwrap();
    link::address((&chain.relay, "late0"), "10.0.5.1/24").unwrap();
    link::address((&other, "late1"), "10.0.5.2/24").unwrap();
    daemon
        .wait_for("cam1", "the input is joined", |rule| rule.inputs[0].joined)
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&other, "late1"), ip("10.0.5.2")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 100)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    daemon.settled("cam1", 50).unwrap();
}

fn an_output_interface_that_goes_down_is_counted_and_returns(path: &str) {
    let chain = Chain::plain().unwrap();
    let outputs = ["239.10.1.1%veth2:6001"];
    let daemon = start(&chain, path, "239.1.1.1%veth1:5001", &outputs);
    let sender = sender(&chain);
    link::down((&chain.relay, "veth2")).unwrap();
    wait_for_output(&daemon, 0, State::Down);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 100)
        .unwrap();
    let rule = daemon.settled("cam1", 20).unwrap();
    assert_eq!(rule.outputs[0].dropped.get("interface_down"), Some(&20));
    link::up((&chain.relay, "veth2")).unwrap();
    wait_for_output(&daemon, 0, State::Up);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 100)
        .unwrap();
    sink.expect(20, PATIENCE).unwrap();
    daemon.settled("cam1", 40).unwrap();
}

fn the_source_address_follows_the_interface(path: &str) {
    let chain = Chain::plain().unwrap();
    let outputs = ["239.10.1.1%veth2:6001"];
    let daemon = start(&chain, path, "239.1.1.1%veth1:5001", &outputs);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = sender(&chain);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    let sources = sink.expect(10, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("10.0.1.1")));

    // Without its own address it would use the input's, as a socket's packet does.
    chain.relay.ip("address flush dev veth1").unwrap();
    chain.relay.ip("address del 10.0.1.1/24 dev veth2").unwrap();
    wait_for_output(&daemon, 0, State::Down);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    let rule = daemon.settled("cam1", 20).unwrap();
    assert_eq!(rule.outputs[0].dropped.get("no_address"), Some(&10));

    link::address((&chain.relay, "veth2"), "10.0.1.50/24").unwrap();
    wait_for_output(&daemon, 0, State::Up);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    let sources = sink.expect(10, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("10.0.1.50")));
    daemon.settled("cam1", 30).unwrap();
}

fn an_output_ends_up_whose_addresses_are_replaced_while_rules_change(path: &str) {
    const ROUNDS: u32 = 3;
    let chain = Chain::plain().unwrap();
    // With many rules the daemon follows late: notifications from the host queue up meanwhile.
    let rules = (1..=200).map(|n| {
        format!(
            "[[rule]]\nname = \"cam{n}\"\ninput = \"239.1.1.{n}%veth1:5001\"\n\
             outputs = [\"239.10.1.{n}%veth2:6001\"]\n"
        )
    });
    let options = Options {
        config: Some(format!("version = 1\n{}", rules.collect::<String>())),
        ..Options::path(path)
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    for round in 0..ROUNDS {
        // Separate networks, so that no address is removed with another.
        let mut batch = String::new();
        for step in 0..10 {
            let (old, new) = (round * 10 + step, round * 10 + step + 1);
            let old = match old {
                0 => "10.0.1.1/24".to_owned(),
                old => format!("10.77.{old}.1/24"),
            };
            let mut steps = [
                format!("address add 10.77.{new}.1/24 dev veth2\n"),
                format!("address del {old} dev veth2\n"),
            ];
            // Sometimes it has no address in between.
            steps.rotate_left(step as usize % 2);
            batch.push_str(&steps.concat());
        }
        std::thread::scope(|scope| {
            let burst = scope.spawn(|| chain.relay.ip_batch(&batch).unwrap());
            // Changes read the host by themselves.
            let change = |port: u16| {
                let (input, name) = (format!("239.1.2.1%veth1:{port}"), format!("other{port}"));
                for _ in 0..3 {
                    daemon
                        .add(&name, &input, &["239.10.2.1%veth1:6009"])
                        .unwrap();
                    daemon.mcr(&["remove", &name]).unwrap();
                }
            };
            for port in 5011..5015 {
                scope.spawn(move || change(port));
            }
            burst.join().unwrap();
        });
        wait_for_output(&daemon, 0, State::Up);
        let last = ip(&format!("10.77.{}.1", (round + 1) * 10));
        lab::wait::until("the output has the address that is left", || {
            let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
            let probe = sender(&chain).send(ip("239.1.1.1"), 5001, b"probe");
            probe.unwrap();
            let received = sink.receive(Duration::from_millis(50)).unwrap();
            received.is_some_and(|datagram| datagram.from.ip() == last)
        })
        .unwrap();
    }
}
