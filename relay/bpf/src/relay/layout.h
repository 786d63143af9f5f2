/* What the program and user space share: map keys, values and their bits. `layout.rs` mirrors this
 * file field by field and a test holds the two together. Change anything here and pinned state of
 * older builds is replaced, not adopted (the pin directory's name carries a hash of this file).
 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <linux/types.h>
#include "merge_layout.h"

#define DROP_SLOTS 24	/* packet::verdict::DropReason::SLOTS */
#define BLOOM_WORDS 64

/* Key of `routes`; source 0 is (*,G). */
struct route_key {
	__u32 ifindex;
	__be32 group;
	__be32 source;
	__be16 port;
	__u16 pad;
};

/* Key of `routes6`; source :: is (*,G). */
struct route_key6 {
	__u32 ifindex;
	__be16 port;
	__u16 pad;
	__be32 group[4];
	__be32 source[4];
};

/* Key of `ranges`; IPv4 in group[0]. */
struct range_key {
	__u32 prefix;		/* leading bits of what follows: 64 and the group's */
	__u32 ifindex;
	__u32 ipv6;
	__be32 group[4];
};

/* Value of `ranges`: where its candidates lie, those of shorter prefixes included. */
struct range {
	__u32 first;
	__u32 count;
};

/* Slot of `candidates`: a route for a range of groups or ports. The first that fits is the most
 * specific.
 */
struct candidate {
	__be32 source[4];
	__u16 first_port;	/* host order */
	__u16 last_port;
	__u32 route;		/* index in `route_table` */
	__u32 specific;		/* leading bits of `source` that a sender has to have; 0: any */
	__u32 prefix;		/* of the route itself */
};

/* Entry of `route_table`. Everything that a packet obeys lies in `word`, so that one store changes
 * it for every packet at once: first output slot (22 bits), number of outputs (16), counter (21),
 * flags (5), from the low end. The counter is the rule's, or the input's with ROUTE_INPUT. `lookup`
 * and `health` belong to the key, not to the rule. So that no packet passes a rule's outputs but by
 * its gate, `gate` is exchanged a grace period before `word` or after it.
 */
struct route {
	__u64 word;
	__u16 lookup;
	__u16 gate;	/* index in `gates`; 0: none. Of one that is not there nothing passes */
	__u32 health;	/* its own index plus one: look at its packets; 0: do not */
};

#define GATES 4096	/* the first is nobody's */
#define SHARE_NAME 64

/* Entry of `gates`: packets of the share's routes pass before that time, by the kernel's own
 * CLOCK_BOOTTIME. The name ends in a zero; none: nobody's.
 */
struct gate {
	__u64 until;
	__u8 share[SHARE_NAME];
};

enum word_shift {
	WORD_COUNT_SHIFT = 22,
	WORD_COUNTER_SHIFT = 38,
	WORD_FLAGS_SHIFT = 59,
};

#define WORD_FIRST_MASK 0x3fffff
#define WORD_COUNT_MASK 0xffff
#define WORD_COUNTER_MASK 0x1fffff

enum route_flags {
	ROUTE_LOCAL_AUTO = 1,	/* also up the stack if a UDP socket matches */
	ROUTE_LOCAL_YES = 2,	/* always up the stack too */
	ROUTE_LIMITED = 4,	/* `limits[counter]` applies */
	ROUTE_SHADOW = 8,	/* the userspace path relays it: consume here, count nothing */
	ROUTE_INPUT = 16,	/* the rule has several inputs: count it for its own as well */
};

enum route_lookup {
	LOOKUP_PLACEHOLDER = 1,	/* no (*,G) route, the entry only carries the flag below */
	LOOKUP_SOURCES = 2,	/* (S,G) entries exist for this interface, group and port */
	LOOKUP_RANGES = 4,	/* so do source-specific ranges, which go before (*,G) */
};

/* Slot of `outputs`. While a live route refers to a slot, the slot never changes. */
struct output {
	__u32 ifindex;
	__u32 counter;
	__u16 flags;
	__u8 down;		/* drop reason, if OUTPUT_DOWN */
	__u8 prefix;		/* leading bits of `destination` that replace the packet's */
	__u16 mtu;
	__u8 ttl;
	__u8 tos;		/* DSCP in the upper six bits */
	__u8 mac[12];		/* destination, source */
	__be16 sport;
	__u16 dport;		/* network order; with OUTPUT_PORT_DELTA a host order delta */
	__be32 source[4];	/* IPv4 in [0] */
	__be32 destination[4];	/* IPv4 in [0], its host bits' mask in [1]; with OUTPUT_GROUP_OF_PORT
				 * the last word, in host order, less the route's first port */
};

