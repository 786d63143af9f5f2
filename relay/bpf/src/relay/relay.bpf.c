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

/* Puts an Ethernet header in front of what was looped back, which has none. It has no sender, by which
 * workers know it, and is for a group, which eth_type_trans goes by.
 */
VERIFIED_ONCE int complete(struct ctx_buff *skb)
{
	struct ethhdr eth = { .h_dest = { 1 }, .h_proto = skb->protocol };

	return !bpf_skb_change_head(skb, ETH_HLEN, 0) &&
	       !bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0);
}

/* Says whether a packet has the header that `complete` makes. */
static __always_inline bool was_looped(const struct packet *p)
{
	__u32 words[3];

	__builtin_memcpy(words, p->mac, sizeof(words));
	return words[0] == be32(0x01000000) && !(words[1] | words[2]);
}

/* Packet sockets see nothing of what was looped back: the tap gets it as if it came by the wire, with a
 * header that says what it is, and a mark by which the tap's filter believes it.
 */
static __always_inline int loop_to_tap(struct fanout *f)
{
	__u32 mark = f->skb->mark;

	if (f->m.flags & ROUTE_SHADOW && was_looped(&f->p)) {
		f->skb->mark = LOOPED_MARK;
		bpf_clone_redirect(f->skb, ingress_of(f->skb), BPF_F_INGRESS);
		f->skb->mark = mark;
	}
	return TC_ACT_UNSPEC;
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
		if (unlikely(is_looped(f->skb)))
			return loop_to_tap(f);
		return !was_looped(&f->p) && delivers_locally(f) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	case LEFT:	/* to the host's stack, which may know whose it is */
		return TC_ACT_UNSPEC;
	case DROPPED:
		break;
	}
	return is_looped(f->skb) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

SEC("classifier")
int relay(struct ctx_buff *skb)
{
	struct fanout f = { .skb = skb };

	if (unlikely(is_looped(skb)) && !complete(skb))
		return TC_ACT_UNSPEC;
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
