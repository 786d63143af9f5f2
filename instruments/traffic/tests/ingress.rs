//! Compares the Rust structs with the BTF of the program that counts at ingress.

use bpf::btf::Btf;
use traffic::ingress;

#[test]
fn every_struct_matches_the_program() {
    let btf = Btf::of(ingress::OBJECT);
    bpf::assert_same!(
        btf,
        "watch_key",
        ingress::WatchKey {
            group,
            ifindex,
            port,
            pad
        }
    );
    bpf::assert_same!(btf, "stream_key", ingress::StreamKey { at, stream, run });
    bpf::assert_same!(
        btf,
        "stream_state",
        ingress::StreamState {
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
    bpf::assert_same!(btf, "latency", ingress::Latency { buckets });
    bpf::assert_same!(btf, "foreign", ingress::Foreign { packets, bytes });
    bpf::assert_same!(btf, "clock", ingress::Clock { offset_ns });
}
