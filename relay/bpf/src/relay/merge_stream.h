/* To which stream of a merge a packet belongs, and when another begins: by its key, by how far its number
 * is from the stream's newest, and by where its leg was before. merge.h decides by it.
 */
#ifndef MERGE_STREAM_H
#define MERGE_STREAM_H

#include "merge_packet.h"

/* Whether a packet far from the stream is the second that says so, on its leg or on two of them, whichever of
 * both comes first. It says so itself before it looks at the others: of two that come at once at least one sees
 * the other. The same one again says nothing.
 */
MERGE_CALL int merge_confirmed(struct merge *m, const struct merge_packet *p)
{
	__u64 own, mark;
	__s64 most;
	__u32 l;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return 0;
	l = p->line & (MERGE_LINES - 1);
	own = MERGE_LOAD(m->line[l].candidate);
	mark = merge_mark(p);
	most = merge_most(p);
	if (own == mark || !merge_near(p, own, -most, most))
		own = MERGE_CAS(m->line[l].candidate, own, mark);
	if (own != mark && merge_near(p, own, -most, most))
		return 1;
	for (__u32 i = 0; i < MERGE_LINES; i++)
		if (i != l && merge_near(p, MERGE_LOAD(m->line[i].candidate), -most, most))
			return 1;
	return 0;
}

/* Gives a stream that has just been opened its newest number, the packet's own; and books the one that
 * was in its place. `began_ns` 0: of each line others may have been held back, so that it accounts for the
 * stream from its own first number.
 */
merge_inline void merge_begin(struct merge *m, const struct merge_packet *p, __u32 slot, __u32 generation,
			      __u64 top)
{
	struct merge *rule = MERGE_AT(p, p->merge);
	struct merge_stream *s = &m->stream[slot & (MERGE_STREAMS - 1)];
	__u64 base = MERGE_LOAD(s->base), began = MERGE_LOAD(s->began_ns), to, span;

	to = p->number & MERGE_NUMBER_MASK;
	if (p->width < MERGE_NUMBER_BITS)	/* room for numbers before the first */
		to = (to & ((1ull << (p->width & 63)) - 1)) + (1ull << ((p->width + 8) & 63));
	if (MERGE_CAS(s->top, top, (__u64)generation << MERGE_NUMBER_BITS | to) != top)
		return;
	MERGE_STORE(s->began_ns, MERGE_LOAD(m->newest) & MERGE_HELD ? 0 : p->now_ns);
	MERGE_STORE(s->again, 0);
	if (!rule || !top || (base ^ top) >> MERGE_NUMBER_BITS)
		return;
	span = merge_span(base, top);
	MERGE_ADD(m->span, span);
	for (__u32 i = 0; i < MERGE_LINES; i++) {
		struct merge_line *line = &m->line[i];
		__u64 since = MERGE_LOAD(rule->line[i].since_ns);
		__u64 first = MERGE_LOAD(line->part[slot & (MERGE_STREAMS - 1)].first);

		if (!since)	/* no such leg */
			continue;
		if (merge_is_over(began, since, 0))	/* it came later */
			span = (first ^ top) >> MERGE_NUMBER_BITS ? 0 : merge_span(first, top);
		else
			span = merge_span(base, top);
		MERGE_ADD(m->line[i].span, span);
	}
}

/* What a packet finds among the streams. */
struct merge_look {
	__u64 own;		/* where its leg was last */
	__u64 seen;		/* the last of all streams of its key */
	__s64 ahead;		/* of the newest */
	__u64 found_own;	/* of the newest of these that it is within reach of */
	__u64 found_seen;
	__s64 found_ahead;
	__u16 found_goes_on;	/* its leg has been there until now */
	__u16 newest;
	__u16 newest_generation;
	__u16 found;		/* `generation` is the packet's then */
};

/* Looks at one of the streams: by itself, or the verifier walks every way through all four. Says whether
 * to look again.
 */
