/* Super-packets of which some segments pass and some do not: those that do leave one by one. The payload
 * is put aside, and the packet becomes each of them in turn, which ends it being a super-packet.
 */
#ifndef GSO_SPLIT_H
#define GSO_SPLIT_H

#include "select.h"
#include "health.h"
#include "replicate.h"

/* Looks at the segments that pass. */
VERIFIED_ONCE int inspect_kept(struct ctx_buff *skb, const struct packet *p, __u32 slot)
{
	__u32 route = slot - 1;
	struct health *h = bpf_map_lookup_elem(&health, &route);
	struct payload y = { .skb = skb, .h = h, .cut = cut_here(), .route = route };

	if (!p || !h || !y.cut)
		return 0;
	y.now = bpf_ktime_get_ns();
	note_arrival(h, y.now);
	if (h->content == CONTENT_NONE)
		return 0;
	y.offset = (p->l4 & L4_MASK) + sizeof(struct udphdr);
	y.length = p->payload;
	y.segment = segment_size(skb);
	bpf_loop(p->segments, inspect_segment, &y, 0);
	return 0;
}

/* Puts aside what the segments are made of; the packet counts as those that pass from now on. */
VERIFIED_ONCE int save_payload(struct ctx_buff *skb, struct packet *p)
{
	struct cut *cut = cut_here();
	__u32 kept = 0, bytes = 0, length;

	if (!p || !cut || !p->payload)
		return false;
	length = below(p->payload - 1, CUT_PAYLOAD) + 1;
	if (load_bytes(skb, (p->l4 & L4_MASK) + sizeof(struct udphdr), cut->bytes, length) ||
	    load_bytes(skb, IP_OFFSET + 4, &cut->id, sizeof(cut->id)))
		return false;
	cut->length = p->length;
	cut->check = p->ip_check;
	for (__u32 i = 0; i < CUT_SEGMENTS; i++) {
		__u32 rest = cut->payload - i * cut->segment;

		if (!is_kept(cut, i))
			continue;
		kept++;
		bytes += rest < cut->segment ? rest : cut->segment;
	}
	p->segments = kept;
	p->payload = bytes;
	return true;
}

/* Writes the headers of one segment. Of a partial checksum only the length in it changes; a whole one,
 * which super-packets do not have but on their way between devices that leave them as they came, would
 * be another one for each: IPv4 does without.
 */
static __always_inline bool head_segment(struct ctx_buff *skb, struct packet *p, const struct cut *cut,
					 __u32 segment, __u32 length)
{
	__u32 l4 = p->l4 & L4_MASK, size = length + sizeof(struct udphdr);
	void *data, *end;
	struct udphdr *udp;
	__be16 *ip;

	if (!pull(skb, l4 + sizeof(struct udphdr)))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = data + IP_OFFSET;
	udp = data + l4;
	if ((void *)(ip + 10) > end || (void *)(udp + 1) > end)
		return false;
	p->length = l4 - IP_OFFSET + size;
	if (p->ipv6) {
		ip[2] = be16(p->length - sizeof(struct ipv6hdr));
	} else {
		__u64 sum = (__u16)~cut->check + (__u16)~be16(cut->length) + (__u32)(__u16)~cut->id;

		ip[1] = be16(p->length);
		ip[2] = be16((__u16)(host16(cut->id) + segment));	/* RFC 6864 section 4.3 */
		sum += (__u32)ip[1] + ip[2];
		p->ip_check = ~fold(sum);
	}
	if (p->udp_check && p->whole) {
		if (p->ipv6)
			return false;
		p->udp_check = 0;
		udp->check = 0;
	} else if (p->udp_check) {
		udp->check = fold((__u64)udp->check + (__u16)~udp->len + be16(size));
	}
	udp->len = be16(size);
	p->udp_length = size;
	p->payload = length;
	p->segments = 1;
	return true;
}

/* Makes the packet one of its segments. */
VERIFIED_ONCE int cut_to(struct ctx_buff *skb, struct packet *p, __u32 segment)
{
	struct cut *cut = cut_here();
	__u32 start, length, bytes, offset;

	if (!p || !cut)
		return false;
	start = segment * cut->segment;
	length = cut->payload - start;
	if (length > cut->segment)
		length = cut->segment;
	if (!length)
		return false;
	offset = (p->l4 & L4_MASK) + sizeof(struct udphdr);
	bytes = below(length - 1, CUT_SEGMENT_MAX) + 1;
	if (bpf_skb_change_tail(skb, offset + bytes, 0) ||
	    bpf_skb_store_bytes(skb, offset, cut->bytes + below(start, CUT_PAYLOAD), bytes,
				BPF_F_RECOMPUTE_CSUM))
		return false;
	return head_segment(skb, p, cut, segment, bytes);
}

