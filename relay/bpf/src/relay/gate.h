/* Gates of shares: of rules that change hands between relays, packets pass only until a deadline. */
#ifndef GATE_H
#define GATE_H

#include "maps.h"

/* Says whether the deadline has passed. The clock is read after it, and it is the exact one: coarse ones
 * stand still while nobody ticks.
 */
VERIFIED_ONCE int is_shut(__u32 index)
{
	__u32 key = index;
	struct gate *gate = bpf_map_lookup_elem(&gates, &key);
	__u64 until;

	if (!gate)
		return true;
	until = *(volatile __u64 *)&gate->until;
	return bpf_ktime_get_boot_ns() >= until;
}

#endif