MERGE_CALL int merge_look(struct merge *m, struct merge_packet *p, struct merge_look *l, __u32 i)
{
	struct merge_stream *s;
	__u64 id, top, stream_seen, mark;
	__u32 generation, goes_on;
	__s64 reach, by;

	if (MERGE_MISSING(m) || MERGE_MISSING(p) || MERGE_MISSING(l))
		return 0;
	i &= MERGE_STREAMS - 1;
	s = &m->stream[i];
	reach = merge_reach(m);
	/* When it was seen is written before its top, hence read after it. */
	id = MERGE_LOAD(s->id);
	top = MERGE_LOAD(s->top);
	stream_seen = MERGE_LOAD(s->seen_ns);
	generation = merge_generation(id);
	if (i == (p->newest & (MERGE_STREAMS - 1)) && !merge_is_opened(id, p->newest))
		p->newest |= MERGE_PENDING;
	if (!generation || id >> 32 != p->key || merge_is_pending(p, i))
		return 0;
	mark = MERGE_LOAD(m->line[p->line & (MERGE_LINES - 1)].part[i].mark);
	if (mark >> MERGE_NUMBER_BITS != generation)
		mark = 0;
	if (mark && (!l->own || merge_is_later(generation, l->own >> MERGE_NUMBER_BITS)))
		l->own = mark;
	if (top >> MERGE_NUMBER_BITS != generation) {	/* just opened, or just taken over */
		by = merge_ahead(p->number, id, 16);
		if (by > -reach && by <= reach) {
			merge_begin(m, p, i, generation, top);
			return 1;
		}
		return 0;
	}
	by = merge_ahead(p->number, top, p->width);
	if (l->newest == MERGE_NONE || merge_is_over(l->seen, stream_seen, 0))
		l->seen = stream_seen;
	if (l->newest == MERGE_NONE || merge_is_later(generation, l->newest_generation)) {
		l->newest = i;
		l->newest_generation = generation;
		l->ahead = by;
	}
	if (by <= -reach || by > reach)
		return 0;
	/* Where the numbers began anew within reach, a leg that lags finishes what it is at. What nobody has
	 * brought of that is of the newest, if that is about there: it only seemed to begin anew.
	 */
	goes_on = !(by > 0 && l->found == l->newest && l->found_ahead <= merge_most(p)) &&
		  merge_goes_on(p, mark, 1, merge_most(p)) &&
		  !merge_is_over(stream_seen, p->now_ns, m->window_ns);
	if (l->found == MERGE_NONE || (goes_on && !l->found_own) ||
	    (!(l->found_goes_on && !mark) && merge_is_later(generation, p->generation))) {
		l->found = i;
		l->found_goes_on = goes_on;
		p->generation = generation;
		l->found_ahead = by;
		l->found_seen = stream_seen;
		l->found_own = mark;
		p->at = (top + by) & MERGE_NUMBER_MASK;
	}
	return 0;
}

/* Finds a packet that only one far ahead, which came alone, has put out of the newest stream's reach: nothing is
 * forgotten for that. Says whether to look again.
 */
MERGE_CALL int merge_look_before(struct merge *m, struct merge_packet *p, struct merge_look *l)
{
	struct merge_stream *s;
	__u64 top, was, mark;
	__s64 by;

	if (MERGE_MISSING(m) || MERGE_MISSING(p) || MERGE_MISSING(l))
		return 0;
	s = &m->stream[l->newest & (MERGE_STREAMS - 1)];
	top = MERGE_LOAD(s->top);
	was = MERGE_LOAD(s->MERGE_WAS);
	by = merge_ahead(p->number, top, p->width);
	if (top >> MERGE_NUMBER_BITS != l->newest_generation || l->ahead > 0)
		return 0;
	if ((was ^ top) >> MERGE_NUMBER_BITS || merge_ahead(p->number, was, p->width) <= -merge_reach(m))
		return by > -merge_reach(m) || MERGE_LOAD(s->top) != top;
	mark = MERGE_LOAD(m->line[p->line & (MERGE_LINES - 1)].part[l->newest & (MERGE_STREAMS - 1)].mark);
	l->found = l->newest;
	l->found_ahead = by;
	l->found_seen = MERGE_LOAD(s->seen_ns);
	l->found_own = (mark ^ top) >> MERGE_NUMBER_BITS ? 0 : mark;
	p->generation = l->newest_generation;
	p->at = (top + by) & MERGE_NUMBER_MASK;
	return 0;
}

/* Whether a leg began so long before another. The time comes round in 78 hours. */
merge_inline int merge_is_opener_over(__u64 opener, __u64 own, __u64 time)
{
	__u32 age = (own >> 32) - (opener >> 32) + MERGE_OPENER_APART;

	return !opener || age > (time >> MERGE_OPENER_SHIFT) + MERGE_OPENER_APART;
}

/* Whether a packet's leg is no stranger to what is there: it brings some of it, or nobody brings any. Of
 * legs that begin at once one does, and the others are strangers to what it has not begun; less than 0: but
 * this packet is of what it begins.
 */
