/* From bytes to `struct packet`: what is UDP multicast over IPv4, whole. Whatever is not goes to the
 * stack untouched; whether the lengths and the checksum hold is judged later, once a rule matched.
 */
#ifndef PARSE_H
#define PARSE_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <linux/in.h>
#include "helpers.h"

#define IP_OFFSET ETH_HLEN
#define IP_MF_OFFSET 0x3fff
#define L4_MASK 127	/* 14 + 60 fits; tells the verifier */

/* The packet as it came. Multi-byte header fields in network order. */
struct packet {
	__be32 source, destination;
	__be16 sport, dport;
	__u16 ip_check;
	__u16 tos_word;		/* first two bytes of the IP header */
	__u16 ttl_word;		/* TTL and protocol */
	__u16 udp_check;
	__u32 l4;		/* offset of the UDP header from the start of the frame */
	__u32 length;		/* IP total length */
	__u32 udp_length;
	__u32 present;		/* bytes of the IP packet that are there, padding included */
	__u32 segments;
	__u32 payload;		/* UDP payload bytes */
	__u8 mac[12];
	__u16 pad;
};

/* Makes `length` bytes from the start directly accessible. */
static __always_inline bool pull(struct __sk_buff *skb, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (likely(data + length <= end))
		return true;
	return skb->len >= length && bpf_skb_pull_data(skb, length) == 0;
}

static __always_inline bool parse(struct __sk_buff *skb, struct packet *p)
{
	void *data, *end;
	struct ethhdr *eth;
	struct iphdr *ip;
	struct udphdr *udp;
	__u32 l4;

	if (unlikely(skb->vlan_present))
		return false;
	if (!pull(skb, IP_OFFSET + sizeof(*ip) + sizeof(*udp)))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = data + IP_OFFSET;
	eth = data;
	if ((void *)(ip + 1) + sizeof(*udp) > end)
		return false;
	if (eth->h_proto != be16(ETH_P_IP) || ip->protocol != IPPROTO_UDP ||
	    (*(__u8 *)&ip->daddr & 0xf0) != 0xe0 || ip->version != 4 || ip->ihl < 5 ||
	    ip->frag_off & be16(IP_MF_OFFSET))
		return false;

	l4 = IP_OFFSET + ip->ihl * 4;
	if (unlikely(l4 != IP_OFFSET + sizeof(*ip))) {
		if (!pull(skb, l4 + sizeof(*udp)))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		ip = data + IP_OFFSET;
		if ((void *)(ip + 1) > end)
			return false;
	}
	eth = data;
	udp = data + l4;
	if ((void *)(udp + 1) > end)
		return false;

	p->source = ip->saddr;
	p->destination = ip->daddr;
	p->sport = udp->source;
	p->dport = udp->dest;
	p->ip_check = ip->check;
	p->tos_word = *(__u16 *)ip;
	p->ttl_word = *(__u16 *)&ip->ttl;
	p->udp_check = udp->check;
	p->l4 = l4;
	p->length = host16(ip->tot_len);
	p->udp_length = host16(udp->len);
	__builtin_memcpy(p->mac, data, 12);
	return true;
}

/* The one's complement sum of the IP header, folded to 16 bits: 0xffff if its checksum is right. */
static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline bool header_sum_holds(struct __sk_buff *skb, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 *word = data + IP_OFFSET;
	__u64 sum;

	if ((void *)(word + 5) > end)
		return false;
	sum = (__u64)word[0] + word[1] + word[2] + word[3] + word[4];
	if (unlikely(p->l4 > IP_OFFSET + 20)) {
		for (int i = 5; i < 15 && i * 4 + IP_OFFSET < p->l4; i++) {
			if ((void *)(word + i + 1) > end)
				return false;
			sum += word[i];
		}
	}
	return fold(sum) == 0xffff;
}

/* Fills in sizes and segments; says whether lengths and header checksum agree. */
static __always_inline bool measure(struct __sk_buff *skb, struct packet *p)
{
	__u32 header = (p->l4 & L4_MASK) - IP_OFFSET;
	__u32 size = skb->gso_size;
	bool whole;

	p->present = skb->len - IP_OFFSET;
	whole = p->length <= p->present && p->udp_length >= sizeof(struct udphdr) &&
		header + p->udp_length <= p->length;
	p->payload = whole ? p->udp_length - sizeof(struct udphdr) :
			     p->present - header - sizeof(struct udphdr);
	p->segments = 1;
	if (unlikely(size)) {
		p->segments = skb->gso_segs;
		if (!p->segments)	/* set by untrusted senders: not counted yet */
			p->segments = (p->payload + size - 1) / size;
	}
	return whole && header_sum_holds(skb, p);
}

#endif
