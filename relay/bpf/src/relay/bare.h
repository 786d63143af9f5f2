/* Packets of devices that are not Ethernet's, which begin with IP: at tc alone. */
#ifndef BARE_H
#define BARE_H

#include "parse.h"

/* Says whether the IP header starts there: its first bytes are where the kernel takes it to be. */
static __always_inline bool starts_at(struct ctx_buff *skb, const __u32 *head, __u32 offset)
{
	__u32 *data = (void *)(long)skb->data + offset;

	return (void *)(data + 5) <= (void *)(long)skb->data_end && data[0] == head[0] &&
	       data[1] == head[1] && data[2] == head[2] && data[3] == head[3] && data[4] == head[4];
}

/* The bytes before the IP header on a device that is not Ethernet's. Mostly there are none (tun, tunnels,
 * PPP); what IPsec decrypted still has the Ethernet header that it came with. All else is left to the
 * userspace path.
 */
VERIFIED_ONCE int ip_offset(struct ctx_buff *skb)
{
	__u32 head[5];

	if (!pull_at_most(skb, IP_OFFSET + sizeof(struct iphdr) + sizeof(struct udphdr)) ||
	    bpf_skb_load_bytes_relative(skb, 0, head, sizeof(head), BPF_HDR_START_NET))
		return -1;
	if (starts_at(skb, head, 0))
		return 0;
	return starts_at(skb, head, IP_OFFSET) ? IP_OFFSET : -1;
}

static __always_inline bool parse_bare(struct ctx_buff *skb, struct packet *p, int offset)
{
	bool ipv4 = skb->protocol == be16(ETH_P_IP);

	if (!offset)
		return ipv4 ? parse_ipv4(skb, p, 0) : parse_ipv6(skb, p, 0);
	if (offset != IP_OFFSET || load_bytes(skb, 0, p->mac, sizeof(p->mac)))
		return false;
	return ipv4 ? parse_ipv4(skb, p, IP_OFFSET) : parse_ipv6(skb, p, IP_OFFSET);
}

/* Puts an Ethernet header in front of a packet that has none, so that all that follows finds one. The
 * kernel takes it off again (tcx_run, __bpf_redirect_no_mac) where it is not wanted.
 */
static __always_inline bool add_ethernet(struct ctx_buff *skb, struct packet *p)
{
	void *data, *end;
	struct ethhdr *eth;

	if (bpf_skb_change_head(skb, ETH_HLEN, 0))
		return false;
	p->l4 += ETH_HLEN;
	if (!pull_at_most(skb, (p->l4 & L4_MASK) + sizeof(struct udphdr)))
		return false;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	eth = data;
	if ((void *)(eth + 1) > end)
		return false;
	eth->h_proto = p->ipv6 ? be16(ETH_P_IPV6) : be16(ETH_P_IP);
	return true;
}

#endif