MERGE_CALL int merge_is_member(struct merge *rule, const struct merge_packet *p)
{
	__u64 patience, opener, own;
	__u32 l;

	if (MERGE_MISSING(rule) || MERGE_MISSING(p))
		return 0;
	l = p->line & (MERGE_LINES - 1);
	patience = MERGE_PATIENCE * rule->window_ns;
	if (!merge_is_over(MERGE_LOAD(rule->line[l].seen_ns), p->now_ns, patience))
		return 1;
	own = p->now_ns >> MERGE_OPENER_SHIFT << 32 | (p->number & 0xffff) << 16 |
	      ((merge_mark(p) - 1) >> 46 & 0xfffc) | l;
	opener = MERGE_LOAD(rule->opener);
	if (merge_is_opener_over(opener, own, patience)) {
		__u32 others = 0;

		for (__u32 i = 0; i < MERGE_LINES; i++)
			others |= i != l && !merge_is_over(MERGE_LOAD(rule->line[i].seen_ns), p->now_ns, patience);
		if (!others && MERGE_CAS(rule->opener, opener, own) == opener)
			return 1;
		opener = MERGE_LOAD(rule->opener);	/* of one of them, if it has just begun */
		if (merge_is_opener_over(opener, own, patience))
			return 0;
	}
	own ^= opener;
	if (!(own & (MERGE_LINES - 1)))
		return 1;
	patience = merge_ahead(p->number, opener >> 16, 16) + merge_reach(rule);
	return own & 0xfffc || patience > 2 * merge_reach(rule) ? 0 : -1;
}

/* Whether a packet has the number of what stands outside a sequence. */
merge_inline int merge_is_0(const struct merge *m, const struct merge_packet *p)
{
	return !p->number && m->format.by == MERGE_BY_SEQUENCE;
}

/* Whether a packet's number comes before all that is known of the stream that was found, if any was: 0
 * stands outside the sequence, unless the numbers have come round to it.
 */
merge_inline int merge_is_before(struct merge *m, const struct merge_packet *p, __u32 found)
{
	__u64 base = found == MERGE_NONE ? 0 : MERGE_LOAD(m->stream[found & (MERGE_STREAMS - 1)].base);

	return found == MERGE_NONE || base >> MERGE_NUMBER_BITS != p->generation ||
	       merge_ahead(p->at, base, MERGE_NUMBER_BITS) < 0;
}

/* Whether a leg has gone back to before all that it brought of a stream, long after it came to that: no copy
 * of anything is in flight there. A single packet that it brought may have been a stranger's.
 */
merge_inline int merge_goes_back(struct merge *m, const struct merge_packet *p, const struct merge_look *l)
{
	struct merge_line *line = &m->line[p->line & (MERGE_LINES - 1)];
	struct merge_part *part = &line->part[l->found & (MERGE_STREAMS - 1)];
	__u64 first = MERGE_LOAD(part->first);

	return merge_goes_on(p, l->found_own, -merge_reach(m), -merge_most(p)) &&
	       first >> MERGE_NUMBER_BITS == p->generation && merge_ahead(p->at, first, MERGE_NUMBER_BITS) < 0 &&
	       merge_ahead(MERGE_LOAD(part->last), first, MERGE_NUMBER_BITS) >= p->count &&
	       merge_is_over(MERGE_LOAD(line->began_ns), p->now_ns, m->window_ns);
}

/* Whether a packet goes on where its leg was before a pause, after which one of another stream came first, on
 * one leg.
 */
MERGE_CALL int merge_is_back(struct merge *m, const struct merge_packet *p, const struct merge_look *l)
{
	__u32 slot, legs = 0;
	__u64 top;

	if (MERGE_MISSING(m) || MERGE_MISSING(p) || MERGE_MISSING(l))
		return 0;
	slot = l->newest & (MERGE_STREAMS - 1);
	top = MERGE_LOAD(m->stream[slot].top);
	for (__u32 i = 0; i < MERGE_LINES; i++)
		legs += !((MERGE_LOAD(m->line[i].part[slot].mark) ^ top) >> MERGE_NUMBER_BITS);
	return merge_goes_on(p, l->found_own, 1, merge_most(p)) && legs < 2 &&
	       !merge_ahead(top, MERGE_LOAD(m->stream[slot].base), MERGE_NUMBER_BITS);
}

/* Whether a packet behind the newest stream may be of it, on a leg that lags: the stream had begun by then, and
 * the leg has not been there before.
 */
