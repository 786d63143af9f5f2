/* Rate limits, as packet::limit defines them: one word of state, shared between CPUs. */
#ifndef LIMIT_H
#define LIMIT_H

#include "maps.h"
#include "parse.h"

#define LIMIT_SCALE 20
#define LIMIT_FRACTION 0xfffff
#define LIMIT_TRIES 8

static __always_inline __u64 time_of(__u64 per_token, __u64 tokens)
{
	/* (per_token * tokens) >> LIMIT_SCALE, in two halves that do not overflow */
	return (per_token >> LIMIT_SCALE) * tokens +
	       ((per_token & LIMIT_FRACTION) * tokens >> LIMIT_SCALE);
}

enum fits { FITS_NOT, FITS_WHOLE, FITS_IN_PART };

/* Says whether the packet passes, and books it if so; of a super-packet that does not, whether a segment
 * would. A packet that loses the race for the word too often is refused: others passed in its place.
 */
static __always_inline enum fits admit(struct limit *limit, __u64 size, const struct packet *p)
{
	__u64 now = bpf_ktime_get_ns(), cost, due, end;

	for (int i = 0; i < LIMIT_TRIES; i++) {
		/* The state first: a limit that changes begins with a state of its own. */
		due = *(volatile __u64 *)&limit->due_ns;
		cost = time_of(limit->per_token,
			       limit->bits ? (__u64)p->payload * 8 : p->segments);
		end = (due && due + cost > now ? due : now) + cost;
		if (cost > limit->depth_ns || end > now + limit->depth_ns)
			break;
		if (__sync_val_compare_and_swap(&limit->due_ns, due, end) == due)
			return FITS_WHOLE;
	}
	cost = time_of(limit->per_token, limit->bits ? size * 8 : 1);
	return size && (due > now ? due : now) + cost <= now + limit->depth_ns ? FITS_IN_PART : FITS_NOT;
}

VERIFIED_ONCE int admitted(struct ctx_buff *skb, __u32 counter, const struct packet *p)
{
	if (!p)
		return 0;

	struct limit *limit = bpf_map_lookup_elem(&limits, &counter);

	return limit ? admit(limit, segment_size(skb), p) : FITS_WHOLE;
}

/* The same for the budget that all unicast outputs share. */
VERIFIED_ONCE int within_budget(struct ctx_buff *skb, const struct packet *p)
{
	if (!p)
		return 0;

	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	return s && s->budget.per_token ? admit(&s->budget, segment_size(skb), p) : FITS_WHOLE;
}

#endif
