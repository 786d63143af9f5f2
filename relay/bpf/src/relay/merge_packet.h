/* A packet on its way to a verdict, and what its number says beside others. */
#ifndef MERGE_PACKET_H
#define MERGE_PACKET_H

#include "merge_layout.h"

#ifndef MERGE_LOAD	/* the checker brings its own */
#define MERGE_LOAD(place) (*(volatile __u64 *)&(place))
#define MERGE_STORE(place, value) (*(volatile __u64 *)&(place) = (value))
#define MERGE_CAS(place, from, to) __sync_val_compare_and_swap(&(place), from, to)
#define MERGE_ADD(place, count) __sync_fetch_and_add(&(place), count)
#endif

#ifndef MERGE_PACKET_MORE	/* what MERGE_BLOCK finds in `p`, if it needs to */
#define MERGE_PACKET_MORE
#endif

#define merge_inline static inline __attribute__((always_inline))

#define MERGE_SWAPS 40		/* more than the 33 that a word can change, and its replacement */
#define MERGE_MOVES 20		/* tries to move an end of a stream: at each that fails another has moved it */
#define MERGE_TURNS 8
#define MERGE_PATIENCE 3	/* windows after which a leg is no longer with the others */
#define MERGE_CONFIRM 16	/* packets within which a second one confirms a restart */
#define MERGE_RUN 8		/* repeated packets of a leg in a row that are a restart */
#define MERGE_SPREAD 64		/* words that a packet's numbers may lie in */
#define MERGE_STAMP_SHIFT 2	/* a stamp's time is in units of 4 ns: 17 s */
#define MERGE_STAMP_MARK 8	/* in its number, where no stamped one has a bit: it is no former version's */
#define MERGE_NUMBER_BITS 48
#define MERGE_NUMBER_MASK 0xffffffffffffull
#define MERGE_OPENER_SHIFT 16	/* an opener's time is in units of 65 us */
#define MERGE_OPENER_APART (1 << 15)	/* 2 s: what came later may have been judged before */
#define MERGE_PROBES 32		/* entries that may be a key's cell */
#define MERGE_NONE MERGE_STREAMS
#define MERGE_PENDING (1ull << 63)	/* in `newest`: its stream had not been opened yet */
#define MERGE_HELD MERGE_STREAMS	/* likewise: what came of it before it was opened did not pass */

/* Of a stream: the newest before packets that came alone far ahead, or one of those; 0: none came. Another name in
 * merge_layout.h would part an upgrade from what the version before counted.
 */
#define MERGE_WAS pad[0]

enum merge_verdict {
	MERGE_FIRST,		/* pass it on */
	MERGE_DUPLICATE,	/* another leg was first */
	MERGE_REPEATED,		/* this leg itself brought it before */
	MERGE_LATE,		/* further behind than what is remembered */
	MERGE_STRAY,		/* not of this stream, or not yet known to be its restart */
	MERGE_EXCEEDED,		/* of one stream more than there is room for */
	MERGE_VERDICTS,
	/* and on the way there */
	MERGE_CLAIM = MERGE_VERDICTS,
	MERGE_OPEN,
	MERGE_REOPEN,		/* what came before it was held back */
	MERGE_AGAIN,
	MERGE_UNNUMBERED,	/* judged by its payload, which passes once in a window */
};

struct merge_packet {
	__u64 number;		/* its first one */
	__u64 now_ns;
	__u64 at;		/* the number, extended to 48 bits of its stream; found */
	__u64 newest;		/* of the merge, before its streams were looked at */
	__u32 key;
	__u32 line;
	__u32 merge;		/* the rule's entry of `merges` */
	__u32 cell;		/* that of its key; found */
	__u32 count;		/* numbers that it takes up; 0: a heartbeat */
	__u32 width;		/* bits of a number: 16, 32, 48 */
	__u32 slot;		/* of its stream; found */
	__u32 generation;	/* the same */
	__u32 still;		/* its leg repeats this number: the stream's slot, plus one */
	__u16 once;		/* of a payload: it passes once, whichever leg brings it */
	__u16 claimed;		/* the number 0, as one of its stream: verdict, plus one */
	__u16 length;		/* of its payload */
	__u16 fresh;		/* of its numbers, that nobody had brought; found */
	__u16 brought;		/* and that its leg had not; found */
	__u16 cut;		/* another leg has cut the same into packets differently; found */
	MERGE_PACKET_MORE
};

