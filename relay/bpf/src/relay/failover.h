/* Which of a rule's inputs passes, as packet::failover defines it: the active one, until it falls
 * silent. One word says which, shared between CPUs.
 */
#ifndef FAILOVER_H
#define FAILOVER_H

#include "maps.h"

#define LINE_GRAIN_NS (1 << 16)
#define ACTIVE_NAME_BITS 24
#define ACTIVE_TIME_SHIFT 20
#define ACTIVE_NAME_MASK ((1 << ACTIVE_NAME_BITS) - 1)

#define once(word) (*(volatile __u64 *)&(word))

static __always_inline bool lasted(__u64 since, __u64 now, __u64 time)
{
	return (__s64)(now - since) >= (__s64)time;
}

static __always_inline bool is_silent(const struct failover *f, const struct line *line, __u64 now)
{
	return (__s64)(now - once(line->last_ns)) > (__s64)(f->silence_ns + LINE_GRAIN_NS);
}

/* Notes a packet of a leg. Others read the word, so it is not written for each packet. */
static __always_inline void note_line(const struct failover *f, struct line *line, __u64 now)
{
	if (unlikely(is_silent(f, line, now)))
		once(line->since_ns) = now;
	if ((__s64)(now - once(line->last_ns)) > LINE_GRAIN_NS)
		once(line->last_ns) = now;
}

/* Says whether a leg that stands by takes over from the one that `active` names, of which there may be
 * none any more.
 */
static __always_inline bool takes_over(const struct failover *f, __u32 input, const struct line *own,
				       __u32 active, __u64 now)
{
	struct line *line = bpf_map_lookup_elem(&lines, &active);
	bool silent = !line || is_silent(f, line, now);
	bool listed = false, before_active = false, other_could = false;

	for (int i = 0; i < FAILOVER_LINES; i++) {
		__u32 name = f->lines[i];

		if (i >= f->count)
			break;
		if (name == input) {
			listed = true;
		} else if (name == active) {
			before_active = listed;
		} else if (!listed && silent) {
			line = bpf_map_lookup_elem(&lines, &name);
			if (line && !is_silent(f, line, now) &&
			    lasted(once(line->since_ns), now, f->silence_ns))
				other_could = true;
		}
	}
	if (!listed)
		return false;
	if (silent)
		return !other_could && lasted(once(own->since_ns), now, f->silence_ns);
	return before_active && f->revert_ns && lasted(once(own->since_ns), now, f->revert_ns);
}

VERIFIED_ONCE int is_standby(__u32 rule, __u32 input)
{
	__u32 rule_key = rule, input_key = input;
	struct failover *f = bpf_map_lookup_elem(&failovers, &rule_key);
	struct choice *choice = bpf_map_lookup_elem(&choices, &rule_key);
	struct line *own = bpf_map_lookup_elem(&lines, &input_key);
	__u64 now, before, word;

	if (!f || !choice || !own)
		return false;
	now = bpf_ktime_get_ns();
	note_line(f, own, now);
	before = once(choice->active);
	if (likely((before & ACTIVE_NAME_MASK) == input + 1ull))
		return false;
	if (likely(!takes_over(f, input, own, (__u32)(before & ACTIVE_NAME_MASK) - 1, now)))
		return true;
	word = now >> ACTIVE_TIME_SHIFT << ACTIVE_NAME_BITS | (input + 1ull);
	word = __sync_val_compare_and_swap(&choice->active, before, word);
	if (word != before)
		return (word & ACTIVE_NAME_MASK) != input + 1ull;
	__sync_fetch_and_add(&choice->changes, 1);
	return false;
}

#endif
