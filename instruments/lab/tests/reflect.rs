//! Rules that reflect: requests and answers cross, each once, and several reflectors on the same
//! networks make no storm.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api::reply::RuleStats;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::process::{self, Process};
use lab::socket::{Receiver, Sender, number, payload};
use lab::wait;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

lab::on_both_paths!(
    several_reflectors_on_the_same_networks_make_no_storm,
    a_search_is_answered_by_unicast,
    a_service_is_found_across,
);

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two networks, each with a host, and reflectors on both.
pub(crate) struct Bed {
    _switch: Namespace,
    pub(crate) hosts: [Namespace; 2],
    pub(crate) reflectors: Vec<Namespace>,
}

impl Bed {
    /// Host n owns 10.0.n.100 and fd00:n::100, reflector r of network n 10.0.n.r+1 and fd00:n::r+1.
    pub(crate) fn new(reflectors: usize) -> Self {
        let switch = Namespace::new("switch").unwrap();
        for network in 0..2 {
            let add = format!("link add lan{network} type bridge mcast_snooping 0");
            switch.ip(&add).unwrap();
            link::up((&switch, &format!("lan{network}"))).unwrap();
        }
        let hosts = [0, 1].map(|network| {
            let host = Namespace::new(&format!("host{network}")).unwrap();
            plug(&switch, network, (&host, "eth0"), 100);
            link::multicast_route((&host, "eth0")).unwrap();
            let route = format!("route add default via 10.0.{network}.1");
            host.ip(&route).unwrap();
            host
        });
        let reflectors = (0..reflectors).map(|number| {
            let reflector = Namespace::new(&format!("reflector{number}")).unwrap();
            for network in 0..2 {
                let name = format!("eth{network}");
                plug(&switch, network, (&reflector, &name), number + 1);
            }
            reflector
        });
        let reflectors = reflectors.collect();
        Self {
            _switch: switch,
            hosts,
            reflectors,
        }
    }

    pub(crate) fn host(&self, network: usize) -> link::End<'_> {
        (&self.hosts[network], "eth0")
    }

    pub(crate) fn start(&self, path: &str, rules: &str) -> Vec<Daemon> {
        let options = || Options {
            config: Some(format!("version = 1\n{rules}")),
            ..Options::path(path)
        };
        let daemons: Vec<_> = self
            .reflectors
            .iter()
            .map(|reflector| Daemon::start(reflector, options()).unwrap())
            .collect();
        for daemon in &daemons {
            let is_joined = |rule: &RuleStats| rule.inputs.iter().all(|input| input.joined);
            for rule in daemon.stats().unwrap().rules {
                daemon
                    .wait_for(&rule.name, "it listens", is_joined)
                    .unwrap();
            }
        }
        daemons
    }
}

fn plug(switch: &Namespace, network: usize, end: link::End<'_>, number: usize) {
    let port = format!("p{network}-{number}");
    link::veth((switch, &port), end).unwrap();
    let join = format!("link set {port} master lan{network}");
    switch.ip(&join).unwrap();
    link::address(end, &format!("10.0.{network}.{number}/24")).unwrap();
    link::address(end, &format!("fd00:{network}::{number}/64")).unwrap();
}

pub(crate) fn reflecting(name: &str, group: &str, more: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nmode = \"reflect\"\ninterfaces = [\"eth0\", \"eth1\"]\n\
         group = \"{group}\"\n{more}\n"
    )
}

fn copies(daemons: &[Daemon], rule: &str) -> u64 {
    let rules = daemons.iter().map(|daemon| daemon.rule(rule).unwrap());
    rules
        .flat_map(|rule| rule.outputs)
        .map(|output| output.sent.packets)
        .sum()
}

fn several_reflectors_on_the_same_networks_make_no_storm(path: &str) {
    const REFLECTORS: usize = 3;
    const PACKETS: u64 = 40;
    let bed = Bed::new(REFLECTORS);
    let rules = [
        reflecting("kept", "239.255.255.250:1900", "source = \"keep\""),
        reflecting("mdns", "224.0.0.251:5353", "ttl = 255"),
        reflecting("mdns6", "[ff02::fb]:5353", ""),
    ];
    let daemons = bed.start(path, &rules.concat());
    for (rule, group, port, sources) in [
        (
            "kept",
            "239.255.255.250",
            1900,
            ["10.0.0.100", "10.0.1.100"],
        ),
        ("mdns", "224.0.0.251", 5353, ["10.0.0.100", "10.0.1.100"]),
        ("mdns6", "ff02::fb", 5353, ["fd00:0::100", "fd00:1::100"]),
    ] {
        let group = ip(group);
        let receivers =
            [0, 1].map(|network| Receiver::join(bed.host(network), group, port).unwrap());
        let senders =
            [0, 1].map(|network| Sender::open(bed.host(network), ip(sources[network])).unwrap());
        for n in 0..PACKETS {
            for (network, sender) in senders.iter().enumerate() {
                let own = n + network as u64 * PACKETS;
                sender.send(group, port, &payload(own, 100)).unwrap();
            }
        }
        for (network, receiver) in receivers.iter().enumerate() {
            let others = (1 - network as u64) * PACKETS..(2 - network as u64) * PACKETS;
            let mut missing: Vec<u64> = others.collect();
            while !missing.is_empty() {
                let received = receiver.receive(PATIENCE).unwrap();
                let datagram =
                    received.unwrap_or_else(|| panic!("{rule}: {missing:?} did not cross"));
                let arrived = number(&datagram.payload).unwrap();
                missing.retain(|number| *number != arrived);
            }
        }
        // Each reflector sends each packet at most once, regardless of the others, and then there is silence.
        let most = 2 * PACKETS * REFLECTORS as u64;
        let mut before = 0;
        wait::until("nothing moves", || {
            let now = copies(&daemons, rule);
            std::thread::sleep(Duration::from_millis(300));
            std::mem::replace(&mut before, now) == now
        })
        .unwrap();
        assert!(
            before >= 2 * PACKETS && before <= most,
            "{rule}: {before} copies"
        );
        for daemon in &daemons {
            let counted = daemon.rule(rule).unwrap();
            let received = counted.received.packets;
            assert!(counted.dropped.contains_key("duplicate"), "{counted:?}");
            daemon.settled(rule, received).unwrap();
        }
    }
}

