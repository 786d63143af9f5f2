/* Merging two legs whose packets have no number: by what is in them. A payload may come twice for good
 * reason (null packets, a beacon) and must pass twice then. So what is remembered of it is not whether
 * it came but by how many one leg is ahead of the other; what brings a leg level is a copy.
 *
 * Where a rule reflects, what comes back from others that reflect as well must not pass, however many
 * they are: a payload that is remembered is a copy, and the balance stays what it was. It is remembered
 * from when it passed, so that a beacon that never stops passes again. Where a bucket is full, what is
 * oldest in it makes room: what goes round comes again soon, and must be found.
 *
 *	63          25 24        23    8 7             0
 *	digest         confirmed tick    balance + 128
 *
 * All blocks of the merge are one table of buckets of eight words. Two CPUs might put the same payload
 * into two words of its bucket at once. So each puts it in unconfirmed, looks again, gives way to one
 * that is confirmed or lies lower, removes those that lie higher, and only then confirms its own: by a
 * swap, which fails if somebody removed it. Of two that are put in at once, at least one sees the other.
 */
#ifndef MERGE_PAYLOAD_H
#define MERGE_PAYLOAD_H

#include "merge.h"

#define MERGE_WAYS 8
#define MERGE_LOOKS 2		/* in `once`: only says whether it has come */
#define MERGE_LEVEL 128
#define MERGE_AHEAD_MAX 127
#define MERGE_CONFIRMED (1ull << 24)
#define MERGE_DIGEST_SHIFT 25
#define MERGE_TICK_SHIFT 20	/* of 1.05 ms: a digest is taken for another 69 s later for a window at most */
#define MERGE_BEGINS_NS 100000000	/* user space's BEGINS_NS */
#define MERGE_BUCKETS (MERGE_WORDS / MERGE_WAYS)
#define MERGE_LONG 0x3fff		/* the longest window, in ticks */
#define MERGE_APART 0x800	/* so many may be between packets that CPUs or workers judge at once */

/* A hash of the payload, in chunks; the last one is filled up with zeros. */
#define MERGE_CHUNK 64
#define MERGE_CHUNK_WORDS (MERGE_CHUNK / 8)
#define MERGE_LANES 4
#define MERGE_PRIME 0x9e3779b185ebca87ull
#define MERGE_PRIME2 0xc2b2ae3d27d4eb4full

struct merge_digest {
	__u64 lane[MERGE_LANES];
};

/* Whether a payload passes once, whichever leg brings it. */
merge_inline int merge_is_once(const struct merge *m)
{
	return m->format.by == MERGE_BY_ONCE || m->format.by == MERGE_BY_ONCE_FROM_EACH;
}

merge_inline __u64 merge_rotated(__u64 value, __u32 bits)
{
	return value << bits | value >> (64 - bits);
}

merge_inline void merge_digest_start(struct merge_digest *d)
{
	for (int i = 0; i < MERGE_LANES; i++)
		d->lane[i] = MERGE_PRIME * (i + 1);
}

merge_inline void merge_digest_chunk(struct merge_digest *d, const __u64 *chunk)
{
	for (int i = 0; i < MERGE_CHUNK_WORDS; i++) {
		__u64 *lane = &d->lane[i % MERGE_LANES];

		*lane = merge_rotated((*lane ^ chunk[i]) * MERGE_PRIME, 29);
	}
}

merge_inline __u64 merge_digest_end(const struct merge_digest *d, __u32 length)
{
	__u64 hash = length * MERGE_PRIME2;

	for (int i = 0; i < MERGE_LANES; i++)
		hash = merge_rotated(hash ^ d->lane[i], 31) * MERGE_PRIME;
	hash = (hash ^ hash >> 33) * MERGE_PRIME2;
	return hash ^ hash >> 29;
}

/* The hash of a payload as one sender's; `sender` stands for its address and port. */
merge_inline __u64 merge_digest_of_sender(__u64 hash, __u32 sender)
{
	hash = (hash ^ sender) * MERGE_PRIME;
	return hash ^ hash >> 31;
}

