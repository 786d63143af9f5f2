/* Datagrams in fragments. The first one names its datagram and is judged by that; the others follow it. A
 * leg may bring the first of a datagram and lose another. So a copy passes as long as no leg has brought
 * the datagram whole, and which are whole is remembered like a payload: no leg's fragments shut out those
 * of another that are needed. What comes before its first passes once, by what is in it.
 */
#ifndef MERGE_FRAGMENT_H
#define MERGE_FRAGMENT_H

#include "merge_payload.h"

/* `state` of a struct merge_pieces; above, the square of where the end is, less those of where each piece
 * ends, plus those of where it begins: no piece that comes twice stands for another. Bits 5 to 7 are
 * whoever's who keeps it.
 */
#define PIECES_FATE 0xf		/* verdict of the first fragment, plus one; 0: it has not come */
#define PIECES_END 0x10		/* the last fragment has come */
#define PIECES_MISSING_SHIFT 8
#define PIECES_PASS (MERGE_FIRST + 1)
#define PIECES_NUMBERED (1u << 31)	/* in `name` */

/* A piece: its length 16, where it begins 16, and whether it is the last. */
#define PIECE_LAST (1ull << 32)
#define PIECE_LATER (1ull << 33)	/* native.c's */

/* Judges by `hash` in the table of what passes once; or says whether it is there. */
merge_inline __u32 merge_look_up(struct merge *rule, struct merge_packet *p, __u64 hash, __u32 once, __u32 width)
{
	p->number = hash;
	p->once = once;
	p->width = width;
	return merge_judge_once(rule, p);
}

/* What a datagram is called that has been judged: by its number, if that is none but its own. Such names come
 * in turn, so that each bucket of the table has as many.
 */
merge_inline __u32 merge_name_of(const struct merge *rule, const struct merge_packet *p)
{
	__u64 stream = (p->key * MERGE_PRIME + p->generation * MERGE_PRIME2) >> 40;

	if (rule->format.by >= MERGE_BY_PAYLOAD || p->once || p->claimed)
		return (p->number * MERGE_PRIME) >> 33;
	return PIECES_NUMBERED | (__u32)(p->at + stream * (MERGE_BUCKETS * MERGE_TABLE));
}

/* Judges a fragment of which its leg has brought `d` before: a first one whose datagram's verdict is given,
 * or a later one, MERGE_VERDICTS. The packet's number is the hash of one that comes before its first.
 */
MERGE_CALL int merge_follow(struct merge *rule, struct merge_packet *p, struct merge_pieces *d, __u64 piece,
			    __u32 verdict)
{
	__u32 from = piece >> 16 & 0xffff, to = from + (piece & 0xffff), before, state, fate, name, once, window;
	int is_first, is_copy;

	if (MERGE_MISSING(rule) || MERGE_MISSING(p) || MERGE_MISSING(d))
		return MERGE_FIRST;
	fate = d->state & PIECES_FATE;
	is_first = verdict < MERGE_VERDICTS;
	is_copy = verdict == MERGE_DUPLICATE || verdict == MERGE_REPEATED;
	name = is_first ? merge_name_of(rule, p) : d->name;
	window = merge_ticks(rule->window_ns);
	if (is_copy && fate == PIECES_PASS && d->name == name)
		return verdict;		/* the very same again */
	before = is_first && fate ? 0 : d->state & ~PIECES_FATE;
	state = before - ((to * to - from * from) << PIECES_MISSING_SHIFT);
	if (piece & PIECE_LAST)
		state = (state | PIECES_END) + (to * to << PIECES_MISSING_SHIFT);
	/* Of legs that complete it at once one does. */
	once = state & PIECES_END && !(state >> PIECES_MISSING_SHIFT) ? 1 : MERGE_LOOKS;
	if (!is_first && !fate)
		verdict = merge_look_up(rule, p, p->number, 1, window);
	else if (!is_first && fate != PIECES_PASS)
		return fate - 1;
	else if (!is_first || is_copy || (verdict == MERGE_FIRST && once == 1))
		verdict = merge_look_up(rule, p, name * MERGE_PRIME, once, name & PIECES_NUMBERED ? MERGE_LONG : window);
	if (is_first) {
		d->name = name;
		fate = verdict + 1;
	}
	/* What another leg has brought of the same datagram before its first is there, too. */
	d->state = (verdict == MERGE_FIRST || !fate ? state : before) | fate;
	return verdict;
}

#endif
