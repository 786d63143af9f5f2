/* Counters: per CPU for what is relayed, shared for what is dropped. */
#ifndef COUNT_H
#define COUNT_H

#include "maps.h"
#include "parse.h"

/* packet::verdict::DropReason */
enum drop_reason {
	DROP_MALFORMED = 0,
	DROP_OWN_SOURCE = 1,
	DROP_RATE_LIMITED = 2,
	DROP_FRAGMENT_UNKNOWN = 3,
	DROP_TOO_BIG = 5,
	DROP_TTL_EXPIRED = 6,
	DROP_EGRESS_FULL = 12,
	DROP_EGRESS_ERROR = 13,
	DROP_OVER_BUDGET = 14,
	DROP_STANDBY = 15,
	DROP_DUPLICATE = 16,
	DROP_LATE = 17,
	DROP_STRAY = 18,
	DROP_NOT_WANTED = 19,
	DROP_IPSEC_POLICY = 20,
	DROP_STREAMS_EXCEEDED = 21,
	NOT_DROPPED = DROP_SLOTS,
};

/* The clock is read once a timer tick, however many packets come. Says whether it was. */
static __always_inline bool count_in(struct tally *tally, const struct packet *p)
{
	__u64 tick = bpf_jiffies64();

	tally->packets += p->segments;
	tally->bytes += p->payload;
	if (likely(tally->tick == tick))
		return false;
	tally->tick = tick;
	tally->last_ns = bpf_ktime_get_ns();
	return true;
}

/* Shows that a rule's packets are counted: a store for each CPU and timer tick. */
static __always_inline void count_rule(__u32 counter, struct tally *tally, const struct packet *p)
{
	__u32 entry = counter / ACTIVITY_TICKS;
	struct activity *shown;

	if (likely(!count_in(tally, p)))
		return;
	shown = bpf_map_lookup_elem(&activity, &entry);
	if (shown)
		shown->ticks[counter % ACTIVITY_TICKS] = (__u32)tally->tick;
}

static __always_inline void count(__u32 counter, const struct packet *p)
{
	struct tally *tally = bpf_map_lookup_elem(&counters, &counter);

	if (likely(tally))
		count_in(tally, p);
}

/* Counts a packet for its input, whose counter gives way to its rule's; says what decides between the
 * rule's inputs.
 */
VERIFIED_ONCE int count_input(__u32 *counter, const struct packet *p)
{
	if (!counter || !p)
		return 0;

	/* On the stack, for up to Linux 6.2 helpers take no key from another frame's. */
	__u32 index = *counter;
	struct identity *input = bpf_map_lookup_elem(&identities, &index);

	count(*counter, p);
	if (!input)
		return 0;
	*counter = input->rule;
	return input->arbiter;
}

/* Counts a packet of a range once more, for its own group and port. */
VERIFIED_ONCE int count_flow(__u32 counter, const struct packet *p)
{
	if (!p)
		return 0;

	struct flow_key key = { .counter = counter, .port = p->dport };
	struct flow first = { .packets = p->segments, .bytes = p->payload };
	struct flow *flow;

	key.group[0] = p->destination[0];
	if (p->ipv6) {
		key.ipv6 = 1;
		__builtin_memcpy(key.group, p->destination, 16);
	}
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow) {
		bpf_map_update_elem(&flows, &key, &first, BPF_ANY);
		return 0;
	}
	flow->packets += p->segments;
	flow->bytes += p->payload;
	return 0;
}

static __always_inline void count_drop(__u32 counter, __u32 reason, const struct packet *p)
{
	struct drops *entry = bpf_map_lookup_elem(&drops, &counter);

	if (entry && reason < DROP_SLOTS)
		__sync_fetch_and_add(&entry->packets[reason], (__u64)p->segments);
}

#endif
