//! Memberships on the loopback interface of a namespace of the test's own.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::*;
use crate::netns::Namespace;

/// Index of `lo` in every namespace.
const LO: u32 = 1;

fn namespace() -> Option<Namespace> {
    match Namespace::create("mcrsys", "igmp") {
        Ok(namespace) => Some(namespace),
        Err(error) => {
            println!("skipped: no namespace: {error}");
            None
        }
    }
}

fn group(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(239, 1, high, low).into()
}

fn group6(number: u16) -> IpAddr {
    Ipv6Addr::new(0xff3e, 0, 0, 0, 0, 0, 1, number).into()
}

fn source(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

fn any(group: IpAddr) -> Membership {
    Membership {
        interface: LO,
        group,
        source: None,
    }
}

fn from(source: IpAddr, group: IpAddr) -> Membership {
    Membership {
        source: Some(source),
        ..any(group)
    }
}

/// Groups joined in the kernel's own list, which prints 239.1.0.5 as 050001EF.
fn kernel_groups() -> usize {
    let text = fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
    let first = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    first
        .filter(|word| word.len() == 8 && word.ends_with("EF"))
        .count()
}

fn kernel_groups6() -> usize {
    let text = fs::read_to_string("/proc/thread-self/net/igmp6").unwrap();
    text.lines().filter(|line| line.contains("ff3e")).count()
}

fn kernel_sources(group: IpAddr) -> usize {
    let IpAddr::V4(group) = group else { return 0 };
    let wanted = format!("0x{:08x}", group.to_bits());
    let text = fs::read_to_string("/proc/thread-self/net/mcfilter").unwrap();
    text.lines().filter(|line| line.contains(&wanted)).count()
}

fn claim_listed(set: &mut Memberships) -> usize {
    let listed = set.listed().unwrap();
    set.claim_listed(&listed)
}

fn missing(set: &Memberships) -> Vec<Membership> {
    set.missing(&set.listed().unwrap())
}

#[test]
fn joins_500_groups_with_the_default_limits() {
    let Some(namespace) = namespace() else { return };
    let joined = namespace.run(|| {
        let mut memberships = Memberships::new();
        for number in 0..500 {
            memberships.join(any(group(number))).unwrap();
            memberships.join(any(group6(number))).unwrap();
        }
        assert_eq!(memberships.len(), 1000);
        assert_eq!((kernel_groups(), kernel_groups6()), (500, 500));
        for number in 100..500 {
            memberships.leave(any(group(number)));
        }
        assert_eq!(kernel_groups(), 100);
        // Sockets with room are used again before new ones are opened.
        let sockets = memberships.sockets().count();
        for number in 100..105 {
            memberships.join(any(group(number))).unwrap();
        }
        assert!(memberships.sockets().count() <= sockets + 1);
        assert_eq!(kernel_groups(), 105);
        drop(memberships);
        // A program that another test starts at this moment holds copies until it is executed.
        let deadline = Instant::now() + Duration::from_secs(10);
        while (kernel_groups(), kernel_groups6()) != (0, 0) {
            assert!(Instant::now() < deadline, "groups stay joined");
            std::thread::yield_now();
        }
    });
    joined.unwrap();
}

#[test]
fn tells_what_came_and_went_as_long_as_it_remembers() {
    let Some(namespace) = namespace() else { return };
    let told = namespace.run(|| {
        let mut memberships = Memberships::new();
        let since = |memberships: &Memberships, revision| {
            let changes = memberships.changes_since(revision)?;
            Some(changes.copied().collect::<Vec<_>>())
        };
        assert_eq!(since(&memberships, 0), Some(Vec::new()));
        memberships.join(any(group(1))).unwrap();
        memberships.join(any(group(1))).unwrap();
        memberships.leave(any(group(1)));
        let change = |joined| Change {
            number: 1,
            membership: any(group(1)),
            joined,
        };
        assert_eq!(
            since(&memberships, 0),
            Some(vec![change(true), change(false)])
        );
        assert_eq!(since(&memberships, 1), Some(vec![change(false)]));
        assert_eq!(since(&memberships, 3), None);
        let before = memberships.revision();
        for _ in 0..RECENT / 2 {
            memberships.join(any(group(1))).unwrap();
            memberships.leave(any(group(1)));
        }
        assert_eq!(
            since(&memberships, before).map(|all| all.len()),
            Some(RECENT)
        );
        memberships.join(any(group(1))).unwrap();
        assert_eq!(since(&memberships, before), None);
        // Of what came with a socket nothing was noted.
        let before = memberships.revision();
        let socket = memberships.socket(memberships.next).unwrap();
        let duplicate = socket.try_clone_to_owned().unwrap();
        memberships.adopt(9999, duplicate, []).unwrap();
        assert_eq!(since(&memberships, before), None);
    });
    told.unwrap();
}

#[test]
fn joins_more_sources_than_one_socket_takes() {
    let Some(namespace) = namespace() else { return };
    let joined = namespace.run(|| {
        let mut memberships = Memberships::new();
        for number in 1..=35 {
            memberships.join(from(source(number), group(1))).unwrap();
        }
        assert_eq!(kernel_sources(group(1)), 35);
        assert_eq!(kernel_groups(), 1);
        memberships.leave(from(source(3), group(1)));
        assert_eq!(kernel_sources(group(1)), 34);
        let wanted = BTreeSet::from([from(source(4), group(1))]);
        assert!(memberships.reconcile(&wanted).is_empty());
        assert_eq!(kernel_sources(group(1)), 1);
        // From some sources to any and back, never without a membership.
        let wanted = BTreeSet::from([any(group(1))]);
        assert!(memberships.reconcile(&wanted).is_empty());
        assert_eq!((kernel_sources(group(1)), kernel_groups()), (0, 1));
        let wanted = BTreeSet::from([from(source(9), group(1))]);
        assert!(memberships.reconcile(&wanted).is_empty());
        assert_eq!((kernel_sources(group(1)), kernel_groups()), (1, 1));
    });
    joined.unwrap();
}

#[test]
fn refuses_at_once_what_cannot_be_joined() {
    let Some(namespace) = namespace() else { return };
    let joined = namespace.run(|| {
        let mut memberships = Memberships::new();
        let nowhere = Membership {
            interface: 77,
            ..any(group(1))
        };
        let error = memberships.join(nowhere).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cannot join 239.1.0.1 on interface 77: "),
            "{text}"
        );
        let unicast = any(Ipv4Addr::new(10, 0, 0, 1).into());
        assert!(memberships.join(unicast).is_err());
        assert!(memberships.is_empty());
        memberships.leave(nowhere);
    });
    joined.unwrap();
}