MERGE_CALL int merge_lags(struct merge *m, const struct merge_packet *p, const struct merge_look *l)
{
	__u64 top, last, base;
	__u32 slot;

	if (MERGE_MISSING(m) || MERGE_MISSING(p) || MERGE_MISSING(l))
		return 0;
	slot = l->newest & (MERGE_STREAMS - 1);
	top = MERGE_LOAD(m->stream[slot].top);
	base = MERGE_LOAD(m->stream[slot].base);
	last = MERGE_LOAD(m->line[p->line & (MERGE_LINES - 1)].part[slot].last);
	if (!((last ^ top) >> MERGE_NUMBER_BITS))
		return merge_ahead(top + l->ahead, last, MERGE_NUMBER_BITS) > 0;
	return !((base ^ top) >> MERGE_NUMBER_BITS) && merge_ahead(top + l->ahead, base, MERGE_NUMBER_BITS) >= 0;
}

/* Whether a leg does not go on from where it was last: it has missed the newest stream, and nothing is in flight of
 * the one before.
 */
MERGE_CALL int merge_has_left(struct merge *m, const struct merge_packet *p, const struct merge_look *l)
{
	__u32 generation;

	if (MERGE_MISSING(m) || MERGE_MISSING(p) || MERGE_MISSING(l))
		return 0;
	generation = l->own >> MERGE_NUMBER_BITS;
	if (generation == l->newest_generation)
		return 0;
	for (__u32 i = 0; i < MERGE_STREAMS; i++)
		if (merge_generation(MERGE_LOAD(m->stream[i].id)) == generation &&
		    !merge_is_over(MERGE_LOAD(m->stream[i].seen_ns), p->now_ns, m->window_ns))
			return 0;
	return 1;
}

/* Where a packet belongs, or what becomes of it. */
MERGE_CALL int merge_search(struct merge *m, struct merge_packet *p)
{
	struct merge_look l = { .newest = MERGE_NONE, .found = MERGE_NONE };
	int is_member, silent;
	struct merge_line *line;
	__u64 window, now;
	__s64 reach;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return MERGE_FIRST;
	line = &m->line[p->line & (MERGE_LINES - 1)];
	window = m->window_ns;
	now = p->now_ns;
	reach = merge_reach(m);
	p->newest = MERGE_LOAD(m->newest);
	/* Mostly it is of the stream opened last, which goes before all others. */
	if (merge_look(m, p, &l, p->newest))
		return MERGE_AGAIN;
	if (l.found == MERGE_NONE || !l.found_own || merge_is_over(l.found_seen, now, window))
		for (__u32 i = 1; i < MERGE_STREAMS; i++)
			if (merge_look(m, p, &l, p->newest + i))
				return MERGE_AGAIN;
	if (l.found == MERGE_NONE && l.newest != MERGE_NONE && merge_look_before(m, p, &l))
		return MERGE_AGAIN;
	/* What stands outside the sequence says nothing of whose turn it is. */
	if (merge_is_0(m, p) && merge_is_before(m, p, l.found))
		return MERGE_UNNUMBERED;
	/* A stranger to what is there has nothing to say as long as that is brought. */
	is_member = (l.found != MERGE_NONE && !merge_is_over(l.found_seen, now, window)) ? 1 :
		    merge_is_member(MERGE_AT(p, p->merge), p);
	if (is_member < 0)	/* unless that has begun */
		is_member = l.newest == MERGE_NONE || merge_is_over(l.seen, now, MERGE_PATIENCE * window);
	/* What it saw of a place that has been taken meanwhile says nothing. */
	if (MERGE_LOAD(m->newest) != (p->newest & ~MERGE_PENDING))
		return MERGE_AGAIN;
	silent = merge_is_over(l.seen, now, window);
	/* Nothing of a generation before is in flight: the source has gone back to where it once was; or its
	 * stream goes on, and a single packet that came after a pause was a stranger's.
	 */
	if (l.found != l.newest && !silent && merge_is_over(l.found_seen, now, window) &&
	    !merge_is_back(m, p, &l))
		l.found = MERGE_NONE;
	if (merge_is_0(m, p) && l.found == MERGE_NONE)
		return MERGE_UNNUMBERED;
	if (l.found != MERGE_NONE) {
		if (!is_member && merge_is_over(l.found_seen, now, MERGE_PATIENCE * window))
			return MERGE_STRAY;
		/* After a silence nothing old is in flight: a step back begins anew. */
		if (l.found_ahead <= 0 && merge_is_over(l.found_seen, now, window) &&
		    !merge_goes_on(p, l.found_own, 1, reach))
			return is_member ? MERGE_OPEN : MERGE_STRAY;
		p->slot = l.found;
		if (!merge_goes_back(m, p, &l))
			return MERGE_CLAIM;
		return merge_confirmed(m, p) ? MERGE_REOPEN : MERGE_REPEATED;
	}
	if (l.newest == MERGE_NONE)
		return is_member ? MERGE_OPEN : MERGE_STRAY;
	/* It goes on from where it was itself: too far behind, or never with the others. What is behind
	 * has passed before; after a while it passes all the same.
	 */
	if ((merge_goes_on(p, l.own, -reach, reach) && !merge_has_left(m, p, &l) &&
	     (!silent || (l.ahead < 0 && !merge_is_over(l.seen, now, MERGE_PATIENCE * window)))) ||
	    (!is_member && (!silent || l.ahead < 0))) {
		MERGE_STORE(line->part[l.newest & (MERGE_STREAMS - 1)].mark,
			    (__u64)l.newest_generation << MERGE_NUMBER_BITS | (p->number & MERGE_NUMBER_MASK));
		return l.ahead < 0 && (is_member || merge_lags(m, p, &l)) ? MERGE_LATE : MERGE_STRAY;
	}
	if (silent)
		return MERGE_OPEN;
	/* RFC 3550 A.1: two packets in a row say that it goes on elsewhere. */
	return merge_confirmed(m, p) ? MERGE_REOPEN : MERGE_STRAY;
}

