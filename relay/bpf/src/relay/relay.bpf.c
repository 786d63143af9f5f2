/* The kernel path, at tc ingress: what becomes of one packet. Every packet of every output ends in
 * exactly one counted verdict.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include "maps.h"
#include "parse.h"
#include "lookup.h"
#include "count.h"
#include "gate.h"
#include "health.h"
#include "limit.h"
#include "rewrite.h"
#include "replicate.h"
#include "arbitrate.h"
#include "cut.h"
#include "latency.h"

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

static __always_inline enum verdict judge(struct fanout *f)
{
	__u32 reason = NOT_DROPPED, input = f->m.counter, arbiter = 0;
	bool sound, shut;

	if (unlikely(f->m.flags & ROUTE_SHADOW))
		return find_rule(f) ? SHADOWED : DROPPED;
	sound = measure(f->skb, &f->p);
	if (unlikely(f->m.flags & ROUTE_INPUT))
		arbiter = count_input(&f->m.counter, &f->p);
	if (unlikely(!find_rule(f)))
		return DROPPED;
	if (unlikely(!sound))
		reason = DROP_MALFORMED;
	else if (unlikely(own_source(&f->p)))
		reason = DROP_OWN_SOURCE;
	else if (unlikely(f->m.flags & MATCH_AMBIGUOUS))
		reason = DROP_FRAGMENT_UNKNOWN;
	else if (unlikely(arbiter) && !(f->m.flags & MATCH_ANSWER))
		reason = arbitrate(f, input, arbiter);
	if (unlikely(is_sample(f->rule, &f->p)))
		f->began = bpf_ktime_get_ns();
	count_rule(f->m.counter, f->rule, &f->p);
	if (unlikely(reason > NOT_DROPPED))
		reason = settle(f, input, reason);
	shut = unlikely(f->m.gate) && reason == NOT_DROPPED && is_shut(f->m.gate);
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
	return reason == DROP_FRAGMENT_UNKNOWN ? LEFT : DROPPED;
}

static __always_inline bool find(struct fanout *f)
{
	return likely(lookup(f->skb, &f->p, &f->m)) || find_answer(f->skb, &f->p, &f->m);
}

static __always_inline int carry_out(struct fanout *f)
{
	int action;

	switch (judge(f)) {
	case ACCEPTED:
		trim(f->skb, &f->p);
		action = unlikely(f->m.flags & MATCH_CUT) ? send_segments(f) : replicate(f);
		if (unlikely(f->m.flags & MATCH_REST))
			send_rest(f);
		if (unlikely(f->began))
			note_latency(f->skb, f->m.counter, f->began);
		return action;
	case SHADOWED:	/* its copies leave from the userspace path's tap, or another relay's */
		note_shadowed(f);
		return delivers_locally(f) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	case LEFT:	/* to the host's stack, which may know whose it is */
		return TC_ACT_UNSPEC;
	case DROPPED:
		break;
	}
	return TC_ACT_SHOT;
}

SEC("classifier")
int relay(struct __sk_buff *skb)
{
	struct fanout f = { .skb = skb };

	if (!parse_ethernet(skb, &f.p) || !find(&f))
		return TC_ACT_UNSPEC;
	/* A tag that names no VLAN is nobody's; copies would carry it. */
	if (unlikely(skb->vlan_present) && bpf_skb_vlan_pop(skb))
		return TC_ACT_UNSPEC;
	return carry_out(&f);
}

/* The same for devices that are not Ethernet's. */
SEC("classifier")
int relay_bare(struct __sk_buff *skb)
{
	struct fanout f = { .skb = skb };
	int offset = ip_offset(skb);

	if (!parse_bare(skb, &f.p, offset) || !find(&f) || (!offset && !add_ethernet(skb, &f.p)))
		return TC_ACT_UNSPEC;
	return carry_out(&f);
}

char dual_license[] SEC("license") = "Dual MIT/GPL";
