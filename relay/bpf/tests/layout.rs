//! Holds `layout.rs` against the BTF of the compiled object: names, offsets and sizes; and against
//! the constants in the headers, of which BTF keeps none.

use std::collections::BTreeMap;

use bpf::btf::Btf;
use bpf::layout;
use bpf::merge_layout;
use bpf::program::OBJECT;

/// Every `NAME = VALUE,` of the headers.
fn constants() -> BTreeMap<String, u32> {
    let text = [
        include_str!("../src/relay/layout.h"),
        include_str!("../src/relay/count.h"),
        include_str!("../src/relay/lookup.h"),
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

/// The directory of pinned maps is named after the headers: with another name the counts of the previous version
/// begin at zero. A change of the headers must carry the totals over.
#[test]
fn an_upgrade_finds_the_maps_that_are_pinned() {
    assert_eq!(layout::HASH, "cb357e02905f6506");
}

#[test]
fn every_struct_has_the_same_names_offsets_and_size() {
    let btf = Btf::of(OBJECT);
    bpf::assert_same!(
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
    bpf::assert_same!(
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
    bpf::assert_same!(
        btf,
        "route",
        layout::Route {
            word,
            lookup,
            gate,
            health
        }
    );
    bpf::assert_same!(btf, "gate", layout::Gate { until, share });
    bpf::assert_same!(
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
    bpf::assert_same!(
        btf,
        "tally",
        layout::Tally {
            packets,
            bytes,
            last_ns,
            tick,
            sender,
            asked,
            answers
        }
    );
    bpf::assert_same!(btf, "activity", layout::Activity { ticks });
    bpf::assert_same!(btf, "drops", layout::Drops { packets });
    bpf::assert_same!(
        btf,
        "limit",
        layout::Limit {
            per_token,
            depth_ns,
            due_ns,
            bits
        }
    );
    bpf::assert_same!(
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
    bpf::assert_same!(btf, "pids", layout::Pids { state });
    bpf::assert_same!(
        btf,
        "failover",
        layout::Failover {
            silence_ns,
            revert_ns,
            count,
            lines,
            pad
        }
    );
    bpf::assert_same!(btf, "line", layout::Line { last_ns, since_ns });
    bpf::assert_same!(btf, "choice", layout::Choice { active, changes });
    bpf::assert_same!(btf, "past_health", layout::PastHealth { sums });
    bpf::assert_same!(
        btf,
        "latency",
        layout::Latency {
            buckets,
            sum_ns,
            stamped
        }
    );
    bpf::assert_same!(
        btf,
        "identity",
        layout::Identity {
            hash,
            packets,
            bytes,
            answers,
            rule,
            arbiter
        }
    );
    bpf::assert_same!(
        btf,
        "settings",
        layout::Settings {
            budget,
            own_bloom,
            ranges,
            addresses,
            answers,
            clock_ns
        }
    );
    bpf::assert_same!(
        btf,
        "range_key",
        layout::RangeKey {
            prefix,
            ifindex,
            ipv6,
            group
        }
    );
    bpf::assert_same!(btf, "range", layout::Range { first, count });
    bpf::assert_same!(
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
    bpf::assert_same!(
        btf,
        "flow_key",
        layout::FlowKey {
            counter,
            port,
            ipv6,
            group
        }
    );
    bpf::assert_same!(btf, "flow", layout::Flow { packets, bytes });
    bpf::assert_same!(
        btf,
        "group_key",
        layout::GroupKey {
            ifindex,
            source,
            group
        }
    );
    bpf::assert_same!(btf, "address", layout::Address { words });
}

#[test]
fn every_struct_of_merging_has_the_same_names_offsets_and_size() {
    let btf = Btf::of(OBJECT);
    bpf::assert_same!(
        btf,
        "merge_format",
        merge_layout::MergeFormat {
            by,
            number_offset,
            number_bytes,
            little_endian,
            session_offset,
            session_bytes,
            count_bytes,
            count_offset,
            pad
        }
    );
    bpf::assert_same!(
        btf,
        "merge_part",
        merge_layout::MergePart { first, last, mark }
    );
    bpf::assert_same!(
        btf,
        "merge_stream",
        merge_layout::MergeStream {
            id,
            top,
            base,
            opened_ns,
            seen_ns,
            began_ns,
            again,
            pad
        }
    );
    bpf::assert_same!(
        btf,
        "merge_line",
        merge_layout::MergeLine {
            counts,
            numbers,
            seen_ns,
            candidate,
            span,
            skew_ns_8,
            skew_max_ns,
            since_ns,
            owner,
            unnumbered,
            still,
            exceeded,
            cut,
            stray,
            joins,
            began_ns,
            part
        }
    );
    bpf::assert_same!(
        btf,
        "merge",
        merge_layout::Merge {
            format,
            first_block,
            blocks_log,
            window_ns,
            newest,
            owner,
            first_place,
            places,
            cells,
            span,
            firsts,
            unnumbered,
            unsettled,
            watch,
            watcher,
            key,
            opener,
            streams,
            pad,
            stream,
            line
        }
    );
    bpf::assert_same!(btf, "merge_block", merge_layout::MergeBlock { word, stamp });
}

#[test]
fn an_arbiter_is_what_the_program_reads() {
    let arbiter = layout::merge_arbiter(0x1234, 3);
    assert_eq!(arbiter & layout::ARBITER_KIND, layout::ARBITER_MERGE);
    assert_eq!(
        arbiter >> layout::ARBITER_LINE_SHIFT & layout::ARBITER_KIND,
        3
    );
    assert_eq!((arbiter >> layout::ARBITER_MERGE_SHIFT) - 1, 0x1234);
    assert_eq!(layout::merge_of(arbiter), Some(0x1234));
    assert_eq!(layout::merge_of(layout::ARBITER_FAILOVER), None);
    let header = include_str!("../src/relay/layout.h");
    for (name, value) in [
        ("ARBITER_KIND", "0xf".to_owned()),
        ("ARBITER_LINE_SHIFT", layout::ARBITER_LINE_SHIFT.to_string()),
        (
            "ARBITER_MERGE_SHIFT",
            layout::ARBITER_MERGE_SHIFT.to_string(),
        ),
    ] {
        assert!(
            header.contains(&format!("#define {name} {value}\n")),
            "{name}"
        );
    }
}

#[test]
fn there_are_as_many_gates_as_the_program_has() {
    let header = include_str!("../src/relay/layout.h");
    for define in [
        format!("#define GATES {}\t", layout::GATES),
        format!("#define ASKERS {}\n", layout::ASKERS),
        format!("#define SHARE_NAME {}\n", layout::SHARE_NAME),
    ] {
        assert!(header.contains(&define), "{define}");
    }
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
        ("LOOKUP_PLACEHOLDER", layout::LOOKUP_PLACEHOLDER.into()),
        ("LOOKUP_SOURCES", layout::LOOKUP_SOURCES.into()),
        ("LOOKUP_RANGES", layout::LOOKUP_RANGES.into()),
        ("LOOKUP_ANSWERED", layout::LOOKUP_ANSWERED.into()),
        ("LOOKUP_LEAVING", layout::LOOKUP_LEAVING.into()),
        ("LOOKUP_COMING", layout::LOOKUP_COMING.into()),
        ("LOOPED_MARK", layout::LOOPED_MARK),
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
        ("OUTPUT_GROUP_OF_PORT", layout::OUTPUT_GROUP_OF_PORT.into()),
        ("OUTPUT_PORT_OF_GROUP", layout::OUTPUT_PORT_OF_GROUP.into()),
        ("OUTPUT_ANSWERS", layout::OUTPUT_ANSWERS.into()),
        ("ARBITER_FAILOVER", layout::ARBITER_FAILOVER),
        ("ARBITER_MERGE", layout::ARBITER_MERGE),
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
fn latency_is_sampled_and_sorted_as_the_reference_says() {
    use packet::latency::{BUCKETS, FIRST_SHIFT, KERNEL_EVERY};
    let headers = [
        include_str!("../src/relay/layout.h"),
        include_str!("../src/relay/latency.h"),
    ]
    .concat();
    let shift = KERNEL_EVERY.trailing_zeros();
    for (name, value) in [
        ("LATENCY_BUCKETS", BUCKETS as u32),
        ("LATENCY_FIRST_SHIFT", FIRST_SHIFT),
        ("LATENCY_EVERY_SHIFT", shift),
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
