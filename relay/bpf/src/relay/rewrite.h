/* Headers of one copy, written over whatever the packet carries at that moment. Lengths, IP ID, DF
 * and options are never touched, so a super-packet is rewritten whole.
 */
#ifndef REWRITE_H
#define REWRITE_H

#include "helpers.h"
#include "layout.h"
#include "parse.h"

#define UDP_CHECK_OFFSET 6
#define NO_CHANGE_OF_TWO 0x1fffe	/* two words, each less itself */
#ifndef BPF_F_IPV6
#define BPF_F_IPV6 (1ull << 7)
#endif

/* What a copy shall carry. */
struct header {
	__be32 source[4], destination[4];
	__be16 sport, dport;
	__u16 class_word, ttl_word;
};

static __always_inline __u8 ttl_of(const struct packet *p)
{
	__u16 word = host16(p->ttl_word);

	return p->ipv6 ? word & 0xff : word >> 8;
}

/* `group` is the last word of the packet's destination. */
static __always_inline void plan_common(const struct packet *p, const struct output *o,
					struct header *h, __be32 group)
{
	__u32 flags = o->flags;

	h->sport = flags & OUTPUT_SPORT ? o->sport : p->sport;
	h->dport = o->dport;
	if (flags & OUTPUT_PORT_DELTA) {
		__u32 number = flags & OUTPUT_PORT_OF_GROUP ? host32(group) : host16(p->dport);

		h->dport = be16((__u16)(number + o->dport));
	}
	h->class_word = p->class_word;
	h->ttl_word = p->ttl_word;
}

static __always_inline void plan_ipv4(const struct packet *p, const struct output *o,
				      struct header *h)
{
	__u32 flags = o->flags;
	__u8 *ttl = (__u8 *)&h->ttl_word, *tos = (__u8 *)&h->class_word + 1;

	plan_common(p, o, h, p->destination[0]);
	h->source[0] = flags & OUTPUT_SOURCE ? o->source[0] : p->source[0];
	h->destination[0] = o->destination[0];
	if (flags & OUTPUT_GROUP_RANGE) {
		if (flags & OUTPUT_GROUP_OF_PORT)
			h->destination[0] = be32(host32(h->destination[0]) + host16(p->dport));
		else
			h->destination[0] |= p->destination[0] & o->destination[1];
	}
	if (flags & OUTPUT_TTL_SET)
		*ttl = o->ttl;
	if (flags & OUTPUT_TTL_DEC)
		*ttl -= 1;
	if (flags & OUTPUT_DSCP)
		*tos = (*tos & 3) | o->tos;
}

/* RFC 1624 equation 3, for all changed words at once, always from the header as it came. */
static __always_inline __u16 ip_check(const struct packet *p, const struct header *h)
{
	__u64 sum = (__u16)~p->ip_check;

	sum += (__u16)~p->class_word + (__u32)h->class_word;
	sum += (__u16)~p->ttl_word + (__u32)h->ttl_word;
	sum += (__u64)(__u32)~p->source[0] + h->source[0];
	sum += (__u64)(__u32)~p->destination[0] + h->destination[0];
	return ~fold(sum);
}

static __always_inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

/* Writes the ports and returns what that adds to the checksum. */
static __always_inline __u32 write_ports(struct udphdr *udp, const struct header *h)
{
	__u32 change = (__u16)~udp->source + (__u16)~udp->dest + h->sport + h->dport;

	udp->source = h->sport;
	udp->dest = h->dport;
	return change;
}

/* The UDP header's checksum after changes of addresses, which are in the pseudo-header, and of ports,
 * which are not. It is the complement of the whole sum, or the sum of the pseudo-header alone, to
 * which somebody else adds the rest. Without branches, which would multiply the verifier's work.
 */
static __always_inline __u16 changed(__u16 check, __u16 whole, __u64 addresses, __u32 ports)
{
	__u32 sum = whole ^ fold((__u16)(check ^ whole) + addresses + (ports & whole * 0x10001u));

	return sum | (sum - 1) >> 16;	/* not 0, which means none */
}

