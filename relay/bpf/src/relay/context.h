/* What the packet at hand has, by one name for both hooks: at tc it is an skb, at XDP a driver's buffer. */
#ifndef CONTEXT_H
#define CONTEXT_H

#include <linux/if_packet.h>
#include "helpers.h"

#define VLAN_ID 0xfff		/* 0: a priority alone, of no VLAN (IEEE 802.1Q) */

#ifdef AT_XDP

static __always_inline __u32 length_of(struct ctx_buff *skb)
{
	return (__u64)skb->data_end - (__u64)skb->data;
}

static __always_inline __u32 ingress_of(struct ctx_buff *skb)
{
	return skb->ingress_ifindex;
}

/* Nothing has merged packets yet, or stamped them. Functions that are verified by themselves are to use what
 * they are given all the same, or compilers give them nothing.
 */
#define absent(skb, value) ({ asm volatile("" : : "r"(skb)); value; })
#define segment_size(skb) absent(skb, 0u)
#define segments_of(skb) absent(skb, 1u)
#define received_at(skb) absent(skb, 0ull)
#define holds_socket(skb) absent(skb, false)
/* A tag stands in the frame, where it is no IP. */
#define has_vlan(skb) false
/* A program of this host sent none. */
#define is_looped(skb) absent(skb, false)
/* What is no group's is left to tc. */
#define is_for_another(skb) true
#define pull_data(skb, length) (-1)
#define load_bytes bpf_xdp_load_bytes
/* What a device found of the UDP checksum is not told here. */
#define is_found_good(skb) false
/* No device's sum over the packet goes on with the copy. */
#define balance(skb, sum) ((void)(sum))

#else

#define length_of(skb) ((skb)->len)
#define ingress_of(skb) ((skb)->ifindex)
#define segment_size(skb) ((skb)->gso_size)
#define segments_of(skb) ((skb)->gso_segs)
#define received_at(skb) ((skb)->tstamp)
#define holds_socket(skb) ((skb)->sk)
#define has_vlan(skb) (unlikely((skb)->vlan_present) && (skb)->vlan_tci & VLAN_ID)
/* What a program of this host sent to a group that the interface has joined: besides leaving, it comes in
 * there (ip_mc_output, ip6_finish_output2), unless the program set IP_MULTICAST_LOOP off.
 */
#define is_looped(skb) ((skb)->pkt_type == PACKET_LOOPBACK)
#define is_for_another(skb) ((skb)->pkt_type == PACKET_OTHERHOST)
#define pull_data(skb, length) bpf_skb_pull_data(skb, length)
#define load_bytes bpf_skb_load_bytes
#define is_found_good(skb) (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
#define balance(skb, sum) bpf_csum_update(skb, sum)

#endif

#endif
