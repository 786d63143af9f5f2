/* From bytes to `struct packet`: what is UDP multicast, whole, or UDP to this host where a route wants
 * that. Whatever is not goes to the stack untouched; whether the lengths and the checksum hold is judged
 * later, once a rule matched.
 */
#ifndef PARSE_H
#define PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include "context.h"
#include "maps.h"

#define IP_OFFSET ETH_HLEN
#define MF_OR_OFFSET 0x3fff
#define OFFSET 0x1fff
#define L4_MASK 0x7fff		/* above the longest header chain; tells the verifier */
#define MAX_EXTENSIONS 8	/* packet::ipv6::MAX_EXTENSIONS */

/* packet::datagram::Part */
enum part { PART_WHOLE, PART_FIRST, PART_LATER };

/* The packet as it came. Header fields in network order. */
struct packet {
	__be32 source[4];	/* IPv4 in [0], the rest then unset */
	__be32 destination[4];
	__be16 sport, dport;
	__u16 ip_check;
	__u16 udp_check;
	__u16 class_word;	/* first two bytes of the IP header */
	__u16 ttl_word;		/* TTL and protocol, or next header and hop limit */
	__u16 ipv6;
	__u16 part;
	__u32 id;		/* of a fragment's datagram */
	__u32 l4;		/* offset of the UDP header, or a later fragment's data, in the frame */
	__u32 length;		/* of the IP packet, as its header claims */
	__u32 udp_length;
	__u32 segments;
	__u32 payload;		/* UDP payload bytes */
	__u32 whole;		/* the UDP checksum's sum is over everything: all bits of 16, or none */
	__u8 mac[12];
};

/* Says whether the first byte of an address is a group's. */
static __always_inline bool is_group_v4(__u8 first)
{
	return (first & 0xf0) == 0xe0;
}

static __always_inline bool is_group(const struct packet *p)
{
	__u8 first = *(const __u8 *)p->destination;

	return p->ipv6 ? first == 0xff : is_group_v4(first);
}

/* Says whether a packet to an address that is no group may be a route's: there are some for addresses
 * of this host, and the frame is not for another.
 */
static __always_inline bool may_be_own(struct ctx_buff *skb)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	return s && s->addresses && !is_for_another(skb);
}

/* Makes `length` bytes from the start directly accessible. */
static __always_inline bool pull(struct ctx_buff *skb, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (likely(data + length <= end))
		return true;
	return length_of(skb) >= length && pull_data(skb, length) == 0;
}

/* The same, or as many bytes as there are. */
static __always_inline bool pull_at_most(struct ctx_buff *skb, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (likely(data + length <= end))
		return true;
	return pull_data(skb, length < length_of(skb) ? length : length_of(skb)) == 0;
}

/* Reads the UDP header at `p->l4`, which is pulled if it is there. */
static __always_inline bool parse_udp(struct packet *p, void *data, void *end)
{
	struct udphdr *udp = data + (p->l4 & L4_MASK);

	if (unlikely(p->part == PART_LATER))
		return true;
	if ((void *)(udp + 1) > end)
		return false;
	p->sport = udp->source;
	p->dport = udp->dest;
	p->udp_check = udp->check;
	p->udp_length = host16(udp->len);
	return true;
}

static __always_inline bool parse_ipv4(struct ctx_buff *skb, struct packet *p, __u32 ip_offset)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + ip_offset;

	if ((void *)(ip + 1) > end)
		return false;
	if (ip->protocol != IPPROTO_UDP || ip->version != 4 || ip->ihl < 5)
		return false;
	if (unlikely(!is_group_v4(*(__u8 *)&ip->daddr)) && !may_be_own(skb))
		return false;
	if (unlikely(ip->frag_off & be16(MF_OR_OFFSET))) {
		p->part = ip->frag_off & be16(OFFSET) ? PART_LATER : PART_FIRST;
		p->id = ip->id;
	}
	p->ipv6 = false;
	p->source[0] = ip->saddr;
	p->destination[0] = ip->daddr;
	p->ip_check = ip->check;
	p->class_word = *(__u16 *)ip;
	p->ttl_word = *(__u16 *)&ip->ttl;
	p->length = host16(ip->tot_len);
	p->l4 = ip_offset + ip->ihl * 4;
	if (unlikely(p->l4 != ip_offset + sizeof(*ip))) {
		if (length_of(skb) < p->l4 || !pull_at_most(skb, p->l4 + sizeof(struct udphdr)))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	return parse_udp(p, data, end);
}

/* Follows the extension headers from `next` to UDP and returns its offset in the frame, or that of a
 * later fragment's data; 0 if they lead elsewhere. Of a fragment, its part stands in the bits from
 * 16 on and its datagram's identification in those from 32 on.
 */
