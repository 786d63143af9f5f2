/* One stream of several legs that bring the same: the first copy of each packet passes, the others do
 * not. Lock-free: legs may come on any CPUs at once. One source for the program, for the workers,
 * which share the same words, and for the checker, which puts a scheduling point before every access.
 *
 * Every decision is one compare-and-swap of one word of a stream's ring (merge_layout.h). A word says
 * itself of which generation and which turn of the ring its bits are: nothing is ever cleared, stale
 * bits are replaced by the swap that sets the first new one. Within a turn bits are only set, so a word
 * changes at most 33 times, and the loop around the swap ends.
 *
 * What was lost is not noted: it is what lies between the oldest and the newest number of a stream,
 * less what passed. So a packet books nothing but itself.
 */
#ifndef MERGE_H
#define MERGE_H

#include "merge_cell.h"

merge_inline struct merge_block *merge_ring(struct merge *m, const struct merge_packet *p, __u64 place)
{
	__u32 log = m->blocks_log & 15, slot = p->slot & (MERGE_STREAMS - 1);

	return MERGE_BLOCK(m, m->first_block + (slot << log) + (place / MERGE_WORDS & ((1u << log) - 1)));
}

/* Moves a mean of 8 and the maximum. Written by the packets of one leg. Its copy may be judged later than
 * another's and have come before it all the same.
 */
merge_inline void merge_skew(struct merge_line *line, __s32 units)
{
	__u64 mean = MERGE_LOAD(line->skew_ns_8), ns = (__u64)(units > 0 ? units : 0) << MERGE_STAMP_SHIFT;

	MERGE_STORE(line->skew_ns_8, mean - (mean >> 3) + ns);
	if (ns > MERGE_LOAD(line->skew_max_ns))
		MERGE_STORE(line->skew_max_ns, ns);
}

merge_inline __u64 merge_stamp(const struct merge_packet *p, __u64 at, __u64 ns)
{
	return (at | MERGE_STAMP_MARK) << MERGE_NUMBER_BITS | (__u64)p->length << 32 |
	       (__u32)(ns >> MERGE_STAMP_SHIFT);
}

/* How many of eight numbers. */
merge_inline __u32 merge_bits(__u32 bits)
{
	bits = (bits & 0x55) + (bits >> 1 & 0x55);
	bits = (bits & 0x33) + (bits >> 2 & 0x33);
	return (bits & 0xf) + (bits >> 4 & 0xf);
}

/* Whether a word is of a later generation than the packet: what seems later than all there are is older, of
 * more generations ago than half of those that can be told apart. One branch, for the verifier.
 */
merge_inline int merge_is_of_later(struct merge *m, const struct merge_packet *p, __u32 generation)
{
	__u32 newest = MERGE_LOAD(m->newest) >> 8 | (MERGE_LINES - 1);

	return !(((generation - p->generation - 1) | (newest - generation)) & 0x8000);
}

/* Claims for its leg those numbers of the packet that lie in one word, after so many before. The first of
 * them decides.
 */