#ifdef AT_XDP
/* What a driver hands over carries whole ones. */
static __always_inline bool learn_checksum(struct ctx_buff *skb, struct packet *p)
{
	p->whole = 0xffff;
	return true;
}
#else
/* Finds out which of both it is. Only the kernel's helper knows, so it adds 1 as if to an address: a
 * partial checksum grows, a whole one shrinks. All is put back, a device's sum over the packet too.
 * The helper costs as much as all else of a rewriting, so it is called once, not for each copy.
 */
static __always_inline bool learn_checksum(struct ctx_buff *skb, struct packet *p)
{
	__u32 l4 = p->l4 & L4_MASK, part = fold((__u64)p->udp_check + 1);
	struct udphdr *udp;

	if (p->part == PART_LATER || p->udp_check == 0)
		return true;
	bpf_l4_csum_replace(skb, l4 + UDP_CHECK_OFFSET, 0, 1,
			    BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
	balance(skb, 1);
	udp = (void *)(long)skb->data + l4;
	if ((void *)(udp + 1) > (void *)(long)skb->data_end)
		return false;
	p->whole = (part - udp->check | udp->check - part) >> 16;
	udp->check = p->udp_check;
	return true;
}
#endif

static __always_inline bool write_ipv4(struct ctx_buff *skb, const struct packet *p,
				       const struct header *h, const __u8 *mac, bool range)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + IP_OFFSET;
	__u32 l4 = p->l4 & L4_MASK, ports;
	struct udphdr *udp = data + l4;
	__u64 addresses;

	if ((void *)(ip + 1) > end)
		return false;
	addresses = (__u64)(__u32)~ip->saddr + (__u32)~ip->daddr;
	addresses += (__u64)h->source[0] + h->destination[0];
	if (mac)
		__builtin_memcpy(data, mac, 12);
	if (mac && unlikely(range)) {	/* RFC 1112 section 6.4 */
		*(__u8 *)(data + 3) = host32(h->destination[0]) >> 16 & 0x7f;
		*(__u16 *)(data + 4) = be16(host32(h->destination[0]));
	}
	*(__u16 *)ip = h->class_word;
	*(__u16 *)&ip->ttl = h->ttl_word;
	ip->check = ip_check(p, h);
	ip->saddr = h->source[0];
	ip->daddr = h->destination[0];
	if (unlikely(p->part == PART_LATER))
		return true;
	if ((void *)(udp + 1) > end)
		return false;
	ports = write_ports(udp, h);
	if (p->udp_check == 0)	/* none, and stays so */
		return true;
	udp->check = changed(udp->check, p->whole, addresses, ports);
	/* A device's sum over the packet follows: the header's checksum balances the addresses. */
	balance(skb, ~fold32(addresses));
	return true;
}

static __always_inline bool rewrite_ipv4(struct ctx_buff *skb, const struct packet *p,
					 const struct output *o)
{
	struct header h;

	plan_ipv4(p, o, &h);
	return write_ipv4(skb, p, &h, o->flags & OUTPUT_MAC ? o->mac : 0,
			  o->flags & OUTPUT_GROUP_RANGE);
}

static __always_inline void plan_ipv6(const struct packet *p, const struct output *o,
				      struct header *h)
{
	__u32 flags = o->flags;
	__u8 *hop_limit = (__u8 *)&h->ttl_word + 1;