#[test]
fn rejoins_what_is_on_one_interface() {
    let Some(namespace) = namespace() else { return };
    let joined = namespace.run(|| {
        let mut memberships = Memberships::new();
        memberships.join(any(group(1))).unwrap();
        memberships.join(from(source(1), group(2))).unwrap();
        assert!(memberships.rejoin(LO).is_empty());
        assert_eq!(memberships.len(), 2);
        assert_eq!(kernel_groups(), 2);
    });
    joined.unwrap();
}

#[test]
fn takes_over_sockets_that_another_set_joined_with() {
    let Some(namespace) = namespace() else { return };
    let joined = namespace.run(|| {
        let mut first = Memberships::new();
        for number in 0..30 {
            first.join(any(group(number))).unwrap();
        }
        first.join(from(source(1), group(40))).unwrap();
        first.join(any(group6(1))).unwrap();
        let mut kept: Vec<(u32, OwnedFd, Vec<Membership>)> = first
            .sockets()
            .map(|held| {
                let duplicate = held.socket.try_clone_to_owned().unwrap();
                (held.number, duplicate, held.memberships)
            })
            .collect();
        drop(first);
        assert_eq!(kernel_groups(), 31, "the duplicates hold them");

        // What the kernel does not confirm is not believed.
        kept[0].2.push(any(group(400)));
        kept[0].2.push(from(source(2), group(40)));
        let mut second = Memberships::new();
        for (number, socket, claims) in kept {
            second.adopt(number, socket, claims).unwrap();
        }
        assert_eq!(second.len(), 32);
        assert!(!second.holds(&any(group(400))));
        assert!(second.holds(&from(source(1), group(40))));
        assert!(second.holds(&any(group6(1))));
        let left: BTreeSet<Membership> = [any(group(7))].into();
        assert!(second.reconcile(&left).is_empty());
        assert_eq!((kernel_groups(), kernel_groups6()), (1, 0));
    });
    joined.unwrap();
}

/// A set of the sockets of another that has ended, told of one membership alone.
fn handed_over(first: Memberships, claim: Membership) -> Memberships {
    let kept: Vec<(u32, OwnedFd)> = first
        .sockets()
        .map(|held| (held.number, held.socket.try_clone_to_owned().unwrap()))
        .collect();
    drop(first);
    let mut second = Memberships::new();
    for (number, socket) in kept {
        second.adopt(number, socket, [claim]).unwrap();
    }
    second
}

