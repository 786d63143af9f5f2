/* Headers of one copy, written over whatever the packet carries at that moment. Lengths, IP ID, DF
 * and options are never touched, so a super-packet is rewritten whole.
 */
#ifndef REWRITE_H
#define REWRITE_H

#include "helpers.h"
#include "layout.h"
#include "parse.h"

#define UDP_CHECK_OFFSET 6

/* What a copy shall carry. */
struct header {
	__be32 source, destination;
	__be16 sport, dport;
	__u16 tos_word, ttl_word;
};

static __always_inline __u8 ttl_of(const struct packet *p)
{
	return *(const __u8 *)&p->ttl_word;
}

static __always_inline void plan(const struct packet *p, const struct output *o, struct header *h)
{
	__u32 flags = o->flags;

	h->source = flags & OUTPUT_SOURCE ? o->source[0] : p->source;
	h->destination = o->destination[0];
	h->sport = flags & OUTPUT_SPORT ? o->sport : p->sport;
	h->dport = o->dport;
	h->tos_word = p->tos_word;
	h->ttl_word = p->ttl_word;
	if (flags & OUTPUT_GROUP_RANGE)
		h->destination |= p->destination & o->destination[1];
	if (flags & OUTPUT_PORT_DELTA)
		h->dport = be16((__u16)(host16(p->dport) + o->dport));
	if (flags & OUTPUT_TTL_SET)
		*(__u8 *)&h->ttl_word = o->ttl;
	if (flags & OUTPUT_TTL_DEC)
		*(__u8 *)&h->ttl_word -= 1;
	if (flags & OUTPUT_DSCP) {
		__u8 *tos = (__u8 *)&h->tos_word + 1;

		*tos = (*tos & 3) | o->tos;
	}
}

/* RFC 1624 equation 3, for all changed words at once, always from the header as it came. */
static __always_inline __u16 ip_check(const struct packet *p, const struct header *h)
{
	__u64 sum = (__u16)~p->ip_check;

	sum += (__u16)~p->tos_word + (__u32)h->tos_word;
	sum += (__u16)~p->ttl_word + (__u32)h->ttl_word;
	sum += (__u64)(__u32)~p->source + h->source;
	sum += (__u64)(__u32)~p->destination + h->destination;
	return ~fold(sum);
}

static __always_inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum;
}

/* Writes `h` and, if not null, `mac` into the packet. The UDP checksum goes through the kernel's
 * helper, which alone knows whether the packet carries a complete or a partial one: addresses are in
 * the pseudo-header, ports are not. Zero means none and stays.
 */
static __always_inline bool write(struct __sk_buff *skb, const struct packet *p,
				  const struct header *h, const __u8 *mac)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + IP_OFFSET;
	__u32 l4 = p->l4 & L4_MASK;
	struct udphdr *udp = data + l4;
	__u64 addresses;
	__u32 ports;

	if ((void *)(ip + 1) > end || (void *)(udp + 1) > end)
		return false;
	addresses = (__u64)(__u32)~ip->saddr + (__u32)~ip->daddr;
	addresses += (__u64)h->source + h->destination;
	ports = (__u32)(__u16)~udp->source + (__u16)~udp->dest + h->sport + h->dport;

	if (mac)
		__builtin_memcpy(data, mac, 12);
	*(__u16 *)ip = h->tos_word;
	*(__u16 *)&ip->ttl = h->ttl_word;
	ip->check = ip_check(p, h);
	ip->saddr = h->source;
	ip->daddr = h->destination;
	udp->source = h->sport;
	udp->dest = h->dport;
	if (p->udp_check == 0)
		return true;
	bpf_l4_csum_replace(skb, l4 + UDP_CHECK_OFFSET, 0, fold32(addresses),
			    BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
	if (ports != 0x1fffe)	/* both unchanged */
		bpf_l4_csum_replace(skb, l4 + UDP_CHECK_OFFSET, 0, ports, BPF_F_MARK_MANGLED_0);
	return true;
}

static __always_inline bool rewrite(struct __sk_buff *skb, const struct packet *p,
				    const struct output *o)
{
	struct header h;
	__u8 mac[12];

	plan(p, o, &h);
	if (unlikely(o->flags & OUTPUT_GROUP_RANGE)) {
		const __u8 *group = (const __u8 *)&h.destination;

		__builtin_memcpy(mac, o->mac, 12);
		mac[3] = group[1] & 0x7f;
		mac[4] = group[2];
		mac[5] = group[3];
		return write(skb, p, &h, o->flags & OUTPUT_MAC ? mac : 0);
	}
	return write(skb, p, &h, o->flags & OUTPUT_MAC ? o->mac : 0);
}

/* Puts the packet back as it came, for the host's own stack. */
static __always_inline void restore(struct __sk_buff *skb, const struct packet *p)
{
	struct header h = {
		p->source, p->destination, p->sport, p->dport, p->tos_word, p->ttl_word,
	};
	void *data, *end;
	struct udphdr *udp;

	if (!write(skb, p, &h, p->mac))
		return;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	udp = data + (p->l4 & L4_MASK);
	if ((void *)(udp + 1) <= end)
		udp->check = p->udp_check;	/* 0xffff and 0 are one value to the arithmetic */
}

#endif