MERGE_CALL int merge_claim(struct merge *m, struct merge_packet *p, __u32 before)
{
	__u64 at, place, old, *word, *stamp;
	__u32 n, tag, all, mine, l, fresh;
	struct merge_block *block;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return MERGE_FIRST;
	at = (p->at + before) & MERGE_NUMBER_MASK;
	place = at >> 3;
	n = at & 7;
	l = p->line & (MERGE_LINES - 1);
	all = p->count - before;
	all = (all < 8 ? (1u << all) - 1 : 0xff) << n & 0xff;
	merge_see(&m->stream[p->slot & (MERGE_STREAMS - 1)].seen_ns, p->now_ns);
	block = merge_ring(m, p, place);
	if (!block)
		goto unsettled;
	tag = p->generation << 16 | (place >> (MERGE_WORDS_LOG + (m->blocks_log & 15)) & 0xffff);
	mine = all << l * 8;
	word = &block->word[place & (MERGE_WORDS - 1)];
	stamp = &block->stamp[place >> 2 & (MERGE_STAMPS - 1)];
	for (int i = 0; i < MERGE_SWAPS; i++) {
		__u32 was;

		old = MERGE_LOAD(*word);
		was = old >> 32;
		if (was == tag) {
			if (!(mine & ~old))
				return MERGE_REPEATED;
			if (MERGE_CAS(*word, old, old | mine) != old)
				continue;
			fresh = all & ~(old | old >> 8 | old >> 16 | old >> 24);
			p->fresh += merge_bits(fresh);
			p->brought += merge_bits((mine & ~old) >> l * 8);
			if (fresh >> n & 1)
				return MERGE_FIRST;
			if (!(place & 3)) {
				__u64 was_at = MERGE_LOAD(*stamp);

				if (was_at >> MERGE_NUMBER_BITS == ((at | MERGE_STAMP_MARK) & 0xffff)) {
					p->cut |= (was_at >> 32 & 0xffff) != p->length;
					merge_skew(&m->line[l], (MERGE_NS() >> MERGE_STAMP_SHIFT) - was_at);
				}
			}
			return MERGE_DUPLICATE;
		}
		if (old && (was >> 16 == p->generation ? (__s16)(was - tag) > 0 : merge_is_of_later(m, p, was >> 16)))
			return MERGE_LATE;
		if (MERGE_CAS(*word, old, (__u64)tag << 32 | mine) != old)
			continue;
		if (!(place & 3)) {
			MERGE_STORE(*stamp, merge_stamp(p, at, MERGE_NS()));
			merge_skew(&m->line[l], 0);
		}
		goto first;
	}
unsettled:
	MERGE_ADD(m->unsettled, 1);
first:
	p->fresh += merge_bits(all);
	p->brought += merge_bits(all);
	return MERGE_FIRST;
}

/* Whether nobody else has brought one of the packet's numbers in a word. */
MERGE_CALL int merge_is_alone(struct merge *m, struct merge_packet *p, __u32 before)
{
	__u32 all, l, others, n;
	struct merge_block *block;
	__u64 at, word;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return 0;
	at = (p->at + before) & MERGE_NUMBER_MASK;
	block = merge_ring(m, p, at >> 3);
	if (!block)
		return 0;
	l = p->line & (MERGE_LINES - 1);
	n = at & 7;
	all = p->count - before;
	all = (all < 8 ? (1u << all) - 1 : 0xff) << n & 0xff;
	word = MERGE_LOAD(block->word[at >> 3 & (MERGE_WORDS - 1)]);
	if (word >> 48 != p->generation)
		return 0;
	others = word & ~(0xffu << l * 8);
	return (word >> l * 8 & all & ~(others | others >> 8 | others >> 16 | others >> 24)) != 0;
}

/* Claims all numbers of a packet that takes up several. The first one decides between those that are the
 * same: by then all others are claimed. Who is second and finds that one of them is its own alone has a
 * packet that is cut differently, which passes.
 */
MERGE_CALL int merge_claim_all(struct merge *m, struct merge_packet *p)
{
	__u32 verdict, at, beyond;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return MERGE_FIRST;
	at = p->at & 7;
	for (__u32 i = 1; i < MERGE_SPREAD && i * 8 - at < p->count; i++)
		merge_claim(m, p, i * 8 - at);
	beyond = MERGE_SPREAD * 8 - at;		/* what lies there is not looked at */
	beyond = p->count > beyond ? p->count - beyond : 0;
	p->brought += beyond;
	verdict = merge_claim(m, p, 0);
	if (verdict == MERGE_FIRST)
		p->fresh += beyond;
	for (__u32 i = 0; i < MERGE_SPREAD && verdict == MERGE_DUPLICATE && p->fresh && (!i || i * 8 - at < p->count); i++)
		if (merge_is_alone(m, p, i ? i * 8 - at : 0)) {
			p->cut = 1;
			return MERGE_FIRST;
		}
	return verdict;
}

/* Whether a leg that repeats itself has begun anew: by the eighth packet in a row that goes on from those
 * before it, while nobody brings anything else. Says in `still` where its number is the one before.
 */
