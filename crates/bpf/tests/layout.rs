//! Holds `layout.rs` against the BTF of the compiled object: names, offsets and sizes; and against
//! the constants in the headers, of which BTF keeps none.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

use bpf::layout;
use bpf::program::OBJECT;
use bpf::sequence;

/// What BTF says of the object's structs.
#[derive(Default)]
struct Btf {
    /// Size, and each member's byte offset.
    structs: BTreeMap<String, (usize, Vec<(String, usize)>)>,
}

impl Btf {
    fn of(object: &[u8]) -> Self {
        let object = aya_obj::Object::parse(object).unwrap();
        Self::parse(&object.btf.unwrap().to_bytes())
    }

    /// Walks the type section (Documentation/bpf/btf.rst).
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let header = word(4) as usize;
        let (types, end) = (header + word(8) as usize, word(12) as usize);
        let strings = header + word(16) as usize;
        let string = |offset: u32| {
            let start = strings + offset as usize;
            let length = bytes[start..].iter().position(|b| *b == 0).unwrap();
            String::from_utf8(bytes[start..start + length].to_vec()).unwrap()
        };
        let mut btf = Self::default();
        let mut at = types;
        while at < types + end {
            let (name, info, size) = (string(word(at)), word(at + 4), word(at + 8) as usize);
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            at += 12;
            let entry = |i: usize, stride: usize, field: usize| word(at + i * stride + field * 4);
            match kind {
                4 | 5 => {
                    let member = |i| {
                        let bits = entry(i, 12, 2) & 0x00ff_ffff;
                        (string(entry(i, 12, 0)), bits as usize / 8)
                    };
                    let members = (0..count).map(member).collect();
                    btf.structs.insert(name, (size, members));
                    at += count * 12;
                }
                6 => at += count * 8,
                1 | 14 | 17 => at += 4,
                3 => at += 12,
                13 => at += count * 8,
                15 => at += count * 12,
                19 => at += count * 12,
                _ => {}
            }
        }
        btf
    }
}

/// Every `NAME = VALUE,` of the headers.
fn constants() -> BTreeMap<String, u32> {
    let text = [
        include_str!("../src/relay/layout.h"),
        include_str!("../src/relay/count.h"),
    ]
    .concat();
    let slots = format!("{}", packet::verdict::DropReason::SLOTS);
    let value = |text: &str| -> Option<u32> {
        match text.replace("DROP_SLOTS", &slots).split_once("<<") {
            Some((one, shift)) => {
                Some(one.trim().parse::<u32>().ok()? << shift.trim().parse::<u32>().ok()?)
            }
            None => text.replace("DROP_SLOTS", &slots).trim().parse().ok(),
        }
    };
    let constant = |line: &str| {
        let (name, rest) = line.split_once('=')?;
        Some((name.trim().to_owned(), value(rest.split(',').next()?)?))
    };
    text.lines().filter_map(constant).collect()
}

macro_rules! assert_same {
    ($btf:expr, $c:literal, $rust:ty { $($field:ident),* $(,)? }) => {
        let (size, members) = &$btf.structs[$c];
        assert_eq!(*size, size_of::<$rust>(), "size of struct {}", $c);
        let mirror = vec![$((stringify!($field).to_owned(), offset_of!($rust, $field))),*];
        assert_eq!(*members, mirror, "members of struct {}", $c);
    };
}

#[test]
fn every_struct_has_the_same_names_offsets_and_size() {
    let btf = Btf::of(OBJECT);
    assert_same!(
        btf,
        "route_key",
        layout::RouteKey {
            ifindex,
            group,
            source,
            port,
            pad
        }
    );
    assert_same!(
        btf,
        "route_key6",
        layout::RouteKey6 {
            ifindex,
            port,
            pad,
            group,
            source
        }
    );
    assert_same!(
        btf,
        "route",
        layout::Route {
            word,
            lookup,
            health
        }
    );
    assert_same!(
        btf,
        "output",
        layout::Output {
            ifindex,
            counter,
            flags,
            down,
            prefix,
            mtu,
            ttl,
            tos,
            mac,
            sport,
            dport,
            source,
            destination,
        }
    );
    assert_same!(
        btf,
        "tally",
        layout::Tally {
            packets,
            bytes,
            sender,
            asked
        }
    );
    assert_same!(btf, "drops", layout::Drops { packets });
    assert_same!(
        btf,
        "limit",
        layout::Limit {
            per_token,
            depth_ns,
            due_ns,
            bits
        }
    );
    assert_same!(
        btf,
        "health",
        layout::Health {
            content,
            per_tick,
            last_ns,
            epoch,
            gap_ns,
            rtp_packets,
            window,
            rtp_ns,
            jitter_ns_16,
            ssrc,
            timestamp,
            highest,
            candidate_next,
            followed,
            has_candidate,
            candidate_ssrc,
            payload_type,
            lost,
            reordered,
            duplicated,
            ts_packets,
            known,
            gap_before_ns,
            restarts,
            ssrc_changes,
            continuity_errors,
            transport_errors,
            sync_errors,
            pids,
            unrecognised,
        }
    );
    assert_same!(btf, "pids", layout::Pids { state });
    assert_same!(btf, "found", layout::Found { sums });
    assert_same!(
        btf,
        "residence",
        layout::Residence {
            buckets,
            sum_ns,
            stamped
        }
    );
    assert_same!(
        btf,
        "identity",
        layout::Identity {
            hash,
            packets,
            bytes,
            rule,
            pad
        }
    );
    assert_same!(
        btf,
        "settings",
        layout::Settings {
            budget,
            own_bloom,
            ranges,
            clock_ns
        }
    );
    assert_same!(
        btf,
        "range_key",
        layout::RangeKey {
            prefix,
            ifindex,
            ipv6,
            group
        }
    );
    assert_same!(btf, "range", layout::Range { first, count });
    assert_same!(
        btf,
        "candidate",
        layout::Candidate {
            source,
            first_port,
            last_port,
            route,
            specific,
            prefix
        }
    );
    assert_same!(
        btf,
        "flow_key",
        layout::FlowKey {
            counter,
            port,
            pad,
            group
        }
    );
    assert_same!(btf, "flow", layout::Flow { packets, bytes });
    assert_same!(
        btf,
        "group_key",
        layout::GroupKey {
            ifindex,
            source,
            group
        }
    );
    assert_same!(btf, "address", layout::Address { words });
}