/* The compiler would make branches of what follows, and the verifier walk every way through them. */
#define merge_hide(value) asm volatile("" : "+r"(value))

merge_inline __u64 merge_is_zero(__u64 value)
{
	__u64 negative = -value;

	merge_hide(negative);
	value = (value | negative) >> 63 ^ 1;
	merge_hide(value);
	return value;
}

/* How long ago a word was changed, and MERGE_APART; more than three of the longest windows, if it holds nothing
 * or, but to a leg that `joins`, what was brought as often by both.
 */
merge_inline __u64 merge_age(__u64 word, __u64 tick, __u32 joins)
{
	__u64 is_level = merge_is_zero((word & 0xff) ^ MERGE_LEVEL) & (word >> 24 & 1);

	/* A tick in the future is no older: what came later may have been judged before. */
	return (merge_is_zero(word) | (is_level & ~joins)) << 16 | ((tick - (word >> 8) + MERGE_APART) & 0xffff);
}

/* Whether a word of that age may be used for something else. */
merge_inline __u64 merge_is_room(__u64 age, __u64 window)
{
	__u64 left = window + MERGE_APART - age;

	merge_hide(left);
	return left >> 63;
}

/* The greater of two that are not negative. */
merge_inline __u64 merge_greater(__u64 a, __u64 b)
{
	__s64 by = a - b, is_less = by >> 63;

	merge_hide(is_less);
	return b + (by & ~is_less);
}

/* The number of the lowest bit that is set, below 8. */
merge_inline __u32 merge_lowest(__u64 bits)
{
	bits = (bits & -bits) - 1;
	return ((bits & 1) + (bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3 & 1) + (bits >> 4 & 1) +
		(bits >> 5 & 1) + (bits >> 6 & 1)) & (MERGE_WAYS - 1);
}

/* One attempt. Of the packet: `number` is the hash, `newest` the table, its first block in the upper half
 * and a mask of its buckets in the lower, `key` the tick, `width` the window in ticks; `at` is what it put
 * in and has not confirmed yet, in way `slot`; `generation`: the other leg's copy is about to pass, as
 * far as has been seen; `fresh`: its leg has just joined another, and packets find it from the tick
 * `brought` on. Where `once` is set `fresh` is something else, and nothing is ever level.
 *
 * Its stack is 128 bytes, all that older kernels leave it, which round each up to 32: what the packet has is
 * read there.
 */
