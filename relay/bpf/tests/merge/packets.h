/* Packets on their way to a merge, and what became of them. */
#ifndef PACKETS_H
#define PACKETS_H

#include "cpus.h"

#define MERGE_CALL static
#define MERGE_MISSING(pointer) 0
#define MERGE_KEEP(verdict)
#define MERGE_NS() (p->now_ns)
#define MERGE_WORDS_LOG 3
#define MERGE_RULES 16
#define MERGE_CELL_BLOCKS 16
#define BLOCKS (32 + MERGE_RULES * (4 + MERGE_CELL_BLOCKS))
#define MERGE_AT(p, index) ((index) < MERGE_RULES ? &merges[index] : NULL)
#define MERGE_RINGS 32
#define MERGE_BLOCK(m, n) ((n) < BLOCKS ? &blocks[n] : NULL)

#include "merge_layout.h"
static struct merge_block blocks[BLOCKS];
static struct merge merges[MERGE_RULES];
#include "merge.h"
#include "merge_fragment.h"

#define UNIT (1 << MERGE_OPENER_SHIFT)	/* ns */

struct packet {
	__u64 at_ns, number;
	__u32 line, key, count, width;
	__u32 index;	/* which packet of the source it is a copy of */
	__u32 verdict;
	__u64 hash;	/* of its payload */
	__u32 length;	/* likewise */
	__u64 piece;	/* of a fragment: where it lies */
};

static struct merge_pieces pieces[MERGE_LINES];	/* of the datagram of which a line brings fragments */

#define PACKETS 65536
static struct packet *queue[CPUS];
static int queued[CPUS], done[CPUS], cpus;
static __u64 slack;	/* how far CPUs may be apart in time */
#define m merges[0]
static bool by_payload;
static const char *scenario = "";

static void (*on_failure)(void);

static void fail(const char *what, __u64 found, __u64 expected)
{
	void (*tells)(void) = on_failure;

	printf("FAILED %s: %s: %llu, expected %llu\n", scenario, what, found, expected);
	on_failure = NULL;	/* it may fail at what is wrong, too */
	if (tells)
		tells();
	exit(1);
}

static __u32 judge_whole(struct merge_packet *p, const struct packet *from)
{
	__u32 verdict;

	if (by_payload)
		return merge_judge_payload(&m, p);
	verdict = merge_judge(&m, p);
	if (verdict == MERGE_UNNUMBERED)
		verdict = merge_judge_unnumbered(&m, p, from->hash);
	return merge_count(&m, p, verdict);
}

static __u32 judge(const struct packet *from)
{
	struct merge_packet p = {
		.number = from->number, .now_ns = from->at_ns, .key = from->key, .line = from->line,
		.count = from->count, .width = from->width, .length = from->length,
	};
	__u32 verdict = MERGE_VERDICTS;

	if (!(from->piece >> 16 & 0xffff))
		verdict = judge_whole(&p, from);
	if (!from->piece)
		return verdict;
	return merge_follow(&m, &p, &pieces[from->line], from->piece, verdict);
}

static void work(int self)
{
	while (done[self] < queued[self]) {
		struct packet *p = &queue[self][done[self]];

		for (int i = 0; slack && i < cpus; i++)
			while (i != self && done[i] < queued[i] &&
			       queue[i][done[i]].at_ns + slack < p->at_ns)
				leave();
		p->verdict = judge(p);
		done[self]++;
	}
}

static void put(int on, struct packet p)
{
	if (!queue[on])
		queue[on] = malloc(PACKETS * sizeof(struct packet));
	if (queued[on] == PACKETS)
		fail("room for packets", PACKETS, PACKETS);
	queue[on][queued[on]++] = p;
}

static void prepare(int on_cpus, __u32 lines, __u32 blocks_log, __u64 window_ns)
{
	cpus = on_cpus;
	memset(queued, 0, sizeof(queued));
	memset(merges, 0, sizeof(merges));
	memset(blocks, 0, sizeof(blocks));
	memset(pieces, 0, sizeof(pieces));
	m.blocks_log = blocks_log;
	m.window_ns = window_ns;
	m.first_place = 1;
	m.places = MERGE_RULES - 1;
	m.streams = 256;
	for (__u32 l = 0; l < lines; l++)
		m.line[l].since_ns = 1;
}

static __u32 cells_seen;

static struct merge *next_cell(const struct merge *c)
{
	if (++cells_seen > MERGE_RULES)
		fail("cells in a circle", cells_seen, MERGE_RULES);
	return (__u32)c->cells ? &merges[(__u32)c->cells - 1] : NULL;
}

/* The rule's entry and its cells. */
#define each_cell(c) (struct merge *c = (cells_seen = 0, merges); c; c = next_cell(c))

/* Numbers from the oldest to the newest of the streams that are there, and of those before. Of a line, where
 * others may have been held back, from its own first.
 */
static __u64 span_of(const struct merge *c, int l)
{
	__u64 span = l < 0 ? c->span : c->line[l].span;

	for (int i = 0; i < MERGE_STREAMS; i++) {
		const struct merge_stream *s = &c->stream[i];
		__u64 first = l < 0 || s->began_ns ? s->base : c->line[l].part[i].first;

		if (s->top && !((s->top ^ first) >> MERGE_NUMBER_BITS))
			span += merge_span(first, s->top);
	}
	return span;
}

static __u64 lost_in(const struct merge *c)
{
	__u64 passed = c->firsts - c->unnumbered;

	for (int l = 0; l < MERGE_LINES && !m.format.count_bytes; l++)
		passed += c->line[l].counts[MERGE_FIRST];
	return span_of(c, -1) - passed;
}

static __u64 lost_on_all(void)
{
	__u64 lost = 0;

	for each_cell(c)
		lost += lost_in(c);
	return lost;
}

static __u64 counted(int l, int verdict)
{
	__u64 count = 0;

	for each_cell(c)
		count += verdict == MERGE_EXCEEDED ? c->line[l].exceeded : c->line[l].counts[verdict];
	return count;
}

/* Of a line that was there from the beginning, when nothing comes any more. */
static __u64 missed_by(int l)
{
	__u64 missed = 0;

	for each_cell(c) {
		const __u64 *counts = c->line[l].counts;

		missed += span_of(c, l) - lost_in(c) -
			  (m.format.count_bytes ? c->line[l].numbers :
			   counts[MERGE_FIRST] + counts[MERGE_DUPLICATE] + counts[MERGE_LATE] -
			   c->line[l].unnumbered);
	}
	return missed;
}

static __u64 streams_begun(void)
{
	__u64 streams = 0;

	for each_cell(c)
		streams += (c->newest >> 8) / MERGE_LINES;
	return streams;
}

#endif