enum output_flags {
	OUTPUT_DOWN = 1 << 0,
	OUTPUT_MAC = 1 << 1,		/* the device has Ethernet headers: write `mac` */
	OUTPUT_SOURCE = 1 << 2,		/* replace the source address */
	OUTPUT_SPORT = 1 << 3,
	OUTPUT_TTL_SET = 1 << 4,
	OUTPUT_TTL_DEC = 1 << 5,
	OUTPUT_DSCP = 1 << 6,
	OUTPUT_GROUP_RANGE = 1 << 7,	/* keep the packet's host bits */
	OUTPUT_PORT_DELTA = 1 << 8,	/* add `dport` to the packet's port */
	OUTPUT_LIMITED = 1 << 9,	/* `limits[counter]` applies */
	OUTPUT_UNICAST = 1 << 10,	/* the budget applies */
	OUTPUT_GROUP_OF_PORT = 1 << 11,	/* with OUTPUT_GROUP_RANGE: add the packet's port */
	OUTPUT_PORT_OF_GROUP = 1 << 12,	/* with OUTPUT_PORT_DELTA: to the group's last bits */
	OUTPUT_ANSWERS = 1 << 13,	/* answers to copies go back to who sent the packet */
};

/* Value of `counters`, per CPU. A rule's also remembers, for the rest of the timer tick, whether a
 * local socket takes packets of this flow: asking costs as much as the rewriting.
 */
struct tally {
	__u64 packets;
	__u64 bytes;
	__u64 last_ns;	/* when a packet was counted last: the first one of the timer tick */
	__u64 tick;	/* that tick, in jiffies */
	__u64 sender;	/* address and port */
	__u64 asked;	/* group, port, 15 bits of jiffies, answer */
	__u64 answers;	/* of the packets, those sent back to who asked */
};

#define ACTIVITY_TICKS 16

/* Entry of `activity`, for as many counters that follow one another: of a rule's the timer tick, lower
 * half, in which a packet was counted last. What has not changed has not been counted since.
 */
struct activity {
	__u32 ticks[ACTIVITY_TICKS];
};

/* Key of `flows`: what was seen of one group and port of a rule's ranges. IPv4 in [0]. */
struct flow_key {
	__u32 counter;	/* the rule's */
	__be16 port;
	__u16 ipv6;
	__be32 group[4];
};

/* Value of `flows`, per CPU. */
struct flow {
	__u64 packets;
	__u64 bytes;
};

/* Entry of `drops`: by reason, shared between CPUs because dropping is the exception. */
struct drops {
	__u64 packets[DROP_SLOTS];
};

/* Entry of `limits`, by counter: packet::limit::Limit, and its one word of state. */
struct limit {
	__u64 per_token;	/* nanoseconds times 2^20 */
	__u64 depth_ns;
	__u64 due_ns;		/* when the bucket will be full again */
	__u64 bits;		/* a token is a bit of payload, not a packet */
};

#define LATENCY_BUCKETS 22	/* packet::latency::BUCKETS */

/* Value of `latency`, by the rule's counter: packet::latency::Latency. Shared between CPUs
 * because only a sample is counted.
 */
struct latency {
	__u64 buckets[LATENCY_BUCKETS];
	__u64 sum_ns;
	__u64 stamped;
};

/* packet::health::Content */
enum content {
	CONTENT_NONE = 0,
	CONTENT_AUTO = 1,
	CONTENT_RTP = 2,
	CONTENT_TS = 3,
};

#define TS_PLACES_SHIFT 5
#define TS_PLACES 32	/* 1 << TS_PLACES_SHIFT */

/* Entry of `health`, by the route's index: packet::health::Watch. By lines of the cache: what every
 * packet touches, what RTP touches, what MPEG-TS touches, what is rare.
 */
struct health {
	__u64 content;
	__u64 per_tick;		/* nanoseconds times 2^16 */
	__u64 last_ns;
	__u64 epoch;
	__u64 gap_ns;
	__u64 rtp_packets;
	__u64 window;
	__u64 rtp_ns;

	__u64 jitter_ns_16;
	__u32 ssrc;
	__u32 timestamp;
	__u16 highest;
	__u16 candidate_next;
	__u16 followed;
	__u16 has_candidate;
	__u32 candidate_ssrc;
	__u32 payload_type;
	__u64 lost;
	__u64 reordered;
	__u64 duplicated;
	__u64 ts_packets;

	__u16 known[TS_PLACES];	/* of the PIDs seen last: upper bits, and state as in `pids` */

	__u64 gap_before_ns;
	__u64 restarts;
	__u64 ssrc_changes;
	__u64 continuity_errors;
	__u64 transport_errors;
	__u64 sync_errors;
	__u64 pids;
	__u64 unrecognised;
};

/* Value of `pids`, by the route's index: a byte for each PID that is not `known`. */
struct pids {
	__u8 state[8192];
};

#define PAST_HEALTH_SUMS 12	/* dataplane::counters::HealthCounters::sums */

/* Value of `past_health`, for user space alone, by the rule's counter: what health counted in packets
 * of routes that have gone or look for something else since.
 */
struct past_health {
	__u64 sums[PAST_HEALTH_SUMS];
};

