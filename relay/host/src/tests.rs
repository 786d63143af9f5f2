//! The follower against the kernel, in separate namespaces.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use compile::host::{Destination, NextHop, PacketQuery};
use nix::sys::socket::{setsockopt, sockopt::BindToDevice};
use rules::net::Mac;
use sys::netns::Namespace;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::*;

/// The kernel asks a neighbour three times, a second apart, before it gives up for a while.
const PATIENCE: Duration = Duration::from_secs(20);

fn namespace(label: &str) -> Option<Namespace> {
    Namespace::create("mcrhost", label)
        .inspect_err(|error| println!("skipped: no namespace: {error}"))
        .ok()
}

fn ip(namespace: &Namespace, arguments: &str) {
    let mut command: Command = namespace.command("ip");
    let status = command.args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Runs in the namespace with a separate runtime, as the daemon does.
fn inside<F: Future<Output = ()>>(namespace: &Namespace, work: impl FnOnce() -> F + Send) {
    let run = || {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        runtime.unwrap().block_on(work());
    };
    namespace.run(run).unwrap();
}

/// Waits for a report that meets `condition`.
async fn until(
    changes: &mut mpsc::Receiver<Snapshot>,
    condition: impl Fn(&Snapshot) -> bool,
) -> Snapshot {
    let matching = async {
        loop {
            let snapshot = changes.recv().await.unwrap();
            if condition(&snapshot) {
                return snapshot;
            }
        }
    };
    timeout(PATIENCE, matching).await.expect("a report in time")
}

fn query(destination: &str, interface: Option<&str>) -> NextHopQuery {
    NextHopQuery {
        destination: Destination::Address(destination.parse().unwrap()),
        interface: interface.map(str::to_owned),
        packet: PacketQuery::default(),
    }
}

#[test]
fn links_and_addresses_are_followed() {
    let Some(here) = namespace("links") else {
        return;
    };
    inside(&here, async || {
        let (watch, mut changes) = follow().unwrap();
        let snapshot = watch.read(Vec::new()).await.unwrap();
        assert!(snapshot.host.by_name("lo").is_some());
        assert!(snapshot.host.by_name("eth0").is_none());
        ip(&here, "link add eth0 type veth peer name peer0");
        let snapshot = until(&mut changes, |s| s.host.by_name("eth0").is_some()).await;
        assert!(!snapshot.host.by_name("eth0").unwrap().up);
        ip(&here, "addr add 10.0.0.1/24 dev eth0");
        ip(&here, "addr add 10.0.0.2/24 dev eth0");
        ip(&here, "link set eth0 mtu 1400 up");
        // Up without carrier, as its peer is down.
        let addresses = |s: &Snapshot| s.host.by_name("eth0").unwrap().addresses.len() >= 2;
        let snapshot = until(&mut changes, |s| {
            addresses(s) && s.host.by_name("eth0").unwrap().mtu == 1400
        })
        .await;
        assert!(!snapshot.host.by_name("eth0").unwrap().up);
        ip(&here, "link set peer0 up");
        let snapshot = until(&mut changes, |s| s.host.by_name("eth0").unwrap().up).await;
        let eth0 = snapshot.host.by_name("eth0").unwrap().clone();
        assert_eq!(
            eth0.primary_address([10, 9, 9, 9].into()),
            Some([10, 0, 0, 1].into())
        );
        ip(&here, "addr del 10.0.0.1/24 dev eth0");
        ip(&here, "link delete eth0");
        let snapshot = until(&mut changes, |s| s.renewed.contains(&eth0.index)).await;
        assert!(snapshot.host.by_name("eth0").is_none());
    });
}

#[test]
fn a_queued_report_does_not_hide_a_later_answer() {
    let Some(here) = namespace("order") else {
        return;
    };
    inside(&here, async || {
        let (watch, mut changes) = follow().unwrap();
        watch.read(Vec::new()).await.unwrap();
        ip(&here, "link add eth0 type veth peer name peer0");
        // The report is not received yet.
        while changes.is_empty() {
            tokio::task::yield_now().await;
        }
        ip(&here, "link set peer0 up");
        ip(&here, "link set eth0 up");
        ip(&here, "addr add 10.0.0.1/24 dev eth0");
        let mut answer = watch.read(Vec::new()).await.unwrap();
        let mut report = changes.recv().await.unwrap();
        assert!(report.reading < answer.reading);
        let eth0 = answer.host.by_name("eth0").unwrap().index;
        let before = answer.host.clone();
        report.renewed.insert(Ifindex(77));
        answer.take_up(report.clone());
        report.take_up(answer.clone());
        for newest in [answer, report] {
            assert_eq!(newest.host, before);
            assert!(newest.renewed.contains(&Ifindex(77)));
            assert!(newest.came_back(&before).contains(&eth0));
        }
    });
}

/// Addresses of one interface, in the order in which they are added.
const ADDRESSES: [&[&str]; 11] = [
    &["10.0.0.1/24", "169.254.7.7/16 scope link"],
    &["169.254.7.7/16 scope link", "10.0.0.1/24"],
    &["10.0.0.1/24", "10.0.0.2/24", "10.0.1.1/24 scope host"],
    &[
        "10.0.1.1/24 scope site",
        "10.0.2.1/24 preferred_lft 0",
        "10.0.3.1/24",
    ],
    &["2001:db8::1/64 nodad"],
    &[
        "fd00::1/64 nodad",
        "2001:db8::1/64 nodad",
        "2002:a00:1::1/64 nodad",
    ],
    &[
        "2001:db8::1/64 nodad",
        "2001:db8::2/64 nodad preferred_lft 0",
        "fd00::1/64 nodad",
    ],
    &["2001:db8::2/64 nodad preferred_lft 0", "fd00::1/64 nodad"],
    // Some of the bits within the prefix equal a group's, too.
    &[
        "::3f/96 nodad",
        "fec0::59/64 nodad",
        "2001:db8::1/128 nodad",
    ],
    &["2001:10::b4/64 nodad", "fc00::35/48 nodad"],
    &["2001:db8::1/64 nodad", "2001:db8:1::1/64 home nodad"],
];

const GROUPS_OF_ALL_SCOPES: [&str; 6] = [
    "239.1.1.1",
    "ff01::7",
    "ff02::7",
    "ff05::7",
    "ff0e::7",
    "ff3e::7",
];

#[test]
fn groups_leave_from_the_address_that_a_socket_would_choose() {
    for addresses in ADDRESSES {
        let Some(here) = namespace("choice") else {
            return;
        };
        ip(&here, "link add eth0 type veth peer name peer0");
        ip(&here, "link set peer0 up");
        ip(&here, "link set eth0 address 02:00:00:00:00:01 up");
        for address in addresses {
            ip(&here, &format!("addr add {address} dev eth0"));
        }
        inside(&here, async || {
            let (watch, _changes) = follow().unwrap();
            let settled = async || {
                loop {
                    let host = watch.read(Vec::new()).await.unwrap().host;
                    let eth0 = host.by_name("eth0").unwrap().clone();
                    let local = |address: &IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
                    // Duplicate address detection takes a second.
                    if eth0.addresses.iter().any(local) {
                        return eth0;
                    }
                }
            };
            timeout(PATIENCE, settled()).await.expect("an address");
            for group in GROUPS_OF_ALL_SCOPES {
                let asked = query(group, Some("eth0"));
                let group = group.parse::<IpAddr>().unwrap();
                let host = watch.read(vec![asked.clone()]).await.unwrap().host;
                if let Some(chosen) = choice_of_a_socket("eth0", group) {
                    let source = host.next_hops[&asked].source();
                    assert_eq!(source, Some(chosen), "{group} from {addresses:?}");
                }
            }
        });
    }
}

/// The address from which a socket sends to `group`; `None` if it has none.
fn choice_of_a_socket(device: &str, group: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match group {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0_u16; 8].into(),
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    setsockopt(&socket, BindToDevice, &device.into()).unwrap();
    socket.connect((group, 5001)).ok()?;
    let chosen = socket.local_addr().unwrap().ip();
    (!chosen.is_unspecified()).then_some(chosen)
}

#[test]
fn next_hops_are_resolved_and_followed() {
    let (Some(here), Some(there)) = (namespace("here"), namespace("there")) else {
        return;
    };
    ip(&here, "link add eth0 type veth peer name peer0");
    ip(&here, &format!("link set peer0 netns {}", there.name()));
    ip(&here, "addr add 10.0.0.1/24 dev eth0");
    ip(&here, "link set eth0 up");
    ip(&here, "link set lo up");
    ip(&there, "addr add 10.0.0.2/24 dev peer0");
    ip(&there, "link set peer0 address 02:00:00:00:00:02 up");
    inside(&here, async || {
        let (watch, mut changes) = follow().unwrap();
        let [near, far, silent, own] = [
            query("10.0.0.2", None),
            query("10.7.7.7", None),
            query("10.0.0.99", Some("eth0")),
            query("10.0.0.1", None),
        ];
        let queries = vec![near.clone(), far.clone(), silent.clone(), own.clone()];
        let mut snapshot = watch.read(queries).await.unwrap();
        let eth0 = snapshot.host.by_name("eth0").unwrap().index;
        let resolved = |snapshot: &Snapshot, query, last| {
            let mac = Some(Mac([2, 0, 0, 0, 0, last]));
            matches!(snapshot.host.next_hops.get(query),
                Some(NextHop::Resolved { interface, mac: resolved, .. }) if *interface == eth0 && *resolved == mac)
        };
        // A reading waits 50 ms for answers. If the machine is busy, or the kernel's first request was lost
        // because the link had only just come up, the answer is in a later report.
        if !resolved(&snapshot, &near, 2) {
            snapshot = until(&mut changes, |s| resolved(s, &near, 2)).await;
        }
        assert_eq!(snapshot.host.next_hops[&far], NextHop::NoRoute(None));
        assert!(matches!(
            snapshot.host.next_hops[&silent],
            NextHop::Unresolved { .. }
        ));
        assert!(matches!(
            snapshot.host.next_hops[&own],
            NextHop::Here {
                interface: Ifindex(1),
                source: Some(source),
            } if Destination::Address(source) == own.destination
        ));
        // A route with a gateway is added; a silent neighbour answers; one changes its MAC address.
        ip(&here, "route add 10.7.0.0/16 via 10.0.0.2");
        until(&mut changes, |s| resolved(s, &far, 2)).await;
        ip(&there, "addr add 10.0.0.99/24 dev peer0");
        until(&mut changes, |s| resolved(s, &silent, 2)).await;
        ip(
            &here,
            "neigh replace 10.0.0.2 lladdr 02:00:00:00:00:03 dev eth0",
        );
        until(&mut changes, |s| {
            resolved(s, &near, 3) && resolved(s, &far, 3)
        })
        .await;
        ip(&here, "route del 10.7.0.0/16");
        until(&mut changes, |s| {
            s.host.next_hops[&far] == NextHop::NoRoute(None)
        })
        .await;
    });
}
