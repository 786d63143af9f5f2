/* One packet to all outputs of its route: clones for all but the last, which leaves as the packet
 * itself; but one that still holds its sender's socket (veth keeps it) only as clones, which hold none,
 * for a queue that it waits in would be charged to the sender. bpf_loop keeps the program's size
 * independent of the number of outputs.
 */
#ifndef REPLICATE_H
#define REPLICATE_H

#include <linux/pkt_cls.h>
#include "reply.h"
#include "count.h"
#include "limit.h"
#include "lookup.h"
#include "rewrite.h"

struct fanout {
	struct ctx_buff *skb;
	struct packet p;
	struct match m;
	__u32 began;	/* when its rule was found, lower half, if it is a sample; else 0 */
	struct tally *rule;
};

/* Or'd to the reason: it holds for the packet as a whole, some of its segments may pass. */
#define ASIDE 0x100

/* Asks an output's limit and the budget. */
VERIFIED_ONCE int exceeds(struct ctx_buff *skb, const struct packet *p, const struct output *o)
{
	if (!p || !o)
		return DROP_RATE_LIMITED;

	int fits = o->flags & OUTPUT_LIMITED ? admitted(skb, o->counter, p) : FITS_WHOLE;

	if (fits != FITS_WHOLE)
		return fits == FITS_IN_PART ? DROP_RATE_LIMITED | ASIDE : DROP_RATE_LIMITED;
	if (o->flags & OUTPUT_UNICAST)
		fits = within_budget(skb, p);
	if (fits == FITS_WHOLE)
		return NOT_DROPPED;
	/* What a limit has booked it does not book again. */
	return fits == FITS_IN_PART && !(o->flags & OUTPUT_LIMITED) ? DROP_OVER_BUDGET | ASIDE :
								      DROP_OVER_BUDGET;
}

/* Outputs that judge a super-packet's segments one by one, once all others have it whole. They lie behind
 * what `cut` needs for a payload.
 */
#define REST_MAX 2048
struct rest {
	__u64 count;
	__u32 slots[REST_MAX];
};
_Static_assert(sizeof(struct rest) <= CUT_SEGMENT_MAX, "it has room");

static __always_inline struct rest *rest_of(struct cut *cut)
{
	return (struct rest *)(cut->bytes + CUT_PAYLOAD);
}

/* Counts what an output refuses, or puts the output aside. */
VERIFIED_ONCE int refuse(const struct packet *p, __u32 slot, __u32 said, __u32 flags)
{
	struct output *o = bpf_map_lookup_elem(&outputs, &slot);
	struct cut *cut = cut_here();
	__u32 at = 0;

	if (!p || !o || !cut)
		return 0;
	if (flags & MATCH_REST)
		at = rest_of(cut)->count;
	if (!(said & ASIDE) || flags & MATCH_WHOLE || at >= REST_MAX) {
		count_drop(o->counter, said & ~ASIDE, p);
		return 0;
	}
	rest_of(cut)->slots[below(at, REST_MAX)] = slot;
	rest_of(cut)->count = at + 1;
	return MATCH_REST;
}

/* The drop reason of this packet at this output, before anything is sent. */
static __always_inline __u32 refused(struct ctx_buff *skb, const struct packet *p,
				     const struct output *o)
{
	__u32 size = p->length;

	if (unlikely(o->flags & OUTPUT_DOWN))
		return o->down;
	if (o->flags & OUTPUT_TTL_DEC && ttl_of(p) <= 1)
		return DROP_TTL_EXPIRED;
	if (unlikely(segment_size(skb)))
		size = (p->l4 & L4_MASK) - IP_OFFSET + sizeof(struct udphdr) + segment_size(skb);
	if (unlikely(size > o->mtu))
		return DROP_TOO_BIG;
	if (unlikely(o->flags & (OUTPUT_LIMITED | OUTPUT_UNICAST)))
		return exceeds(skb, p, o);
	return NOT_DROPPED;
}

static __always_inline __u32 send_clone(struct ctx_buff *skb, const struct packet *p,
					const struct output *o)
{
	long error;

	if (!rewrite(skb, p, o))
		return DROP_EGRESS_ERROR;
	/* What dev_queue_xmit said, an errno or NET_XMIT_*; dataplane/src/features.rs on kernels. */
	error = bpf_clone_redirect(skb, o->ifindex, 0);
	if (likely(error == 0 || error == 2 /* NET_XMIT_CN: queued */))
		return NOT_DROPPED;
	return error > 0 || error == -105 /* ENOBUFS */ || error == -12 /* ENOMEM */ ?
		DROP_EGRESS_FULL : DROP_EGRESS_ERROR;
}