/* Whether a leg but this one has brought of what a packet begins, as a stranger: that did not pass. */
MERGE_CALL int merge_was_stray(struct merge *rule, const struct merge_packet *p, __u32 but)
{
	__s64 reach;
	__u64 is_near = 0;

	if (MERGE_MISSING(rule) || MERGE_MISSING(p))
		return 0;
	reach = merge_reach(rule);
	for (__u32 i = 0; i < MERGE_LINES; i++)
		is_near |= i != but && merge_near(p, MERGE_LOAD(rule->line[i].stray), -reach, reach);
	return is_near;
}

/* Opens a stream for a packet that belongs to none. `newest` says which place is taken, so that those
 * who do so at once take the same one; the swap of the id says by whom. Where that is another, or the
 * same stream, the packet looks again; and also where one was opened since it looked.
 */
MERGE_CALL int merge_open(struct merge *m, struct merge_packet *p, __u32 held)
{
	__u64 newest, id, oldest = 0;
	__u32 slot, generation, place = MERGE_NONE, but = MERGE_LINES;
	struct merge *rule;

	if (MERGE_MISSING(m) || MERGE_MISSING(p))
		return MERGE_FIRST;
	newest = p->newest & ~MERGE_PENDING;
	generation = newest >> 8 & 0xffff;
	slot = newest & (MERGE_STREAMS - 1);
	id = MERGE_LOAD(m->stream[slot].id);
	if (MERGE_LOAD(m->newest) != newest)
		return MERGE_AGAIN;
	if (p->newest & MERGE_PENDING) {
		if (merge_is_opened(id, newest))
			return MERGE_AGAIN;
	} else {
		for (__u32 i = 0; i < MERGE_STREAMS; i++) {
			__u64 age = p->now_ns - MERGE_LOAD(m->stream[i].seen_ns);

			if (!merge_generation(MERGE_LOAD(m->stream[i].id)))
				age = ~0ull >> 1;
			if ((__s64)age > (__s64)m->window_ns && age > oldest) {
				oldest = age;
				place = i;
			}
		}
		if (place == MERGE_NONE)
			return MERGE_STRAY;
		generation = merge_next(generation);
		id = MERGE_LOAD(m->stream[place & (MERGE_STREAMS - 1)].id);
		if (MERGE_CAS(m->newest, newest, (__u64)generation << 8 | held | place) != newest)
			return MERGE_AGAIN;
		slot = place & (MERGE_STREAMS - 1);
		newest = (__u64)generation << 8 | held | place;
		but = p->line;
	}
	/* A leg that brings of it from now on sees that it is being opened. */
	rule = MERGE_AT(p, p->merge);
	if (rule && merge_was_stray(rule, p, but))
		MERGE_CAS(m->newest, newest, newest | MERGE_HELD);
	merge_see(&m->stream[slot].opened_ns, p->now_ns);
	merge_see(&m->stream[slot].seen_ns, p->now_ns);
	MERGE_CAS(m->stream[slot].id, id,
		  (__u64)p->key << 32 | (generation | (p->line & (MERGE_LINES - 1))) << 16 |
			  (p->number & 0xffff));
	return MERGE_AGAIN;
}

/* Whether a stream has been opened since the packet looked. */
merge_inline int merge_has_opened(struct merge *m, const struct merge_packet *p)
{
	__u64 newest = p->newest & ~MERGE_PENDING;

	if (MERGE_LOAD(m->newest) != newest)
		return 1;
	return p->newest & MERGE_PENDING &&
	       merge_is_opened(MERGE_LOAD(m->stream[newest & (MERGE_STREAMS - 1)].id), newest);
}

#endif
