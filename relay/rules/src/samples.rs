//! Strategies that make endpoints, outputs and rules for property tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use crate::demand::Demand;
use crate::endpoint::Endpoint;
use crate::failover::{Failover, On};
use crate::health::{Content, Health, Inspect, Rate, Silence};
use crate::limit::{RateLimit, RateUnit};
use crate::merge::{By, ByteOrder, Field, Merge, Sequence};
use crate::net::{Ports, Prefix};
use crate::path::Path;
use crate::reflect::Reflect;
use crate::rule::{LocalDelivery, OutputSpec, Rule, SourceChoice, Ttl};

/// How long the thread has run on a processor since it started, whatever the load of the machine.
///
/// # Panics
/// If `/proc` is not mounted.
#[must_use]
pub fn time_on_processor() -> Duration {
    let schedstat =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("/proc is mounted");
    let nanoseconds = schedstat
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number of nanoseconds"))
}

/// The name of an interface, perhaps a wildcard.
pub fn interface() -> impl Strategy<Value = String> {
    prop_oneof![Just("eth0".to_owned()), "[a-z][a-z0-9._=*-]{0,14}"]
}

/// One port or several.
pub fn ports() -> impl Strategy<Value = Ports> {
    (1_u16.., prop_oneof![Just(0_u16), 0_u16..2000]).prop_map(|(first, more)| Ports {
        first,
        last: first.saturating_add(more),
    })
}

fn host(ipv4: bool) -> BoxedStrategy<IpAddr> {
    if ipv4 {
        let hosts = (1_u8..=223, any::<[u8; 3]>());
        hosts
            .prop_map(|(a, [b, c, d])| Ipv4Addr::new(a, b, c, d).into())
            .boxed()
    } else {
        any::<u64>()
            .prop_map(|low| Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(low) | 1).into())
            .boxed()
    }
}

fn group(ipv4: bool) -> BoxedStrategy<IpAddr> {
    if ipv4 {
        any::<[u8; 3]>()
            .prop_map(|[b, c, d]| Ipv4Addr::new(239, b, c, d).into())
            .boxed()
    } else {
        any::<u64>()
            .prop_map(|low| Ipv6Addr::from_bits(0xff3e << 112 | u128::from(low)).into())
            .boxed()
    }
}

/// An endpoint for a group, perhaps with sources and ranges.
pub fn input() -> impl Strategy<Value = Endpoint> {
    any::<bool>().prop_flat_map(|ipv4| {
        let range = (group(ipv4), prop_oneof![Just(0_u8), 0_u8..20])
            .prop_map(|(group, free)| Prefix::new(group, Prefix::host(group).length - free));
        let sources = vec(host(ipv4), 0..3).prop_map(|mut sources| {
            sources.sort();
            sources.dedup();
            sources.into_iter().map(Prefix::host).collect()
        });
        (sources, range, option::of(interface()), ports()).prop_map(
            |(sources, destination, interface, ports)| Endpoint {
                sources,
                destination,
                interface,
                ports,
                rejoin: None,
            },
        )
    })
}

