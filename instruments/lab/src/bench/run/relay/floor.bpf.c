/* The floor of the bench's bed: redirects every IPv4 packet to one interface and does nothing else,
 * so no relay at tc ingress can be faster. The index is that of veth2 on the bed
 * (lab::topology::EGRESS_INDEX): a map lookup would be work of its own.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include "helpers.h"

#define EGRESS_INDEX 3000

SEC("classifier")
int floor_redirect(struct __sk_buff *skb)
{
	if (skb->protocol != be16(ETH_P_IP))
		return TC_ACT_OK;
	return bpf_redirect(EGRESS_INDEX, 0);
}

char floor_license[] SEC("license") = "Dual MIT/GPL";