MERGE_CALL int merge_try(struct merge *m, struct merge_packet *p)
{
	__u64 confirmed = 0, tentative = 0, oldest = 0, higher, old, digest, tick, window, *bucket;
	struct merge_block *block;
	__u32 way, n, once, is_room;
	__s32 sign, balance, next;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return MERGE_FIRST;
	once = p->once;
	digest = p->number >> MERGE_DIGEST_SHIFT;
	tick = p->key & 0xffff;
	window = p->width & 0x3fff;
	sign = p->line & 1 ? -1 : 1;
	n = p->number & p->newest;
	block = MERGE_BLOCK(m, (p->newest >> 32) + n / MERGE_BUCKETS);
	if (!block)
		return MERGE_FIRST;
	bucket = &block->word[n % MERGE_BUCKETS * MERGE_WAYS];
	for (__u32 i = 0; i < MERGE_WAYS; i++) {
		__u64 word = MERGE_LOAD(bucket[i]), sure = word >> 24 & 1;
		__u64 age = merge_age(word, tick, p->fresh);
		__u64 equal = merge_is_zero(word >> MERGE_DIGEST_SHIFT ^ digest) & (merge_is_room(age, window) ^ 1);

		confirmed |= (equal & sure) << i;
		tentative |= (equal & (sure ^ 1)) << i;
		oldest = merge_greater(oldest, age << 3 | i);
	}
	if (p->at) {
		way = p->slot & (MERGE_WAYS - 1);
		if (confirmed || tentative & ((1u << way) - 1)) {
			MERGE_CAS(bucket[way], p->at, 0);
			p->at = 0;
			return MERGE_AGAIN;
		}
		higher = tentative >> way >> 1;
		if (higher) {
			way = (way + 1 + merge_lowest(higher)) & (MERGE_WAYS - 1);
			old = MERGE_LOAD(bucket[way]);
			if (old >> MERGE_DIGEST_SHIFT == digest && !(old & MERGE_CONFIRMED))
				MERGE_CAS(bucket[way], old, 0);
			return MERGE_AGAIN;
		}
		old = p->at;
		p->at = 0;
		return MERGE_CAS(bucket[way], old, old | MERGE_CONFIRMED) == old ? MERGE_FIRST : MERGE_AGAIN;
	}
	p->generation = 0;
	if (confirmed | tentative) {
		way = merge_lowest(confirmed ? confirmed : tentative);
		old = MERGE_LOAD(bucket[way]);
		balance = (__s32)(old & 0xff) - MERGE_LEVEL;
		if (old >> MERGE_DIGEST_SHIFT != digest || merge_is_room(merge_age(old, tick, p->fresh), window))
			return MERGE_AGAIN;
		if (!(old & MERGE_CONFIRMED)) {
			p->generation = once || balance * sign < 0;
			return MERGE_AGAIN;
		}
		if (once || (p->fresh && (!balance || (balance * sign > 0 && (__s16)(p->brought - (old >> 8)) > 0)))) {
			p->at = old;	/* what it is behind with another leg has brought, or one before it */
			return MERGE_DUPLICATE;
		}
		if ((__s16)(tick - (old >> 8)) < 0)
			tick = old >> 8 & 0xffff;
		next = balance + sign;
		if (next > MERGE_AHEAD_MAX || next < -MERGE_AHEAD_MAX)
			next = balance;
		if (MERGE_CAS(bucket[way], old,
			      digest << MERGE_DIGEST_SHIFT | MERGE_CONFIRMED | tick << 8 |
			      (__u64)(next + MERGE_LEVEL)) != old)
			return MERGE_AGAIN;
		p->at = old;
		return balance * sign < 0 ? MERGE_DUPLICATE : MERGE_FIRST;
	}
	if (once == MERGE_LOOKS)
		return MERGE_FIRST;
	way = oldest & (MERGE_WAYS - 1);
	is_room = merge_is_room(oldest >> 3, window);
	if (!is_room && !once)
		return MERGE_OPEN;
	old = MERGE_LOAD(bucket[way]);
	if (is_room ? !merge_is_room(merge_age(old, tick, p->fresh), window) : old >> MERGE_DIGEST_SHIFT == digest)
		return MERGE_AGAIN;
	p->at = digest << MERGE_DIGEST_SHIFT | tick << 8 | (__u64)(MERGE_LEVEL + sign);
	p->slot = way;
	if (MERGE_CAS(bucket[way], old, p->at) != old)
		p->at = 0;
	else if (!is_room && window != MERGE_LONG)
		MERGE_ADD(m->unsettled, 1);	/* what was there is forgotten */
	return MERGE_AGAIN;
}

merge_inline __u32 merge_ticks(__u64 ns)
{
	return (ns >> MERGE_TICK_SHIFT) + 1;
}

/* Judges a packet by the hash of its payload, in a table of as many blocks from there on. */
merge_inline __u32 merge_judge_in_table(struct merge *m, struct merge_packet *p, __u32 first, __u32 blocks)
{
	__u32 verdict = MERGE_AGAIN;

	p->newest = (__u64)first << 32 | (MERGE_BUCKETS * blocks - 1);
	p->key = p->now_ns >> MERGE_TICK_SHIFT & 0xffff;
	p->at = 0;
	p->slot = 0;
	p->generation = 0;
	for (int i = 0; i < MERGE_SWAPS && verdict == MERGE_AGAIN; i++)
		verdict = merge_try(m, p);
	MERGE_KEEP(verdict);
	/* The CPU that has the other copy stands still in the middle of it; it passes that when it goes on. */
	if (verdict == MERGE_AGAIN && p->generation) {
		p->at = p->key << 8;
		verdict = MERGE_DUPLICATE;
	} else if (verdict >= MERGE_VERDICTS) {
		MERGE_ADD(m->unsettled, 1);
		verdict = MERGE_FIRST;
	}
	return verdict;
}

