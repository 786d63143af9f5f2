//! Receivers of every version of IGMP and MLD, and those that choose their sources.

use std::net::Ipv4Addr;

use lab::link;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Bed, OUTPUT, PATIENCE, RANGE, Stream, ip, listeners, wants};

lab::on_both_paths!(
    receivers_of_every_version_are_heard,
    receivers_choose_their_sources
);

fn receivers_of_every_version_are_heard(path: &str) {
    let bed = Bed::new();
    let six = "[ff3e::9:0%eth1]:5000,demand=igmp,querier=yes";
    let rules: [(&str, &str, &[&str]); 2] = [
        ("four", RANGE, &[OUTPUT]),
        ("six", "[ff3e::1:0%eth0]:5000", &[six]),
    ];
    // Before any query: a report that is due is sent in its version.
    for (key, version) in [
        ("net/ipv4/conf/eth0/force_igmp_version", "2"),
        ("net/ipv6/conf/eth0/force_mld_version", "1"),
    ] {
        bed.receivers[0].sysctl(key, version).unwrap();
    }
    let daemon = bed.start(path, &rules);
    let streams = [("10.0.0.2", "239.1.1.1"), ("fd00:0::2", "ff3e::1:0")]
        .map(|(source, group)| bed.stream(source, &[group]));
    for (receiver, versions) in [(0, ["igmpv2", "mldv1"]), (1, ["igmpv3", "mldv2"])] {
        let sinks = ["239.9.9.1", "ff3e::9:0"].map(|group| bed.join(receiver, group));
        for sink in &sinks {
            sink.receive(PATIENCE)
                .unwrap()
                .expect("what is listened to comes");
        }
        for (rule, version) in ["four", "six"].iter().zip(versions) {
            let hosts = listeners(&daemon, rule);
            let protocols: Vec<&str> = hosts.iter().map(|host| host.protocol.as_str()).collect();
            assert_eq!(protocols, [version], "{rule}");
        }
        drop(sinks);
        for rule in ["four", "six"] {
            daemon.wait_for(rule, "nobody listens", wants(0)).unwrap();
        }
    }
    drop(streams);
}

fn receivers_choose_their_sources(path: &str) {
    let bed = Bed::new();
    link::address((&bed.sender, "eth0"), "10.0.0.3/24").unwrap();
    let output = "232.9.9.1%eth1:5000,source=keep,demand=igmp,querier=yes";
    let daemon = bed.start(path, &[("ssm", "232.1.1.1%eth0:5000", &[output])]);
    let streams = ["10.0.0.2", "10.0.0.3"].map(|source| bed.stream(source, &["232.1.1.1"]));
    let sink = bed.receivers[0].run(|| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&"232.9.9.1:5000".parse::<std::net::SocketAddr>()?.into())?;
        let (group, source) = (Ipv4Addr::new(232, 9, 9, 1), Ipv4Addr::new(10, 0, 0, 3));
        let interface = Ipv4Addr::new(10, 0, 1, 101);
        socket.join_ssm_v4(&source, &group, &interface)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(std::net::UdpSocket::from(socket))
    });
    let sink = sink.unwrap();
    let mut buffer = [0; 2000];
    let (_, from) = sink.recv_from(&mut buffer).unwrap();
    assert_eq!(from.ip(), ip("10.0.0.3"));
    daemon.wait_for("ssm", "one is wanted", wants(1)).unwrap();
    let known = listeners(&daemon, "ssm");
    assert_eq!(
        (known[0].mode.as_str(), &known[0].sources[..]),
        ("include", &["10.0.0.3".to_owned()][..])
    );
    // The relay requests only that source from its own network.
    let joined = bed.relay.read_proc_net("mcfilter").unwrap();
    assert!(
        joined.contains("0x0a000003") && !joined.contains("0x0a000002"),
        "{joined}"
    );
    drop(sink);
    let sent = streams.into_iter().map(Stream::end).sum();
    let rule = daemon.settled("ssm", sent).unwrap();
    assert!(rule.outputs[0].dropped["not_wanted"] > 0, "{rule:?}");
}