/* `cost`: the bytes of payload that limits go by, where that is not what it has. */
static __always_inline long clone_one(__u32 slot, struct fanout *f, __u32 cost)
{
	__u32 reason, payload = f->p.payload;
	struct output *o = bpf_map_lookup_elem(&outputs, &slot);

	if (!o)
		return 1;
	if (cost)
		f->p.payload = cost;
	reason = refused(f->skb, &f->p, o);
	if (cost)
		f->p.payload = payload;
	if (reason == NOT_DROPPED) {
		if (unlikely(o->flags & OUTPUT_ANSWERS))
			note_question(f->skb, &f->p, o);
		reason = send_clone(f->skb, &f->p, o);
	}
	if (likely(reason == NOT_DROPPED))
		count(o->counter, &f->p);
	else
		f->m.flags |= refuse(&f->p, slot, reason, f->m.flags);
	return 0;
}

static long clone_to(__u32 i, struct fanout *f)
{
	return clone_one(f->m.first + i, f, 0);
}

/* Sends the packet itself to the route's last output. */
static __always_inline int send_last(struct fanout *f)
{
	__u32 slot = f->m.first + f->m.count - 1, reason;
	struct output *o = bpf_map_lookup_elem(&outputs, &slot);

	if (!o)
		return TC_ACT_SHOT;
	reason = refused(f->skb, &f->p, o);
	if (likely(reason == NOT_DROPPED)) {
		if (unlikely(o->flags & OUTPUT_ANSWERS))
			note_question(f->skb, &f->p, o);
		if (likely(rewrite(f->skb, &f->p, o))) {
			count(o->counter, &f->p);
			return bpf_redirect(o->ifindex, 0);
		}
		reason = DROP_EGRESS_ERROR;
	}
	f->m.flags |= refuse(&f->p, slot, reason, f->m.flags);
	return TC_ACT_SHOT;
}

/* Sends an answer to whoever asked, by the output in that slot. */
VERIFIED_ONCE int send_answer(struct ctx_buff *skb, const struct packet *p, __u32 slot)
{
	__u32 key = slot, reason;
	struct output *found = bpf_map_lookup_elem(&outputs, &key);
	struct cut *cut;

	if (!p || !found)
		return TC_ACT_SHOT;
	reason = refused(skb, p, found);
	if (likely(reason == NOT_DROPPED)) {
		cut = cut_here();
		if (cut && plan_answer(skb, p, found) && rewrite(skb, p, (struct output *)cut->packet)) {
			count(found->counter, p);
			if (!holds_socket(skb))
				return bpf_redirect(found->ifindex, 0);
			bpf_clone_redirect(skb, found->ifindex, 0);
			return TC_ACT_SHOT;
		}
		reason = DROP_EGRESS_ERROR;
	}
	count_drop(found->counter, reason & ~ASIDE, p);
	return TC_ACT_SHOT;
}

static long note_one(__u32 i, struct fanout *f)
{
	__u32 slot = f->m.first + i;
	struct output *o = bpf_map_lookup_elem(&outputs, &slot);

	if (!o)
		return 1;
	if (o->flags & OUTPUT_ANSWERS)
		note_question(f->skb, &f->p, o);
	return 0;
}

/* Remembers who asks what the userspace path relays, so that its answers end here too. */
static __always_inline void note_shadowed(struct fanout *f)
{
	if (unlikely(f->m.count) && f->m.flags & ROUTE_SHADOW && !(f->m.flags & MATCH_ANSWER))
		bpf_loop(f->m.count, note_one, f, 0);
}

static __always_inline bool delivers_locally(struct fanout *f)
{
	if (f->m.flags & ROUTE_LOCAL_AUTO)
		return socket_listens(f->skb, &f->p, f->rule);
	return f->m.flags & ROUTE_LOCAL_YES;
}

static __always_inline int replicate(struct fanout *f)
{
	bool local;

	if (unlikely(!learn_checksum(f->skb, &f->p)))
		return TC_ACT_SHOT;
	if (unlikely(f->m.flags & MATCH_ANSWER)) {
		f->rule->answers += f->p.segments;
		return send_answer(f->skb, &f->p, f->m.first);
	}
	local = delivers_locally(f);
	if (local)
		f->m.flags |= MATCH_WHOLE;
	if (unlikely(local || holds_socket(f->skb))) {
		bpf_loop(f->m.count, clone_to, f, 0);
		if (!local)
			return TC_ACT_SHOT;
		restore(f->skb, &f->p);
		return TC_ACT_UNSPEC;
	}
	if (unlikely(f->m.count == 0))
		return TC_ACT_SHOT;
	if (f->m.count > 1)
		bpf_loop(f->m.count - 1, clone_to, f, 0);
	if (likely(!(f->m.flags & MATCH_REST)))
		return send_last(f);
	f->m.first += f->m.count - 1;
	bpf_loop(1, clone_to, f, 0);
	return TC_ACT_SHOT;
}

#endif
