//! The two namespaces, and the parts of a test run.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sys::netns::Namespace;
use traffic::endpoint::{Destination, Listen};
use traffic::generator::{self, Options};
use traffic::receiver;
use traffic::report::{ReceiveReport, SendReport};

/// A sender's and a receiver's namespace, veth0 - veth1.
pub(crate) struct Pair {
    pub(crate) sender: Namespace,
    pub(crate) receiver: Namespace,
}

impl Pair {
    /// `None`, with the reason printed, where namespaces cannot be made.
    pub(crate) fn new() -> Option<Self> {
        let make = |label| Namespace::create("mcrtraffic", label);
        let (sender, receiver) = match (make("sender"), make("receiver")) {
            (Ok(sender), Ok(receiver)) => (sender, receiver),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let pair = Self { sender, receiver };
        let peer = pair.receiver.name().to_owned();
        ip(
            &pair.sender,
            &format!("link add veth0 type veth peer name veth1 netns {peer}"),
        );
        for (namespace, device, number) in
            [(&pair.sender, "veth0", 1), (&pair.receiver, "veth1", 2)]
        {
            ip(
                namespace,
                &format!("addr add 10.0.0.{number}/24 dev {device}"),
            );
            ip(
                namespace,
                &format!("addr add fd00::{number}/64 dev {device} nodad"),
            );
            ip(namespace, &format!("link set {device} up"));
        }
        for (namespace, device) in [(&pair.sender, "veth0"), (&pair.receiver, "veth1")] {
            wait_until_ipv6_works(namespace, device);
        }
        Some(pair)
    }

    /// Receives what `options` send, until `expect` packets arrived or 10 seconds passed.
    pub(crate) fn exchange(
        &self,
        endpoints: &[&str],
        options: &Options,
        expect: u64,
    ) -> (SendReport, ReceiveReport) {
        let endpoints = endpoints.iter().map(|text| listen(text)).collect();
        let control = receiver::Control::default();
        thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let receive = || receiver::run(&until(endpoints, expect), &control);
                self.receiver.run(receive).unwrap().unwrap()
            });
            wait_until_ready(&control);
            let send = || generator::run(options, &generator::Control::default());
            let sent = self.sender.run(send).unwrap().unwrap();
            (sent, receiving.join().unwrap())
        })
    }
}

pub(crate) fn until(endpoints: Vec<Listen>, count: u64) -> receiver::Options {
    receiver::Options {
        endpoints,
        count: Some(count),
        duration: Some(Duration::from_secs(10)),
        idle: None,
        cpu: None,
    }
}

pub(crate) fn wait_until_ready(control: &receiver::Control) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !control.ready.load(Ordering::Acquire) {
        assert!(Instant::now() < deadline, "the receiver never became ready");
        thread::sleep(Duration::from_millis(1));
    }
}

/// IPv6 sends nothing until duplicate address detection has accepted the link-local address.
pub(crate) fn wait_until_ipv6_works(namespace: &Namespace, device: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut command = namespace.command("ip");
        command.args(["-6", "addr", "show", "dev", device]);
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        if shown.contains("scope link") && !shown.contains("tentative") {
            return;
        }
        assert!(Instant::now() < deadline, "{device} has no IPv6: {shown}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn ip(namespace: &Namespace, arguments: &str) {
    let status = namespace
        .command("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}

pub(crate) fn listen(text: &str) -> Listen {
    Listen::resolve(&text.parse().unwrap()).unwrap()
}

pub(crate) fn to(texts: &[&str]) -> Options {
    let resolve = |text: &&str| Destination::resolve(&text.parse().unwrap()).unwrap();
    let destinations = texts.iter().flat_map(resolve).collect();
    Options {
        rate_pps: Some(10_000.0),
        count: Some(500),
        ..Options::to(destinations)
    }
}

pub(crate) fn is_clean(report: &ReceiveReport) -> bool {
    let total = &report.total;
    !total.has_loss() && total.duplicated == 0 && total.reordered == 0
}