/// SSDP: a search is answered by unicast, so it keeps its sender's address.
fn a_search_is_answered_by_unicast(path: &str) {
    const SEARCH: &[u8] = b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n\
        MAN: \"ssdp:discover\"\r\nMX: 1\r\nST: upnp:rootdevice\r\n\r\n";
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\n\r\n";
    let bed = Bed::new(1);
    bed.reflectors[0]
        .sysctl("net/ipv4/ip_forward", "1")
        .unwrap();
    let rule = reflecting("ssdp", "239.255.255.250:1900", "source = \"keep\"");
    let daemons = bed.start(path, &rule);
    let group = ip("239.255.255.250");
    let device = Receiver::join(bed.host(1), group, 1900).unwrap();
    let bind = |host: &Namespace, at: &str| {
        let at: SocketAddr = at.parse().unwrap();
        host.run(|| Ok(UdpSocket::bind(at)?)).unwrap()
    };
    let control = bind(&bed.hosts[0], "10.0.0.100:0");
    control.set_read_timeout(Some(PATIENCE)).unwrap();
    control.set_multicast_ttl_v4(2).unwrap();
    // The same search of another socket at the same time is another search.
    let other = bind(&bed.hosts[0], "10.0.0.100:0");
    for asking in [&control, &other] {
        asking
            .send_to(SEARCH, SocketAddr::new(group, 1900))
            .unwrap();
        let asked = device.receive(PATIENCE).unwrap().unwrap();
        assert_eq!(asked.payload, SEARCH);
        assert_eq!(asked.from, asking.local_addr().unwrap());
    }
    let answering = bind(&bed.hosts[1], "10.0.1.100:1900");
    answering
        .send_to(ANSWER, control.local_addr().unwrap())
        .unwrap();
    let mut buffer = [0; 1500];
    let (length, from) = control.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], ANSWER);
    assert_eq!(from, "10.0.1.100:1900".parse().unwrap());
    daemons[0].settled("ssdp", 2).unwrap();
}

/// A Python program in one network discovers a service that another registers in the other.
fn a_service_is_found_across(path: &str) {
    if !has_zeroconf() {
        eprintln!("skipped: python3-zeroconf is not there");
        return;
    }
    let bed = Bed::new(2);
    let rules = reflecting("mdns", "224.0.0.251:5353", "");
    let _daemons = bed.start(path, &rules);
    let registers = python(
        &bed.hosts[1],
        "import socket, time\n\
         info = ServiceInfo('_ipp._tcp.local.', 'Printer._ipp._tcp.local.', port=631,\n\
           addresses=[socket.inet_aton('10.0.1.100')], server='printer.local.')\n\
         Zeroconf(interfaces=['10.0.1.100'], ip_version=IPVersion.V4Only).register_service(info)\n\
         print('registered', flush=True)\n\
         time.sleep(600)\n",
    );
    let registers = Process::start(registers).unwrap();
    wait::until("it has registered", || {
        registers.stdout().contains("registered")
    })
    .unwrap();
    let finds = python(
        &bed.hosts[0],
        "found = Zeroconf(interfaces=['10.0.0.100'], ip_version=IPVersion.V4Only)\n\
         info = found.get_service_info('_ipp._tcp.local.', 'Printer._ipp._tcp.local.', 15000)\n\
         print(info.server, info.parsed_addresses(), info.port)\n\
         found.close()\n",
    );
    let output = process::run(finds, PATIENCE).unwrap().success().unwrap();
    assert_eq!(output.trim(), "printer.local. ['10.0.1.100'] 631");
}

fn python(host: &Namespace, program: &str) -> Command {
    let mut python = host.command("/usr/bin/python3");
    let program = format!("from zeroconf import IPVersion, ServiceInfo, Zeroconf\n{program}");
    python.args(["-c", &program]);
    python
}

fn has_zeroconf() -> bool {
    Path::new("/usr/lib/python3/dist-packages/zeroconf/__init__.py").exists()
}