merge_inline int merge_begins_anew(struct merge *m, struct merge_packet *p)
{
	struct merge_stream *s = &m->stream[p->slot & (MERGE_STREAMS - 1)];
	__u32 shift = (p->line & (MERGE_LINES - 1)) * 16, ahead, run;
	__u64 again = MERGE_LOAD(s->again), lane = again >> shift & 0xffff;

	ahead = (p->at - lane) & 0xfff;
	run = lane >> 12;
	if (run && !ahead) {
		p->still = p->slot + 1;
		return 0;
	}
	run = run && ahead < 0x800 ? run + 1 : 1;
	if (run >= MERGE_RUN)
		return 1;
	lane = (lane ^ (run << 12 | (p->at & 0xfff))) << shift;
	MERGE_CAS(s->again, again, again ^ lane);
	return 0;
}

/* A leg that brings something else has not begun anew. */
merge_inline void merge_brings_other(struct merge *m, const struct merge_packet *p)
{
	struct merge_stream *s = &m->stream[p->slot & (MERGE_STREAMS - 1)];
	__u64 again = MERGE_LOAD(s->again), lane = 0xffffull << (p->line & (MERGE_LINES - 1)) * 16;

	if (again & lane)
		MERGE_CAS(s->again, again, again & ~lane);
}

/* Whether a number that stands still brings something new all the same, long enough on any leg. */
merge_inline int merge_goes_on_still(struct merge *m, const struct merge_packet *p)
{
	struct merge_stream *s = &m->stream[(p->still - 1) & (MERGE_STREAMS - 1)];
	__u64 again = MERGE_LOAD(s->again);

	if (again & 0x8000800080008000ull)	/* MERGE_RUN */
		return 1;
	MERGE_CAS(s->again, again, again + (0x1000ull << (p->line & (MERGE_LINES - 1)) * 16));
	return 0;
}

/* How far `a` is ahead of `b`; 0: they are of two generations. */
merge_inline __s64 merge_beyond(__u64 a, __u64 b)
{
	return (a ^ b) >> MERGE_NUMBER_BITS ? 0 : merge_ahead(a, b, MERGE_NUMBER_BITS);
}

/* Whether a leg that had come to the number before goes on from there. */
merge_inline int merge_went_on(const struct merge *m, const struct merge_packet *p, __u64 was, __u64 to)
{
	__u64 last = MERGE_LOAD(m->line[p->line & (MERGE_LINES - 1)].part[p->slot & (MERGE_STREAMS - 1)].last);
	__s64 ahead = merge_beyond(to, was);

	return ahead > 0 && ahead <= merge_most(p) && !((was ^ last) >> MERGE_NUMBER_BITS) &&
	       merge_beyond(last, was) >= 0;
}

/* Notes the stream's newest number. One that comes alone far ahead may be a stranger's: what was before it is
 * known, also of several of them, and is the newest again if a leg goes on from there. Then the other is known,
 * until the stream comes near it. What another leg has brought, too, is no stranger's.
 */
MERGE_CALL int merge_try_rise(struct merge *m, const struct merge_packet *p, int first)
{
	struct merge_stream *s;
	__u64 to, top, was, next, other = 0;
	__s64 most, ahead, left;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return 1;
	s = &m->stream[p->slot & (MERGE_STREAMS - 1)];
	most = merge_most(p);
	to = (__u64)p->generation << MERGE_NUMBER_BITS | ((p->at + p->count - 1) & MERGE_NUMBER_MASK);
	top = MERGE_LOAD(s->top);
	was = MERGE_LOAD(s->MERGE_WAS);
	next = to;
	ahead = merge_ahead(to, top, MERGE_NUMBER_BITS);
	left = merge_beyond(was, to);
	if ((top ^ to) >> MERGE_NUMBER_BITS || (ahead <= 0 && !(first && merge_went_on(m, p, was, to))))
		return 1;
	if (ahead <= 0) {
		other = top;
	} else if (first && ahead > most) {
		other = merge_beyond(top, was) <= 0 ? top : -left <= merge_reach(m) ? was : 0;
		if (other && other != was)	/* who sees the number sees what was before it */
			MERGE_STORE(s->MERGE_WAS, other);
	} else if (left > most) {
		other = was;
	} else if (left > 0) {
		next = was;
	}
	if (MERGE_CAS(s->top, top, next) != top)
		return 0;
	if (other != was && ahead <= most)
		MERGE_STORE(s->MERGE_WAS, other);
	else if (was && !other)
		MERGE_STORE(s->MERGE_WAS, 0);
	return 1;
}