VERIFIED_ONCE __u64 udp_behind_extensions(struct ctx_buff *skb, __u32 next, __u32 ip_offset)
{
	__u32 offset = ip_offset + sizeof(struct ipv6hdr), fragments = 0;
	__u64 fragment = 0;

	for (int i = 0; i <= MAX_EXTENSIONS; i++) {
		__u8 header[4];
		__u32 id;

		if (next == IPPROTO_UDP)
			return fragment | (offset & L4_MASK);
		if (load_bytes(skb, offset, header, sizeof(header)))
			return 0;
		switch (next) {
		case IPPROTO_ROUTING:
			if (header[3])	/* segments left: not the final destination */
				return 0;
			/* fallthrough */
		case IPPROTO_HOPOPTS:
		case IPPROTO_DSTOPTS:
			offset += header[1] * 8 + 8;
			break;
		case IPPROTO_FRAGMENT:	/* a whole packet may carry one (RFC 6946) */
			if (fragments++ || load_bytes(skb, offset + 4, &id, sizeof(id)))
				return 0;
			offset += 8;
			if (header[2] || header[3] & 0xf8) {
				fragment = (__u64)id << 32 | PART_LATER << 16 | (offset & L4_MASK);
				/* The first one's data may begin with options. */
				return header[0] == IPPROTO_UDP || header[0] == IPPROTO_DSTOPTS ?
					fragment : 0;
			}
			if (header[3] & 1)
				fragment = (__u64)id << 32 | PART_FIRST << 16;
			break;
		default:
			return 0;
		}
		next = header[0];
	}
	return 0;
}

static __always_inline bool parse_ipv6(struct ctx_buff *skb, struct packet *p, __u32 ip_offset)
{
	void *data, *end;
	struct ipv6hdr *ip;

	if (length_of(skb) < ip_offset + sizeof(*ip) ||
	    !pull_at_most(skb, ip_offset + sizeof(*ip) + sizeof(struct udphdr)))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ip = data + ip_offset;
	if ((void *)(ip + 1) > end)
		return false;
	if (ip->version != 6)
		return false;
	if (unlikely(ip->daddr.s6_addr[0] != 0xff) && !may_be_own(skb))
		return false;
	p->ipv6 = true;
	__builtin_memcpy(p->source, &ip->saddr, 16);
	__builtin_memcpy(p->destination, &ip->daddr, 16);
	p->ip_check = 0;
	p->class_word = *(__u16 *)ip;
	p->ttl_word = *(__u16 *)&ip->nexthdr;
	p->length = sizeof(*ip) + host16(ip->payload_len);
	p->l4 = ip_offset + sizeof(*ip);
	if (unlikely(ip->nexthdr != IPPROTO_UDP)) {
		__u64 upper = udp_behind_extensions(skb, ip->nexthdr, ip_offset);

		p->l4 = upper & L4_MASK;
		p->part = upper >> 16 & 3;
		p->id = upper >> 32;
		if (!p->l4 || !pull_at_most(skb, p->l4 + sizeof(struct udphdr)))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	return parse_udp(p, data, end);
}

static __always_inline bool parse_ethernet(struct ctx_buff *skb, struct packet *p)
{
	void *data, *end;
	struct ethhdr *eth;

	if (has_vlan(skb))
		return false;
	if (!pull_at_most(skb, IP_OFFSET + sizeof(struct iphdr) + sizeof(struct udphdr)))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	eth = data;
	if ((void *)(eth + 1) > end)
		return false;
	__builtin_memcpy(p->mac, data, 12);
	if (eth->h_proto == be16(ETH_P_IP))
		return parse_ipv4(skb, p, IP_OFFSET);
	if (eth->h_proto == be16(ETH_P_IPV6))
		return parse_ipv6(skb, p, IP_OFFSET);
	return false;
}

/* Folds a sum of 16-bit or 32-bit words to 16 bits. */
static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* IPv4: the header's checksum is right. IPv6: the UDP checksum, which protects the header, is not
 * missing (RFC 8200 section 8.1).
 */
static __always_inline bool header_is_sound(struct ctx_buff *skb, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 *word = data + IP_OFFSET;
	__u64 sum;

	if (p->ipv6)
		return p->udp_check != 0 || p->part == PART_LATER;
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

/* The same for a fragment: its payload ends where the IP packet does. */
VERIFIED_ONCE int measure_fragment(struct ctx_buff *skb, struct packet *p)
{
	if (!p)
		return 0;

	__u32 header = (p->l4 & L4_MASK) - IP_OFFSET;
	__u32 present = length_of(skb) - IP_OFFSET;
	bool whole = p->length <= present;

	if (p->part == PART_FIRST) {
		header += sizeof(struct udphdr);
		whole = whole && p->udp_length >= sizeof(struct udphdr);
	}
	whole = whole && header <= p->length;
	p->payload = (whole ? p->length : present) - header;
	p->segments = 1;
	return whole;
}

/* Fills in payload and segments; says whether lengths and checksum are those of a whole datagram. */
static __always_inline bool measure(struct ctx_buff *skb, struct packet *p)
{
	__u32 header = (p->l4 & L4_MASK) - IP_OFFSET;
	__u32 present = length_of(skb) - IP_OFFSET;	/* padding and trailers included */
	__u32 size = segment_size(skb);
	bool whole;

	if (unlikely(p->part != PART_WHOLE))
		return measure_fragment(skb, p) && header_is_sound(skb, p);
	whole = p->length <= present && p->udp_length >= sizeof(struct udphdr) &&
		header + p->udp_length <= p->length;
	p->payload = (whole ? p->udp_length : present - header) - sizeof(struct udphdr);
	p->segments = 1;
	if (unlikely(size)) {
		p->segments = segments_of(skb);
		if (!p->segments)	/* set by untrusted senders: not counted yet */
			p->segments = (p->payload + size - 1) / size;
	}
	return whole && header_is_sound(skb, p);
}

/* Says whether something follows the IP packet: Ethernet's padding, a switch's timestamp. */
static __always_inline bool has_trailer(struct ctx_buff *skb, const struct packet *p)
{
	return unlikely(length_of(skb) > IP_OFFSET + p->length);
}

#endif
