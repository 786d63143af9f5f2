/* What becomes of a packet that a route takes, at either hook: it passes or it is counted as dropped, once
 * for its rule and once for its input.
 */
#ifndef JUDGE_H
#define JUDGE_H

#include "select.h"
#include "count.h"
#include "gso_split.h"
#include "gate.h"
#include "health.h"
#include "latency.h"
#include "limit.h"
#include "lookup.h"
#include "parse.h"
#include "replicate.h"

enum verdict { ACCEPTED, DROPPED, LEFT, SHADOWED };

static __always_inline bool find_rule(struct fanout *f)
{
	f->rule = bpf_map_lookup_elem(&counters, &f->m.counter);
	return f->rule;
}

/* Looks at a packet that passes. Of one of which only some segments pass nobody knows which those are. */
static __always_inline void watch(struct fanout *f, __u32 arbiter)
{
	bool merged = unlikely((arbiter & ARBITER_KIND) == ARBITER_MERGE);
	__u32 slot = merged ? begin_watch(arbiter, f->m.health) : f->m.health;

	if (unlikely(f->m.flags & MATCH_CUT))
		lose_track(slot);
	else
		inspect(f->skb, &f->p, slot);
	if (merged)
		end_watch(arbiter);
}

/* `counter`: that of its match, of a packet that was found sound; else none. */
static __always_inline enum verdict judge(struct fanout *f, struct tally *counter)
{
	__u32 reason = NOT_DROPPED, input = f->m.counter, arbiter = 0;
	bool sound, shut;

	if (unlikely(f->m.flags & ROUTE_SHADOW))
		return find_rule(f) ? SHADOWED : DROPPED;
	sound = counter || measure(f->skb, &f->p);
	if (unlikely(f->m.flags & ROUTE_INPUT))
		arbiter = count_input(&f->m.counter, &f->p);
	if (counter && likely(!(f->m.flags & ROUTE_INPUT)))
		f->rule = counter;
	else if (unlikely(!find_rule(f)))
		return DROPPED;
	if (unlikely(!sound))
		reason = DROP_MALFORMED;
	else if (unlikely(own_source(f->skb, &f->p)))
		reason = DROP_OWN_SOURCE;
	else if (unlikely(f->m.flags & MATCH_AMBIGUOUS))
		reason = DROP_FRAGMENT_UNKNOWN;
	else if (unlikely(arbiter) && !(f->m.flags & MATCH_ANSWER))
		reason = arbitrate(f, input, arbiter);
	if (unlikely(is_sample(f->rule, &f->p)))
		f->began = bpf_ktime_get_ns();
	count_rule(f->m.counter, f->rule, &f->p);
	if (unlikely(reason > NOT_DROPPED))
		reason = drop_segments(f, input, reason);
	shut = unlikely(f->m.gate) && reason == NOT_DROPPED && is_shut(f->skb, f->m.gate);
	if (likely(reason == NOT_DROPPED) && unlikely(f->m.flags & ROUTE_LIMITED) && !shut) {
		reason = meter(f->skb, &f->p, f->rule, f->m.counter, f->m.flags);
		if (unlikely(reason == ARBITER_MIXED)) {
			f->m.flags |= MATCH_METERED;
			reason = NOT_DROPPED;
		}
	}
	if (unlikely(f->m.health) && (reason == NOT_DROPPED || reason == DROP_RATE_LIMITED))
		watch(f, arbiter);
	if (unlikely(arbiter) && f->m.health && reason == DROP_STANDBY)
		lose_track(f->m.health);
	if (unlikely(shut))
		reason = DROP_STANDBY;
	if (unlikely(input != f->m.counter) && reason >= DROP_STANDBY && reason != NOT_DROPPED)
		count_drop(input, reason, &f->p);
	if (unlikely(f->m.flags & MATCH_RANGE))
		count_flow(f->m.counter, &f->p);
	if (unlikely(f->m.flags & MATCH_METERED) && !(f->m.flags & MATCH_CUT)) {
		if (begin_whole(f->skb, &f->p))
			f->m.flags |= MATCH_CUT;
		else
			reason = DROP_RATE_LIMITED;
	}
	if (likely(reason == NOT_DROPPED))
		return ACCEPTED;
	count_drop(f->m.counter, reason, &f->p);
	if (unlikely(shut))	/* the host's own sockets are no share's */
		return SHADOWED;
	/* What merging drops may be the host's own where nobody knows its port yet. */
	if (reason > DROP_STANDBY && f->p.part == PART_LATER && !f->p.dport)
		return LEFT;
	return reason == DROP_FRAGMENT_UNKNOWN ? LEFT : DROPPED;
}

#endif