/// An input that is an address of this host, or all of an interface, perhaps with ranges of sources.
pub fn own_address() -> impl Strategy<Value = Endpoint> {
    (any::<bool>(), any::<bool>()).prop_flat_map(|(ipv4, every)| {
        let address = host(ipv4).prop_map(move |address| match (every, address) {
            (false, address) => address,
            (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        });
        let range = (host(ipv4), 0_u8..=24)
            .prop_map(|(source, free)| Prefix::new(source, Prefix::host(source).length - free));
        (option::of(range), address, interface(), ports()).prop_map(
            |(source, address, interface, ports)| Endpoint {
                sources: source.into_iter().collect(),
                destination: Prefix::host(address),
                interface: Some(interface),
                ports,
                rejoin: None,
            },
        )
    })
}

/// An endpoint for a host.
pub fn unicast() -> impl Strategy<Value = Endpoint> {
    let address = any::<bool>().prop_flat_map(host);
    (address, option::of(interface()), ports()).prop_map(|(address, interface, ports)| Endpoint {
        sources: Vec::new(),
        destination: Prefix::host(address),
        interface,
        ports,
        rejoin: None,
    })
}

/// An endpoint of any kind.
pub fn endpoint() -> impl Strategy<Value = Endpoint> {
    prop_oneof![input(), unicast(), own_address()]
}

/// A limit.
pub fn limit() -> impl Strategy<Value = RateLimit> {
    let unit = prop_oneof![Just(RateUnit::Packets), Just(RateUnit::Bits)];
    let size = || prop_oneof![1_u64.., (1_u64..100).prop_map(|n| n * 1_000_000)];
    (unit, size(), size()).prop_map(|(unit, rate, burst)| RateLimit { unit, rate, burst })
}

/// How a stream is monitored.
pub fn health() -> impl Strategy<Value = Health> {
    let after = (1_000_u64..86_400_000).prop_map(Duration::from_millis);
    let silence = prop_oneof![
        Just(Silence::Auto),
        Just(Silence::Off),
        after.prop_map(Silence::After)
    ];
    let unit = || prop_oneof![Just(RateUnit::Packets), Just(RateUnit::Bits)];
    let least = option::of((unit(), 1_u64..1_000_000));
    let most = option::of((unit(), 1_000_000_u64..));
    let rate = |(unit, rate)| Rate { unit, rate };
    let content = (0..Content::ALL.len()).prop_map(|at| Content::ALL[at]);
    (silence, least, most, content, 1_000_u32..=10_000_000).prop_map(
        move |(silence, least, most, content, clock_hz)| Health {
            silence,
            rate_min: least.map(rate),
            rate_max: most.map(rate),
            inspect: Inspect { content, clock_hz },
        },
    )
}

/// When another input takes over.
pub fn failover() -> impl Strategy<Value = Failover> {
    let revert = option::of(60_000_u64..86_400_000);
    let on = prop_oneof![Just(On::Silence), Just(On::Degraded)];
    (1_u64..=60_000, revert, on).prop_map(|(silence, revert, on)| Failover {
        silence: Duration::from_millis(silence),
        revert: revert.map(Duration::from_millis),
        on,
    })
}

fn field(
    offsets: std::ops::RangeInclusive<u16>,
    bytes: &'static [u8],
) -> impl Strategy<Value = Field> {
    let bytes = (0..bytes.len()).prop_map(|at| bytes[at]);
    (offsets, bytes).prop_map(|(offset, bytes)| Field { offset, bytes })
}

/// How inputs become one stream.
pub fn merge() -> impl Strategy<Value = Merge> {
    let session = option::of((0_u16..=84, 1_u8..=16));
    let count = option::of(field(200..=1_400, &[1, 2, 4]));
    let fields = (field(100..=192, &[2, 4, 8]), any::<bool>(), session, count);
    let sequence = fields.prop_map(|(number, is_little, session, count)| {
        let order = if is_little {
            ByteOrder::Little
        } else {
            ByteOrder::Big
        };
        By::Sequence(Sequence {
            number,
            order,
            session: session.map(|(offset, bytes)| Field { offset, bytes }),
            count,
        })
    });
    let words = [By::Rtp, By::MoldUdp64, By::Mdp3, By::Payload];
    let by = prop_oneof![(0..words.len()).prop_map(move |at| words[at]), sequence];
    (by, 1_u64..=500, 11_u32..=16, 1_u32..=4_096).prop_map(|(by, window, packets, streams)| Merge {
        by,
        window: Duration::from_millis(window),
        packets: 1 << packets,
        streams,
    })
}

/// An output with options.
pub fn output() -> impl Strategy<Value = OutputSpec> {
    let ttl = prop_oneof![
        Just(Ttl::Keep),
        Just(Ttl::Decrement),
        (1_u8..).prop_map(Ttl::Set)
    ];
    let options = (
        0_u8..3,
        option::of(1_u16..),
        ttl,
        option::of(0_u8..64),
        any::<bool>(),
        option::of(limit()),
        option::of(
            (any::<bool>(), 0..=3600_u16)
                .prop_map(|(querier, linger_s)| Demand { querier, linger_s }),
        ),
    );
    (endpoint(), options).prop_flat_map(|(mut to, options)| {
        to.sources.clear();
        let (choice, source_port, ttl, dscp, fragment, limit, demand) = options;
        host(to.is_ipv4()).prop_map(move |address| OutputSpec {
            to: to.clone(),
            name: None,
            source: match choice {
                0 => SourceChoice::Auto,
                1 => SourceChoice::Keep,
                _ => SourceChoice::Address(address),
            },
            source_port,
            ttl,
            dscp,
            fragment,
            limit,
            demand,
            all: None,
            listeners: None,
        })
    })
}

/// A rule that can be written, though it may not be valid.
pub fn rule() -> impl Strategy<Value = Rule> {
    let path = prop_oneof![Just(Path::Kernel), Just(Path::Userspace)];
    let local = prop_oneof![
        Just(LocalDelivery::Auto),
        Just(LocalDelivery::Yes),
        Just(LocalDelivery::No)
    ];
    (
        "[a-z0-9][a-z0-9._:-]{0,20}",
        vec(input(), 1..3),
        vec(output(), 1..4),
        option::of(path),
        local,
        option::of(limit()),
        (
            option::of(failover()),
            option::of(merge()),
            option::of(health()),
            option::of("[a-z0-9][a-z0-9._:-]{0,20}"),
        ),
        any::<bool>(),
        option::of("[ -~]{0,9}"),
        btree_map("[a-z][a-z0-9_]{0,5}", "[ -~]{0,9}", 0..3),
    )
        .prop_map(
            |(
                name,
                inputs,
                outputs,
                path,
                local,
                limit,
                (failover, merge, health, share),
                enabled,
                comment,
                labels,
            )| Rule {
                name,
                inputs,
                outputs,
                path,
                local,
                limit,
                failover,
                merge,
                reflect: None,
                health,
                share,
                enabled,
                comment,
                labels,
            },
        )
}

/// A rule that reflects.
pub fn reflecting() -> impl Strategy<Value = Rule> {
    let ttl = prop_oneof![
        Just(Ttl::Keep),
        Just(Ttl::Decrement),
        (1_u8..).prop_map(Ttl::Set)
    ];
    let options = (ttl, any::<bool>(), 1_u64..=500);
    let ends = (any::<bool>(), any::<u8>(), 1_u16.., 2_usize..5);
    (rule(), ends, options).prop_map(|(rule, (is_ipv4, group, port, links), options)| {
        let (ttl, keeps, window) = options;
        let at = |link: usize| {
            if is_ipv4 {
                format!("224.0.0.{group}%eth{link}:{port}")
            } else {
                format!("[ff02::1:{group:x}%eth{link}]:{port}")
            }
        };
        let inputs = (0..links).map(|link| at(link).parse().expect("samples can be read"));
        let outputs = (0..links).map(|link| OutputSpec {
            ttl,
            source: if keeps {
                SourceChoice::Keep
            } else {
                SourceChoice::Auto
            },
            ..at(link).parse().expect("samples can be read")
        });
        Rule {
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            failover: None,
            merge: None,
            health: None,
            reflect: Some(Reflect {
                window: Duration::from_millis(window),
                isolated: Vec::from_iter((window % 2 == 1).then_some(0)),
            }),
            ..rule
        }
    })
}

/// A rule that is valid by itself: one group to others and to a host.
pub fn valid_rule() -> impl Strategy<Value = Rule> {
    let copies = vec((0_u8..3, 1_u16.., option::of(limit())), 1..4);
    (rule(), any::<[u8; 2]>(), 1_u16.., copies).prop_map(|(mut rule, [c, d], port, copies)| {
        let input = format!("239.1.{c}.{d}%in0:{port}");
        rule.inputs = vec![input.parse().expect("samples can be read")];
        rule.failover = None;
        rule.merge = None;
        let outputs = copies
            .into_iter()
            .enumerate()
            .map(|(n, (kind, port, limit))| {
                let to = match kind {
                    0 => format!("10.9.9.{n}:{port}"),
                    1 => format!("239.2.{c}.{n}%out{n}:{port},ttl=dec,dscp={n}"),
                    _ => format!("239.3.{c}.{n}%out0:{port},source=keep,sport=7"),
                };
                OutputSpec {
                    limit,
                    ..to.parse().expect("samples can be read")
                }
            });
        rule.outputs = outputs.collect();
        rule
    })
}
