/* Where the streams of a packet's key are kept: in its rule's own entry, or in a cell, an entry that is
 * found by the key. Packets take cells, each as the first free one of those that may be the key's, so
 * those that come at once take the same; user space gives them back when nothing came for long.
 */
#ifndef MERGE_CELL_H
#define MERGE_CELL_H

#include "merge_stream.h"

merge_inline __u64 merge_cell_id(const struct merge_packet *p)
{
	return MERGE_CELL | (__u64)(p->merge & 0x3fffffff) << 32 | p->key;
}

merge_inline __u32 merge_spread(const struct merge_packet *p)
{
	__u32 hash = (p->key ^ p->merge * 0x85ebca6bu) * 0x9e3779b1u;

	return (hash ^ hash >> 15) * 0x2c1b3c6du;
}

/* The entry that may be a key's cell, after `i` others: far from them, however many there are. */
merge_inline __u32 merge_place(const struct merge *rule, __u32 hash, __u32 i)
{
	hash += i * 0x9e3779b1u;
	return rule->first_place + (__u32)((__u64)hash * rule->places >> 32);
}

/* Prepares a cell that has just been taken, as any CPU that finds it may, and adds it to its rule's. */
MERGE_CALL int merge_make(struct merge *rule, struct merge *m, const struct merge_packet *p)
{
	__u64 id, head;

	if (MERGE_MISSING(rule) || MERGE_MISSING(m) || MERGE_MISSING(p))
		return 0;
	id = merge_cell_id(p);
	m->format = rule->format;
	m->blocks_log = rule->blocks_log;
	m->first_block = MERGE_RINGS + MERGE_RULES * MERGE_TABLE +
			 (p->cell - rule->first_place) * MERGE_CELL_BLOCKS;
	m->window_ns = rule->window_ns;
	if (MERGE_CAS(m->owner, id, id | MERGE_READY) != id)
		return 0;
	for (int i = 0; i < MERGE_SWAPS; i++) {
		head = MERGE_LOAD(rule->cells);
		MERGE_STORE(m->cells, head & 0xffffffff);
		if (MERGE_CAS(rule->cells, head, ((head >> 32) + 1) << 32 | (p->cell + 1)) == head)
			break;
	}
	return 0;
}

/* Finds the entry of a packet's key; without one the packet counts for its rule's. */
MERGE_CALL int merge_find(struct merge *rule, struct merge_packet *p)
{
	__u64 id, owner;
	__u32 hash;

	if (MERGE_MISSING(rule) || MERGE_MISSING(p))
		return 0;
	hash = merge_spread(p);
	p->cell = p->merge;
	owner = MERGE_LOAD(rule->key);
	if (owner == (1ull << 32 | p->key))
		return 1;
	if (!owner && !MERGE_LOAD(rule->cells))	/* nobody has one: to look would cost memory in every place */
		return 0;
	id = merge_cell_id(p);
	for (__u32 i = 0; i < MERGE_PROBES; i++) {
		__u32 place = merge_place(rule, hash, i);
		struct merge *m = MERGE_AT(p, place);

		if (!m)
			break;
		owner = MERGE_LOAD(m->owner);
		if ((owner & ~MERGE_READY) == id) {
			p->cell = place;
			if (!(owner & MERGE_READY))
				merge_make(rule, m, p);
			return 1;
		}
	}
	return 0;
}

/* Takes an entry for a key that has none. */
MERGE_CALL int merge_take(struct merge *rule, struct merge_packet *p)
{
	__u64 id, owner;
	__u32 hash;

	if (MERGE_MISSING(rule) || MERGE_MISSING(p))
		return MERGE_FIRST;
	hash = merge_spread(p);
	owner = MERGE_LOAD(rule->key);
	if (!owner)
		owner = MERGE_CAS(rule->key, 0, 1ull << 32 | p->key);
	if (!owner || owner == (1ull << 32 | p->key))
		return MERGE_AGAIN;
	id = merge_cell_id(p);
	for (__u32 i = 0; i < MERGE_PROBES && (MERGE_LOAD(rule->cells) >> 32) + 1 < rule->streams; i++) {
		struct merge *m = MERGE_AT(p, merge_place(rule, hash, i));

		if (!m)
			break;
		owner = MERGE_LOAD(m->owner);
		if (!owner)
			owner = MERGE_CAS(m->owner, 0, id);
		if (!owner || (owner & ~MERGE_READY) == id)
			return MERGE_AGAIN;
	}
	return MERGE_EXCEEDED;
}

#endif
