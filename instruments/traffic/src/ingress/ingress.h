/* What ingress.bpf.c shares with ingress.rs; a test holds the two together. */
#ifndef INGRESS_H
#define INGRESS_H

#include <linux/bpf.h>

enum {
	WINDOW_WORDS = 16,	/* duplicates are known this many times 64 numbers back */
	LATENCY_FINE = 256,	/* below, every nanosecond has its bucket */
	LATENCY_STEPS = 128,	/* above, each power of two has this many */
	LATENCY_POWERS = 28,	/* 2^8 to 2^36 ns: 68 seconds */
	LATENCY_BUCKETS = 3840,
};

/* What is counted, as the packet names it. Addresses in network order, IPv4 in the last word. */
struct watch_key {
	__u32 group[4];
	__u32 ifindex;
	__u16 port;		/* network order */
	__u16 pad;
};

struct stream_key {
	struct watch_key at;
	__u32 stream;		/* network order, as in the payload */
	__u32 run;		/* likewise */
};

struct stream_state {
	struct bpf_spin_lock lock;
	__u32 endpoint;
	__u64 packets;
	__u64 bytes;
	__u64 first;
	__u64 highest;
	__u64 distinct;
	__u64 duplicated;
	__u64 reordered;
	__u64 min_ns;
	__u64 max_ns;
	__u64 seen[WINDOW_WORDS];
};

struct latency {
	__u64 buckets[LATENCY_BUCKETS];
};

struct foreign {
	__u64 packets;
	__u64 bytes;
};

struct clock {
	__u64 offset_ns;	/* CLOCK_REALTIME minus CLOCK_MONOTONIC */
};

#endif