/* How far `a` is ahead of `b`, in a sequence that wraps after `width` bits. */
merge_inline __s64 merge_ahead(__u64 a, __u64 b, __u32 width)
{
	__u32 rest = (64 - width) & 63;

	return (__s64)((a - b) << rest) >> rest;
}

/* Whether nothing came for so long. CPUs may be a tick apart. */
merge_inline int merge_is_over(__u64 since, __u64 now, __u64 time)
{
	return (__s64)(now - since) > (__s64)time;
}

/* Notes a time, if it is later than what stands there. */
merge_inline void merge_see(__u64 *place, __u64 now)
{
	if ((__s64)(now - MERGE_LOAD(*place)) > 0)
		MERGE_STORE(*place, now);
}

merge_inline __s64 merge_reach(const struct merge *m)
{
	return (((__u64)MERGE_WORDS << (m->blocks_log & 15)) - 1) << 3;
}

/* A stream's id: key 32, generation 16, lower bits of the number that it began with 16. Generation 0: none. */
merge_inline __u32 merge_generation(__u64 id)
{
	return id >> 16 & 0xffff;
}

/* A generation counts in its upper bits; below them stands the leg that opened the stream. `newest` has
 * it without.
 */
merge_inline __u32 merge_next(__u32 generation)
{
	generation = (generation + MERGE_LINES) & 0xffff;
	return generation ? generation : MERGE_LINES;
}

/* Whether the stream that `newest` tells of has been opened. */
merge_inline int merge_is_opened(__u64 id, __u64 newest)
{
	return !((merge_generation(id) ^ newest >> 8) & 0xffff & ~(__u64)(MERGE_LINES - 1));
}

/* Whether that of this place has not been: the one before is over, and `seen_ns` none of its own. */
merge_inline int merge_is_pending(const struct merge_packet *p, __u32 slot)
{
	return p->newest & MERGE_PENDING && slot == (p->newest & (MERGE_STREAMS - 1));
}

merge_inline int merge_is_later(__u32 generation, __u32 than)
{
	return (__s16)(generation - than) > 0;
}

/* A number with a digest of its key; never 0. */
merge_inline __u64 merge_mark(const struct merge_packet *p)
{
	__u64 digest = (p->key ^ p->key >> 16) & 0xffff;

	return (digest << 48 | (p->number & MERGE_NUMBER_MASK)) + 1;
}

merge_inline int merge_near(const struct merge_packet *p, __u64 from, __s64 least, __s64 most)
{
	__s64 ahead;

	if (!from || ((merge_mark(p) - 1) ^ (from - 1)) >> 48)
		return 0;
	ahead = merge_ahead(p->number, from - 1, p->width);
	return ahead >= least && ahead <= most;
}

/* How far apart the numbers of packets are at most that confirm each other. */
merge_inline __s64 merge_most(const struct merge_packet *p)
{
	return MERGE_CONFIRM * (p->count & 0xffff);
}

/* Whether a leg goes on from where it was. The generation in `from` is none of the number's bits. */
merge_inline int merge_goes_on(const struct merge_packet *p, __u64 from, __s64 least, __s64 most)
{
	__s64 ahead = merge_ahead(p->number, from, p->width);

	return from && ahead >= least && ahead <= most;
}

merge_inline __u64 merge_span(__u64 first, __u64 last)
{
	return ((last - first) & MERGE_NUMBER_MASK) + 1;
}

#endif
