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
	DROP_TOO_BIG = 5,
	DROP_TTL_EXPIRED = 6,
	DROP_EGRESS_FULL = 12,
	DROP_EGRESS_ERROR = 13,
	NOT_DROPPED = DROP_SLOTS,
};

static __always_inline void count_in(struct tally *tally, const struct packet *p)
{
	tally->packets += p->segments;
	tally->bytes += p->payload;
}

static __always_inline void count(__u32 counter, const struct packet *p)
{
	struct tally *tally = bpf_map_lookup_elem(&counters, &counter);

	if (likely(tally))
		count_in(tally, p);
}

static __always_inline void count_drop(__u32 counter, __u32 reason, const struct packet *p)
{
	struct drops *entry = bpf_map_lookup_elem(&drops, &counter);

	if (entry && reason < DROP_SLOTS)
		__sync_fetch_and_add(&entry->packets[reason], (__u64)p->segments);
}

#endif