#[test]
fn the_sequence_counter_shares_its_structs() {
    let btf = Btf::of(sequence::OBJECT);
    assert_same!(
        btf,
        "watch_key",
        sequence::WatchKey {
            group,
            ifindex,
            port,
            pad
        }
    );
    assert_same!(btf, "stream_key", sequence::StreamKey { at, stream, run });
    assert_same!(
        btf,
        "stream_state",
        sequence::StreamState {
            lock,
            endpoint,
            packets,
            bytes,
            first,
            highest,
            distinct,
            duplicated,
            reordered,
            min_ns,
            max_ns,
            seen,
        }
    );
    assert_same!(btf, "latency", sequence::Latency { buckets });
    assert_same!(btf, "foreign", sequence::Foreign { packets, bytes });
    assert_same!(btf, "clock", sequence::Clock { offset_ns });
}

#[test]
fn every_constant_has_the_same_value() {
    let constants = constants();
    let mirror = [
        ("ROUTE_LOCAL_AUTO", u32::from(layout::ROUTE_LOCAL_AUTO)),
        ("ROUTE_LOCAL_YES", layout::ROUTE_LOCAL_YES.into()),
        ("ROUTE_LIMITED", layout::ROUTE_LIMITED.into()),
        ("ROUTE_SHADOW", layout::ROUTE_SHADOW.into()),
        ("ROUTE_INPUT", layout::ROUTE_INPUT.into()),
        ("LOOKUP_PLACEHOLDER", layout::LOOKUP_PLACEHOLDER),
        ("LOOKUP_SOURCES", layout::LOOKUP_SOURCES),
        ("LOOKUP_RANGES", layout::LOOKUP_RANGES),
        ("CONTENT_NONE", packet::health::Content::None as u32),
        ("CONTENT_AUTO", packet::health::Content::Auto as u32),
        ("CONTENT_RTP", packet::health::Content::Rtp as u32),
        ("CONTENT_TS", packet::health::Content::Ts as u32),
        ("OUTPUT_DOWN", layout::OUTPUT_DOWN.into()),
        ("OUTPUT_MAC", layout::OUTPUT_MAC.into()),
        ("OUTPUT_SOURCE", layout::OUTPUT_SOURCE.into()),
        ("OUTPUT_SPORT", layout::OUTPUT_SPORT.into()),
        ("OUTPUT_TTL_SET", layout::OUTPUT_TTL_SET.into()),
        ("OUTPUT_TTL_DEC", layout::OUTPUT_TTL_DEC.into()),
        ("OUTPUT_DSCP", layout::OUTPUT_DSCP.into()),
        ("OUTPUT_GROUP_RANGE", layout::OUTPUT_GROUP_RANGE.into()),
        ("OUTPUT_PORT_DELTA", layout::OUTPUT_PORT_DELTA.into()),
        ("OUTPUT_LIMITED", layout::OUTPUT_LIMITED.into()),
        ("OUTPUT_UNICAST", layout::OUTPUT_UNICAST.into()),
        (
            "WORD_COUNT_SHIFT",
            layout::Word {
                count: 1,
                ..Default::default()
            }
            .pack()
            .trailing_zeros(),
        ),
        (
            "WORD_COUNTER_SHIFT",
            layout::Word {
                counter: 1,
                ..Default::default()
            }
            .pack()
            .trailing_zeros(),
        ),
        (
            "WORD_FLAGS_SHIFT",
            layout::Word {
                flags: 1,
                ..Default::default()
            }
            .pack()
            .trailing_zeros(),
        ),
    ];
    for (name, value) in mirror {
        assert_eq!(constants.get(name), Some(&value), "{name}");
    }
    use packet::verdict::DropReason;
    for reason in DropReason::ALL {
        let name = format!("DROP_{}", reason.as_str().to_uppercase());
        if let Some(value) = constants.get(&name) {
            assert_eq!(*value, reason as u32, "{name}");
        }
    }
    assert_eq!(constants["NOT_DROPPED"] as usize, DropReason::SLOTS);
}

#[test]
fn residence_is_sampled_and_sorted_as_the_reference_says() {
    use packet::residence::{BUCKETS, FIRST_SHIFT, KERNEL_EVERY};
    let headers = [
        include_str!("../src/relay/layout.h"),
        include_str!("../src/relay/residence.h"),
    ]
    .concat();
    let shift = KERNEL_EVERY.trailing_zeros();
    for (name, value) in [
        ("RESIDENCE_BUCKETS", BUCKETS as u32),
        ("RESIDENCE_FIRST_SHIFT", FIRST_SHIFT),
        ("RESIDENCE_EVERY_SHIFT", shift),
    ] {
        assert!(
            headers.contains(&format!("#define {name} {value}\t")),
            "{name}"
        );
    }
}

#[test]
fn a_word_unpacks_to_what_was_packed() {
    let word = layout::Word {
        first: 0x3f_fff1,
        count: 0xfff2,
        counter: 0x1f_fff3,
        flags: 0x1a,
    };
    assert_eq!(layout::Word::unpack(word.pack()), word);
}