/* The same, however often another processor is first. */
merge_inline void merge_rise(struct merge *m, const struct merge_packet *p, int first)
{
	for (int i = 0; i < MERGE_MOVES; i++) {
		if (merge_try_rise(m, p, first))
			break;
	}
}

/* Notes that a packet passed: the stream's newest number, and its oldest. */
merge_inline void merge_pass(struct merge *m, const struct merge_packet *p)
{
	struct merge_stream *s = &m->stream[p->slot & (MERGE_STREAMS - 1)];
	__u64 to = (__u64)p->generation << MERGE_NUMBER_BITS | p->at;

	merge_rise(m, p, 1);
	if (MERGE_LOAD(s->again))
		MERGE_STORE(s->again, 0);
	for (int i = 0; i < MERGE_MOVES; i++) {
		__u64 base = MERGE_LOAD(s->base);

		if (!((base ^ to) >> MERGE_NUMBER_BITS) && merge_ahead(to, base, MERGE_NUMBER_BITS) >= 0)
			break;
		if (merge_is_later(base >> MERGE_NUMBER_BITS, p->generation) && base)
			break;
		if (MERGE_CAS(s->base, base, to) == base)
			break;
	}
}

/* Notes what a leg brought. What goes on there says that the leg has not jumped, but not what was behind. */
MERGE_CALL int merge_note(struct merge *m, const struct merge_packet *p)
{
	struct merge_line *line;
	struct merge_part *part;
	__u64 at, end, last, candidate;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return 0;
	line = &m->line[p->line & (MERGE_LINES - 1)];
	part = &line->part[p->slot & (MERGE_STREAMS - 1)];
	at = (__u64)p->generation << MERGE_NUMBER_BITS | p->at;
	end = (__u64)p->generation << MERGE_NUMBER_BITS | ((p->at + p->count - 1) & MERGE_NUMBER_MASK);
	last = MERGE_LOAD(part->last);
	if ((last ^ at) >> MERGE_NUMBER_BITS) {
		MERGE_STORE(line->began_ns, p->now_ns);
		MERGE_STORE(part->first, at);
	} else if (merge_ahead(end, last, MERGE_NUMBER_BITS) <= 0) {
		if (merge_ahead(at, MERGE_LOAD(part->first), MERGE_NUMBER_BITS) < 0)
			MERGE_STORE(part->first, at);
		return 0;
	}
	MERGE_STORE(part->last, end);
	MERGE_STORE(part->mark, end);
	candidate = MERGE_LOAD(line->candidate);
	if (candidate && !(((candidate - 1) ^ (merge_mark(p) - 1)) >> MERGE_NUMBER_BITS))
		MERGE_STORE(line->candidate, 0);
	return 0;
}

/* Notes what nobody had begun, before it is looked whether somebody has: who does sees one of them. */
MERGE_CALL int merge_note_stray(struct merge *rule, struct merge *m, const struct merge_packet *p)
{
	__u64 newest;

	if (MERGE_MISSING(rule) || MERGE_MISSING(m) || MERGE_MISSING(p))
		return 0;
	newest = p->newest & ~MERGE_PENDING;
	MERGE_STORE(rule->line[p->line & (MERGE_LINES - 1)].stray, merge_mark(p));
	if (p->newest & MERGE_PENDING)
		MERGE_CAS(m->newest, newest, newest | MERGE_HELD);
	return 0;
}