/* Makes the packet one of its segments if the rule's limit lets that pass; says why not. */
VERIFIED_ONCE int take_segment(struct ctx_buff *skb, struct packet *p, __u32 segment, __u32 counter,
			       __u32 flags)
{
	struct cut *cut = cut_here();
	__u32 reason = NOT_DROPPED;

	if (!p || !cut)
		return NOT_DROPPED;
	p->segments = 1;
	/* The last, which may be shorter, costs a limit as much: it does not pass where one before it did not. */
	p->payload = cut->segment;
	if (flags & MATCH_METERED && !admitted(skb, counter, p))
		reason = DROP_RATE_LIMITED;
	else if (!cut_to(skb, p, segment))
		reason = DROP_EGRESS_ERROR;
	if (likely(reason == NOT_DROPPED))
		return NOT_DROPPED;
	cut->kept[below(segment >> 6, CUT_SEGMENTS / 64)] &= ~(1ull << (segment & 63));
	count_drop(counter, reason, p);
	return reason;
}

/* Every segment to every output, in one loop: nested ones would have no room on the stack. */
static long clone_segment(__u32 i, struct fanout *f)
{
	__u32 count = f->m.count ?: 1, segment = i / count;
	struct cut *cut = cut_here();

	if (!cut)
		return 1;
	i -= segment * count;
	if (segment >= CUT_SEGMENTS || segment * cut->segment >= cut->payload)
		return 1;
	if (!is_kept(cut, segment))
		return 0;
	if (i == 0 && take_segment(f->skb, &f->p, segment, f->m.counter, f->m.flags) != NOT_DROPPED)
		return 0;
	if (unlikely(!f->m.count))
		return 0;
	return clone_one(f->m.flags & MATCH_REST ? rest_of(cut)->slots[below(i, REST_MAX)] : f->m.first + i,
			 f, cut->segment);
}

static __always_inline int send_segments(struct fanout *f)
{
	if (likely(learn_checksum(f->skb, &f->p)))
		bpf_loop(CUT_SEGMENTS * (f->m.count ?: 1), clone_segment, f, 0);
	return TC_ACT_SHOT;
}

/* Begins a cut that all segments pass. */
VERIFIED_ONCE int begin_whole(struct ctx_buff *skb, struct packet *p)
{
	struct cut *cut = cut_here();

	if (!p || !cut || !begin_cut(skb, p, 0))
		return false;
	cut->kept[0] = cut->kept[1] = ~0ull;
	return save_payload(skb, p);
}

/* Sends the segments one by one by the outputs that were put aside. */
static __always_inline void send_rest(struct fanout *f)
{
	struct cut *cut = cut_here();

	if (!cut || !begin_whole(f->skb, &f->p))
		return;
	f->m.count = rest_of(cut)->count;
	bpf_loop(CUT_SEGMENTS * f->m.count, clone_segment, f, 0);
}

/* Asks the rule's limit. Where some segments pass, each is to be judged as it leaves (ARBITER_MIXED); what
 * this host's own stack wants too is not cut.
 */
#ifdef AT_XDP	/* where most of its arguments have no use */
static __always_inline
#else
VERIFIED_ONCE
#endif
int meter(struct ctx_buff *skb, const struct packet *p, struct tally *rule, __u32 counter,
			__u32 flags)
{
	int fits;

	if (!p || !rule)
		return NOT_DROPPED;
	fits = admitted(skb, counter, p);
	if (fits == FITS_WHOLE)
		return NOT_DROPPED;
	if (fits == FITS_NOT || flags & ROUTE_LOCAL_YES ||
	    (flags & ROUTE_LOCAL_AUTO && socket_listens(skb, p, rule)))
		return DROP_RATE_LIMITED;
	return ARBITER_MIXED;
}

/* Counts what does not pass of a super-packet; says why nothing does. What this host's own stack wants
 * too is not cut: it passes whole, with what came before.
 */
static __always_inline __u32 drop_segments(struct fanout *f, __u32 input, __u32 reason)
{
	if (reason == ARBITER_MIXED && delivers_locally(f))
		return NOT_DROPPED;
	count_cut(f->m.counter, input);
	if (reason == ARBITER_NONE)
		return reason;
	if (f->m.health)
		inspect_kept(f->skb, &f->p, f->m.health);
	if (!save_payload(f->skb, &f->p))
		return DROP_MALFORMED;
	f->m.flags |= MATCH_CUT;
	return NOT_DROPPED;
}

#endif