#[test]
fn finds_what_was_joined_and_never_told() {
    let Some(namespace) = namespace() else { return };
    let joined = namespace.run(|| {
        let mut first = Memberships::new();
        for membership in [
            any(group(1)),
            any(group(2)),
            from(source(1), group(3)),
            any(group6(1)),
        ] {
            first.join(membership).unwrap();
        }
        let mut second = handed_over(first, any(group(1)));
        assert_eq!(second.len(), 1);
        assert_eq!(claim_listed(&mut second), 3);
        assert!(second.holds(&from(source(1), group(3))));
        assert_eq!(claim_listed(&mut second), 0);
        assert!(second.reconcile(&[any(group(1))].into()).is_empty());
        assert_eq!((kernel_groups(), kernel_groups6()), (1, 0));
    });
    joined.unwrap();
}

#[test]
fn finds_sources_behind_a_group_that_has_none() {
    let Some(namespace) = namespace() else { return };
    let joined = namespace.run(|| {
        let mut first = Memberships::new();
        // The kernel's list begins with the group that was joined last.
        for membership in [
            from(source(1), group(3)),
            from(source(2), group(3)),
            any(group(4)),
        ] {
            first.join(membership).unwrap();
        }
        assert_eq!(missing(&first), []);
        let mut second = handed_over(first, from(source(1), group(3)));
        assert_eq!(claim_listed(&mut second), 2);
        assert!(second.holds(&from(source(2), group(3))));
        assert!(second.holds(&any(group(4))));
        assert_eq!(missing(&second), []);
    });
    joined.unwrap();
}

#[test]
fn misses_nothing_that_the_kernel_lists() {
    let Some(namespace) = namespace() else { return };
    let missing = namespace.run(|| {
        let mut memberships = Memberships::new();
        let source6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5).into();
        let joined = [
            any(group(1)),
            any(group6(1)),
            from(source(5), group(2)),
            from(source6, group6(2)),
        ];
        for membership in joined {
            memberships.join(membership).unwrap();
        }
        assert_eq!(missing(&memberships), []);
        // Left behind the back of the set, as the kernel does with an interface that goes.
        for held in memberships.sockets() {
            for membership in held.memberships {
                let request = socket::group_request(membership.interface, membership.group);
                let level = match membership.group {
                    IpAddr::V4(_) => libc::IPPROTO_IP,
                    IpAddr::V6(_) => libc::IPPROTO_IPV6,
                };
                let leave = libc::MCAST_LEAVE_GROUP;
                crate::udp::option::set(held.socket, level, leave, &request).unwrap();
            }
        }
        missing(&memberships).len()
    });
    assert_eq!(missing.unwrap(), 4);
}

#[test]
fn refuses_to_take_over_what_is_no_membership_socket() {
    let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd = stream.as_fd().try_clone_to_owned().unwrap();
    assert!(matches!(
        Memberships::new().adopt(1, fd, []),
        Err(Error::Adopt(_))
    ));
}

/// In the order of their numbers it takes 30 times as long as the joins.
#[test]
fn thousands_of_groups_are_left_as_fast_as_they_were_joined() {
    let Some(namespace) = namespace() else { return };
    let (joining, leaving) = namespace
        .run(|| {
            let start = Instant::now();
            let mut set = Memberships::new();
            for number in 0..8_000 {
                set.join(any(group(number))).unwrap();
            }
            let joining = start.elapsed();
            let start = Instant::now();
            assert!(missing(&set).is_empty());
            eprintln!("found in the kernel's list in {:?}", start.elapsed());
            let start = Instant::now();
            drop(set);
            (joining, start.elapsed())
        })
        .unwrap();
    eprintln!("joined in {joining:?}, left in {leaving:?}");
    assert!(
        leaving < joining * 2,
        "joined in {joining:?}, left in {leaving:?}"
    );
}

#[test]
fn reads_the_version_of_igmp_that_is_spoken() {
    let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
                12\tveth1.5   :     2      V2\n\t\t\t\t010101EF     1 0:00000000\t\t0\n";
    let expected = [("lo", "V3"), ("veth1.5", "V2")];
    let expected = expected.map(|(name, version)| (name.to_owned(), version.to_owned()));
    assert_eq!(listed::versions(text), expected);
}
