/* The kernel path, at tc ingress: what becomes of one packet. Every packet of every output ends in
 * exactly one counted verdict.
 */
#include <linux/bpf.h>
#include "bare.h"
#include "judge.h"

/* Takes off what follows the IP packet: where a device's MTU is judged, it counts. */
static __always_inline void trim(struct ctx_buff *skb, const struct packet *p)
{
	if (has_trailer(skb, p) && !segment_size(skb))
		bpf_skb_change_tail(skb, IP_OFFSET + p->length, 0);
}

static __always_inline bool find(struct fanout *f)
{
	return likely(lookup(f->skb, &f->p, &f->m)) || find_answer(f->skb, &f->p, &f->m);
}

static __always_inline int carry_out(struct fanout *f)
{
	int action;

	switch (judge(f, 0)) {
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
int relay(struct ctx_buff *skb)
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
int relay_bare(struct ctx_buff *skb)
{
	struct fanout f = { .skb = skb };
	int offset = ip_offset(skb);

	if (!parse_bare(skb, &f.p, offset) || !find(&f) || (!offset && !add_ethernet(skb, &f.p)))
		return TC_ACT_UNSPEC;
	return carry_out(&f);
}

char dual_license[] SEC("license") = "Dual MIT/GPL";