/* Whether what a leg brings passed before `since_ns`. It may be what another leg brought before there was a
 * merge, and brings no more.
 */
merge_inline int merge_is_early(const struct merge *m, const struct merge_line *line, const struct merge_packet *p,
				__u32 verdict)
{
	__u64 since = MERGE_LOAD(line->since_ns), tick = verdict == MERGE_FIRST ? p->key : p->at >> 8;

	return !p->once && verdict <= MERGE_DUPLICATE && (__s64)(p->now_ns - since) < 2 * (__s64)m->window_ns &&
	       (__s16)((since >> MERGE_TICK_SHIFT) - tick) > 0;
}

/* Judges and counts a packet of a rule that goes by payload. Of two legs, which it is stands in the lowest bit
 * of its place.
 */
merge_inline __u32 merge_judge_payload(struct merge *m, struct merge_packet *p)
{
	struct merge_line *line = &m->line[p->line & (MERGE_LINES - 1)];
	__u64 since = MERGE_LOAD(line->since_ns);
	__u32 verdict, is_early;

	p->once = merge_is_once(m);
	p->fresh = 0;
	if ((__s64)(p->now_ns - since) < 0)
		p->fresh = !!MERGE_LOAD(line->joins);
	p->brought = (since - (m->window_ns > MERGE_BEGINS_NS ? m->window_ns : MERGE_BEGINS_NS) / 2) >> MERGE_TICK_SHIFT;
	p->width = merge_ticks(m->window_ns);
	verdict = merge_judge_in_table(m, p, m->first_block, MERGE_STREAMS << (m->blocks_log & 15));
	is_early = merge_is_early(m, line, p, verdict);
	merge_see(&line->seen_ns, p->now_ns);
	if (is_early && verdict == MERGE_FIRST)
		MERGE_ADD(m->span, 1);
	MERGE_ADD(line->counts[verdict], 1);
	if (is_early)
		MERGE_ADD(line->numbers, 1);
	return verdict;
}

/* Judges by a hash that passes once in a window. */
MERGE_CALL __u32 merge_judge_once(struct merge *rule, struct merge_packet *p)
{
	if (MERGE_MISSING(rule) || MERGE_MISSING(p))
		return MERGE_FIRST;
	return merge_judge_in_table(rule, p, MERGE_RINGS + p->merge * MERGE_TABLE, MERGE_TABLE);
}

/* Judges what has no number, one that stands still, or 0 by the hash of its payload. */
merge_inline __u32 merge_judge_unnumbered(struct merge *m, struct merge_packet *p, __u64 hash)
{
	struct merge *of;
	__u32 verdict;

	p->number = hash;
	if (p->claimed > MERGE_FIRST + 1)	/* a copy by its number */
		return p->claimed - 1;
	p->once = 1;
	p->width = merge_ticks(m->window_ns);
	verdict = merge_judge_once(m, p);
	of = p->cell == p->merge ? m : MERGE_AT(p, p->cell);
	if (p->claimed) {
		p->once = 0;
		/* It left before it had a number. Where packets take up several, `fresh` counts. */
		if (verdict == MERGE_DUPLICATE && of && !of->format.count_bytes)
			MERGE_ADD(of->firsts, p->count);
		return verdict;
	}
	if (!p->still)
		return verdict;
	if (verdict != MERGE_FIRST || !of || !merge_goes_on_still(of, p))
		return MERGE_REPEATED;
	MERGE_ADD(m->line[p->line & (MERGE_LINES - 1)].still, 1);
	return MERGE_FIRST;
}

#endif