	plan_common(p, o, h, p->destination[3]);
	for (int i = 0; i < 4; i++) {
		h->source[i] = flags & OUTPUT_SOURCE ? o->source[i] : p->source[i];
		h->destination[i] = o->destination[i];
		if ((flags & OUTPUT_GROUP_RANGE) && !(flags & OUTPUT_GROUP_OF_PORT))
			h->destination[i] |= p->destination[i] & host_bits(o->prefix, i);
	}
	if (flags & OUTPUT_GROUP_OF_PORT)
		h->destination[3] = be32(host32(h->destination[3]) + host16(p->dport));
	if (flags & OUTPUT_TTL_SET)
		*hop_limit = o->ttl;
	if (flags & OUTPUT_TTL_DEC)
		*hop_limit -= 1;
	if (flags & OUTPUT_DSCP) {	/* behind the version's four bits, ECN behind it */
		__u16 word = host16(p->class_word);

		h->class_word = be16((word & 0xf03f) | o->tos << 4);
	}
}

static __always_inline bool write_ipv6(struct ctx_buff *skb, const struct packet *p,
				       const struct header *h, const __u8 *mac, bool range)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip = data + IP_OFFSET;
	__u32 l4 = p->l4 & L4_MASK, ports, words;
	struct udphdr *udp = data + l4;
	__u64 addresses = 0;

	if ((void *)(ip + 1) > end)
		return false;
	words = (__u16)~*(__u16 *)ip + h->class_word;
	words += (__u16)~*(__u16 *)&ip->nexthdr + h->ttl_word;
	if (mac)
		__builtin_memcpy(data, mac, 12);
	if (mac && range)	/* RFC 2464 section 7 */
		*(__u32 *)(data + 2) = h->destination[3];
	*(__u16 *)ip = h->class_word;
	*(__u16 *)&ip->nexthdr = h->ttl_word;
	for (int i = 0; i < 4; i++) {
		addresses += (__u64)(__u32)~ip->saddr.s6_addr32[i] + h->source[i];
		addresses += (__u64)(__u32)~ip->daddr.s6_addr32[i] + h->destination[i];
		ip->saddr.s6_addr32[i] = h->source[i];
		ip->daddr.s6_addr32[i] = h->destination[i];
	}
	if (p->part == PART_LATER) {	/* a device's sum over the packet must follow */
		balance(skb, fold32(addresses + words));
		return true;
	}
	if ((void *)(udp + 1) > end)
		return false;
	ports = write_ports(udp, h);
	udp->check = changed(udp->check, p->whole, addresses, ports);
	/* It balances addresses and ports; nothing balances the header's other words. */
	if (unlikely(words != NO_CHANGE_OF_TWO))
		balance(skb, words);
	return true;
}

VERIFIED_ONCE int rewrite_ipv6(struct ctx_buff *skb, const struct packet *p,
			       const struct output *o)
{
	if (!p || !o)
		return 0;

	struct header h;

	plan_ipv6(p, o, &h);
	return write_ipv6(skb, p, &h, o->flags & OUTPUT_MAC ? o->mac : 0,
			  o->flags & OUTPUT_GROUP_RANGE);
}

static __always_inline bool rewrite(struct ctx_buff *skb, const struct packet *p,
				    const struct output *o)
{
	return unlikely(p->ipv6) ? rewrite_ipv6(skb, p, o) : rewrite_ipv4(skb, p, o);
}

/* Puts the packet back as it came, for the host's own stack. */
VERIFIED_ONCE int restore(struct ctx_buff *skb, const struct packet *p)
{
	if (!p)
		return 0;

	struct header h = {
		.sport = p->sport,
		.dport = p->dport,
		.class_word = p->class_word,
		.ttl_word = p->ttl_word,
	};
	void *data, *end;
	struct udphdr *udp;

	h.source[0] = p->source[0];
	h.destination[0] = p->destination[0];
	if (p->ipv6) {
		__builtin_memcpy(h.source, p->source, 16);
		__builtin_memcpy(h.destination, p->destination, 16);
		write_ipv6(skb, p, &h, p->mac, false);
	} else {
		write_ipv4(skb, p, &h, p->mac, false);
	}
	if (p->part == PART_LATER)
		return 0;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	udp = data + (p->l4 & L4_MASK);
	if ((void *)(udp + 1) <= end)
		udp->check = p->udp_check;	/* 0xffff and 0 are one value to the arithmetic */
	return 0;
}

#endif
