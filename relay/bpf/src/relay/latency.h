/* How long packets stay, of one in LATENCY_EVERY of a rule on a CPU: from the kernel's receive
 * timestamp, where the host has any, else from when the rule was found, until the last copy but one
 * has been handed to its device; the last leaves right behind the program.
 */
#ifndef LATENCY_H
#define LATENCY_H

#include "maps.h"
#include "parse.h"

#define LATENCY_EVERY_SHIFT 6	/* packet::latency::KERNEL_EVERY */
#define LATENCY_FIRST_SHIFT 10	/* packet::latency::FIRST_SHIFT */

/* Says whether a packet that is about to be counted is one of those looked at: the first is. */
static __always_inline bool is_sample(const struct tally *rule, const struct packet *p)
{
	__u64 before = rule->packets + (1 << LATENCY_EVERY_SHIFT) - 1;

	return (before ^ (before + p->segments)) >> LATENCY_EVERY_SHIFT;
}

/* packet::latency::bucket */
static __always_inline __u32 latency_bucket(__u64 ns)
{
	__u64 rest = ns >> LATENCY_FIRST_SHIFT;
	__u32 bucket = rest > 0;

	if (rest >> (LATENCY_BUCKETS - 2))
		return LATENCY_BUCKETS - 1;
	for (__u32 step = 16; step; step /= 2) {
		if (rest >> step) {
			rest >>= step;
			bucket += step;
		}
	}
	return bucket;
}

/* Counts a packet that has been in the program since `began`. The kernel takes receive timestamps
 * while any socket of the host asks for them (net_timestamp_check in net/core/dev.c); what stands
 * there of a sender's own, as over veth, reads as 0 (bpf_convert_tstamp_read). One that a step of the
 * clock has put behind `began` is not believed.
 */
VERIFIED_ONCE int note_latency(struct ctx_buff *skb, __u32 counter, __u32 began)
{
	__u64 now = bpf_ktime_get_ns(), stamp = received_at(skb), stayed = (__u32)now - began;
	struct latency *found = bpf_map_lookup_elem(&latency, &counter);
	__u32 zero = 0, bucket, stamped = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	if (!found)
		return 0;
	if (stamp && s && s->clock_ns && stamp - s->clock_ns < now - stayed) {
		stayed = now - (stamp - s->clock_ns);
		stamped = 1;
	}
	bucket = latency_bucket(stayed);
	asm volatile("" : "+r"(bucket));	/* or the check that the verifier wants goes */
	if (bucket < LATENCY_BUCKETS)
		__sync_fetch_and_add(&found->buckets[bucket], 1);
	__sync_fetch_and_add(&found->sum_ns, stayed);
	__sync_fetch_and_add(&found->stamped, stamped);
	return 0;
}

#endif