/* Entry of `identities`: whose counter it is, and what the per-CPU values stood at when it became
 * so, for user space alone; of an input's counter, which is its rule's.
 */
struct identity {
	__u64 hash[2];
	__u64 packets;
	__u64 bytes;
	__u64 answers;
	__u32 rule;
	__u32 arbiter;	/* of an input: what decides whether its packets pass */
};

/* What decides between a rule's inputs, in the lower bits of `arbiter`; 0: nothing. Of a line that is
 * merged, its place among its rule's follows, and the index in `merges` plus one.
 */
enum arbiter {
	ARBITER_FAILOVER = 1,
	ARBITER_MERGE = 2,
};

#define ARBITER_KIND 0xf
#define ARBITER_LINE_SHIFT 4
#define ARBITER_MERGE_SHIFT 8

#define FAILOVER_LINES 8	/* rules::failover::LINES_MAX */

/* Value of `failovers`, by the rule's counter: packet::failover::Failover. */
struct failover {
	__u64 silence_ns;
	__u64 revert_ns;	/* 0: never */
	__u32 count;
	__u32 lines[FAILOVER_LINES];	/* the inputs' counters, the preferred first */
	__u32 pad;
};

/* Entry of `lines`, by the input's counter: packet::failover::Line. */
struct line {
	__u64 last_ns;
	__u64 since_ns;
};

/* Entry of `choices`, by the rule's counter: packet::failover::Choice. */
struct choice {
	__u64 active;
	__u64 changes;
};

/* The one entry of `settings`. */
struct settings {
	struct limit budget;		/* of all unicast outputs together; rate 0: none */
	__u64 own_bloom[BLOOM_WORDS];	/* no bit, no lookup in `own_sources` */
	__u64 ranges;			/* not zero: look in `ranges` too */
	__u64 addresses;		/* routes for addresses of this host, and those whose copies are
					 * answered; 0: take groups alone */
	__u64 answers;			/* the latter alone; 0: nothing is an answer */
	__u64 clock_ns;			/* CLOCK_REALTIME less CLOCK_MONOTONIC */
};

/* Key of `fragments`: what all fragments of a datagram share. IPv4 in [0]. */
struct fragment_key {
	__u32 ifindex;
	__u32 id;	/* as it stands in the packet */
	__be32 source[4];
	__be32 destination[4];
};

/* Value of `fragments`: what only the first fragment says, and where legs are merged what has come (struct
 * merge_pieces). A former version's program keeps `seen_ns`, and `state` below 16.
 */
struct fragment_ports {
	union {
		__u64 seen_ns;
		struct {
			__u32 seen;	/* in units of FRAGMENT_TICK_SHIFT, with FRAGMENT_TICKS in `state` */
			__u32 name;
		};
	};
	__be16 sport;
	__be16 dport;	/* 0: the first has not come */
	__u32 state;
};

#define ASKERS 4096

/* Key of `askers`: where an answer comes. IPv4 in [0]. */
struct asker_key {
	__u32 ifindex;
	__be32 address[4];	/* this host's, which the question's copy came from */
	__be16 port;
	__u16 ipv6;
};

/* Value of `askers`: whose question it was, and what the question was sent to. IPv4 in [0]. */
struct asker {
	__u64 asked_ns;
	__u32 ifindex;
	__be32 address[4];
	__be32 group[4];
	__be16 port;
	__be16 group_port;
	__u8 mac[6];
	__u16 pad;
};

#define CUT_SEGMENTS 128	/* UDP_MAX_SEGMENTS in include/linux/udp.h */
#define CUT_SEGMENT_MAX 16384
#define CUT_PAYLOAD 65536

/* Entry of `cuts`, one for each CPU: a super-packet whose segments are judged one by one. */
struct cut {
	union {
		__u64 kept[CUT_SEGMENTS / 64];	/* segments that pass, a bit for each */
		struct {	/* of a fragment */
			struct merge_pieces pieces;
			__u64 piece;
		};
	};
	__u32 dropped[8];		/* the others, by verdict */
	__u32 segment;			/* bytes of payload in each but the last */
	__u32 payload;			/* in all together */
	__u32 arbiter;
	__u16 length;			/* as the IP header has it */
	__u16 check;			/* likewise, of IPv4 */
	__u16 id;			/* likewise */
	__u16 pad;
	__u32 sender;			/* its address and port */
	__u64 packet[10];		/* struct merge_packet */
	__u8 bytes[CUT_PAYLOAD + CUT_SEGMENT_MAX];	/* the payload, and room for the verifier */
};

/* Key of `group_routes`: an exact route's key without its ports; source 0 is (*,G). IPv4 in [0]. */
struct group_key {
	__u32 ifindex;
	__be32 source[4];
	__be32 group[4];
};

/* Bit in a value of `group_routes`, beside the index in `route_table`: several rules take it. */
#define GROUP_OF_SEVERAL 0x80000000

/* Key of `own_sources`; IPv4 as ::ffff:a.b.c.d. */
struct address {
	__be32 words[4];
};

#endif
