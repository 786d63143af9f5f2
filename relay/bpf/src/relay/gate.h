/* Gates of shares: of rules that change hands between relays, packets pass only until a deadline, and none
 * that arrived before the gate was opened.
 */
#ifndef GATE_H
#define GATE_H

#include "maps.h"

/* Nothing waits longer for its core. Past that timestamps are not asked: somebody may have set the clock. */
#define LONGEST_WAIT_NS 1000000000

/* Says whether a packet had been received before its gate was opened, `open_ns` ago: the relay that held the
 * share then has sent it. No timestamp, no answer: XDP has none, tc where no socket asks for them.
 */
static __always_inline bool came_before(struct ctx_buff *skb, __u64 open_ns)
{
	__u64 stamp = received_at(skb);
	__u32 zero = 0;
	struct settings *s;
	__s64 waited;

	if (likely(open_ns >= LONGEST_WAIT_NS) || !stamp)
		return false;
	s = bpf_map_lookup_elem(&settings, &zero);
	if (!s || !s->clock_ns)
		return false;
	waited = bpf_ktime_get_ns() - (stamp - s->clock_ns);
	return waited > (__s64)open_ns;
}

/* Says whether a packet has arrived since routes changed paths, by the timestamp that its tap saw. Nobody's gate
 * has that time.
 */
static __always_inline bool came_since_handover(struct ctx_buff *skb)
{
	__u64 stamp = received_at(skb), *at;
	__u32 zero = 0;
	struct settings *s;

	at = bpf_map_lookup_elem(&opened, &zero);
	s = bpf_map_lookup_elem(&settings, &zero);
	if (!at || !s)
		return false;
	if (!stamp)
		stamp = bpf_ktime_get_ns() + s->clock_ns;
	return stamp >= *(volatile __u64 *)at;
}

/* Says whether the deadline has passed, or the packet came before the opening. The clock is read after the
 * deadline, and it is the exact one: coarse ones stand still while nobody ticks.
 */
VERIFIED_ONCE int is_shut(struct ctx_buff *skb, __u32 index)
{
	__u32 key = index;
	struct gate *gate = bpf_map_lookup_elem(&gates, &key);
	__u64 *since = bpf_map_lookup_elem(&opened, &key);
	__u64 until, now;

	if (!gate || !since)
		return true;
	until = *(volatile __u64 *)&gate->until;
	now = bpf_ktime_get_boot_ns();
	return now >= until || came_before(skb, now - *(volatile __u64 *)since);
}

#endif