/* One attempt: others may change what it goes by. */
MERGE_CALL int merge_turn(struct merge *rule, struct merge_packet *p)
{
	struct merge *m;
	__u32 verdict;

	if (MERGE_MISSING(rule) || MERGE_MISSING(p))
		return MERGE_FIRST;
	p->newest = p->fresh = p->brought = p->cut = 0;
	if (!merge_find(rule, p)) {
		if (merge_is_0(rule, p))
			return MERGE_UNNUMBERED;
		if (merge_is_member(rule, p))
			return merge_take(rule, p);
		merge_note_stray(rule, rule, p);
		return merge_find(rule, p) ? MERGE_AGAIN : MERGE_STRAY;
	}
	m = MERGE_AT(p, p->cell);
	if (!m)
		return MERGE_FIRST;
	verdict = merge_search(m, p);
	if (verdict == MERGE_STRAY)
		merge_note_stray(rule, m, p);
	/* What belongs to nothing may belong to what has been opened meanwhile. */
	if ((verdict == MERGE_STRAY || verdict == MERGE_LATE) && merge_has_opened(m, p))
		return MERGE_AGAIN;
	if (verdict == MERGE_CLAIM) {
		verdict = p->count > 1 ? merge_claim_all(m, p) : merge_claim(m, p, 0);
		merge_see(&rule->line[p->line & (MERGE_LINES - 1)].seen_ns, p->now_ns);
		if (verdict == MERGE_REPEATED && merge_has_opened(m, p))
			return MERGE_AGAIN;
		if (verdict == MERGE_REPEATED && merge_begins_anew(m, p))
			verdict = MERGE_REOPEN;
		else if (verdict == MERGE_FIRST)
			merge_pass(m, p);
		else if (verdict == MERGE_DUPLICATE) {
			merge_rise(m, p, 0);
			merge_brings_other(m, p);
		}
		if (verdict < MERGE_VERDICTS)
			merge_note(m, p);
	}
	if (verdict == MERGE_REOPEN)
		return merge_open(m, p, MERGE_HELD);
	return verdict == MERGE_OPEN ? merge_open(m, p, 0) : verdict;
}

/* Judges a packet by its number. What has none, one that stands still, or 0 is MERGE_UNNUMBERED. */
merge_inline __u32 merge_judge(struct merge *rule, struct merge_packet *p)
{
	__u32 verdict = p->count ? MERGE_AGAIN : MERGE_UNNUMBERED;

	p->cell = p->merge;
	for (int turn = 0; turn < MERGE_TURNS && verdict == MERGE_AGAIN; turn++)
		verdict = merge_turn(rule, p);
	if (verdict == MERGE_REPEATED && p->still)
		verdict = MERGE_UNNUMBERED;
	/* Another line's may have passed before 0 was known to be of the sequence: its payload tells. All of a
	 * datagram in fragments are called by that.
	 */
	p->claimed = verdict <= MERGE_REPEATED && merge_is_0(rule, p) ? verdict + 1 : 0;
	if (p->claimed)
		verdict = MERGE_UNNUMBERED;
	if (verdict == MERGE_AGAIN) {	/* others changed it all the time: rather twice than never */
		MERGE_ADD(rule->unsettled, 1);
		verdict = MERGE_FIRST;
	}
	return verdict;
}

/* Counts a packet, what has no number for its rule's own entry. */
merge_inline __u32 merge_count(struct merge *rule, const struct merge_packet *p, __u32 verdict)
{
	struct merge *m = p->once || p->cell == p->merge ? rule : MERGE_AT(p, p->cell);
	int brought = verdict == MERGE_FIRST || verdict == MERGE_DUPLICATE;
	struct merge_line *line;

	MERGE_KEEP(verdict);
	if (verdict >= MERGE_VERDICTS || !m)
		return MERGE_FIRST;
	line = &m->line[p->line & (MERGE_LINES - 1)];
	if (verdict == MERGE_EXCEEDED) {
		MERGE_ADD(line->exceeded, 1);
		return verdict;
	}
	MERGE_ADD(line->counts[verdict], 1);
	if (p->once) {
		if (brought)
			MERGE_ADD(line->unnumbered, 1);
		if (verdict == MERGE_FIRST)
			MERGE_ADD(m->unnumbered, 1);
		return verdict;
	}
	if (p->cut)
		MERGE_ADD(line->cut, 1);
	if (m->format.count_bytes) {
		if (p->fresh)
			MERGE_ADD(m->firsts, p->fresh);
		MERGE_ADD(line->numbers, verdict == MERGE_LATE ? p->count : p->brought);
	}
	return verdict;
}

#endif
