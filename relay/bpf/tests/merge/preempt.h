/* Every schedule with up to so many preemptions, over short scenes. */
#ifndef PREEMPT_H
#define PREEMPT_H

#include "packets.h"

#define INDEXES 16
#define WINDOW (50 * UNIT)
#define HASH(n) ((__u64)(n) << MERGE_DIGEST_SHIFT | 5)

static int preempted_at[8], preemptions, position;

static bool leaves_where_told(void)
{
	int here = position++;

	for (int i = 0; i < preemptions; i++)
		if (preempted_at[i] == here)
			return true;
	return false;
}

static __u32 width = 16;
static __u64 first_generation;

static struct packet copy(__u32 line, __u32 key, __u64 number, __u32 index, __u64 at)
{
	return (struct packet){
		.line = line, .key = key, .number = number, .index = index, .at_ns = at * UNIT, .count = 1,
		.width = width,
	};
}

static void came(__u32 line, __u32 key, __u64 number, __u64 at)
{
	struct packet p = copy(line, key, number, 0, at);

	judge(&p);
}

static void begin(int on_cpus, __u32 lines)
{
	prepare(on_cpus, lines, 0, WINDOW);
	m.newest = first_generation;
	by_payload = false;
	width = 16;
}

/* Scenes: what was before, and what comes to each CPU. */
static void first_ever(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 7, 100, 0, 1000));
}

static void around_the_wrap(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++)
			put(l, copy(l, 7, (65534 + i) & 0xffff, i, 1000));
}

static void around_the_wrap_of_48(void)
{
	begin(2, 2);
	width = 48;
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, (MERGE_NUMBER_MASK + i) & MERGE_NUMBER_MASK, i, 1000));
}

static void crossed(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 500 + (i ^ l), i ^ l, 1000));
}

static void a_word_is_replaced(void)
{
	begin(2, 2);
	for (int i = 0; i < 4; i++)
		came(i & 1, 7, 500 + 40 * (i >> 1), 1000);
	for (int l = 0; l < 2; l++) {
		put(l, copy(l, 7, 566, 0, 1001));
		put(l, copy(l, 7, 574, 1, 1001));
	}
}

static void a_late_copy_meets_the_turn(void)
{
	begin(2, 2);
	for (int i = 0; i < 60; i++)
		came(0, 7, 500 + i, 1000);
	put(0, copy(0, 7, 568, 0, 1001));
	put(0, copy(0, 7, 569, 1, 1001));
	put(1, copy(1, 7, 504, INDEXES, 1001));
	put(1, copy(1, 7, 569, 1, 1001));
}

static void another_source(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 9, 20000 + i, i, 1001));
}

static void another_source_while_one_lags(void)
{
	begin(2, 2);
	came(0, 7, 500, 1000);
	came(1, 7, 500, 1000);
	came(0, 7, 501, 1000);
	put(0, copy(0, 9, 20000, 0, 1001));
	put(0, copy(0, 9, 20001, 1, 1001));
	put(1, copy(1, 7, 502, 2, 1001));
	put(1, copy(1, 9, 20001, 1, 1001));
}

static void a_jump_ahead_while_one_lags(void)
{
	begin(2, 2);
	came(0, 7, 500, 1000);
	came(1, 7, 500, 1000);
	came(0, 7, 501, 1000);
	put(0, copy(0, 7, 20000, 0, 1001));
	put(0, copy(0, 7, 20001, 1, 1001));
	put(1, copy(1, 7, 502, 2, 1001));
	put(1, copy(1, 7, 20000, 0, 1001));
}

static void a_jump_back(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 20000, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 100 + i, i, 1001));
}

static void a_jump_back_while_one_lags(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 20000, 1000);
	came(0, 7, 100, 1001);	/* told of it */
	put(0, copy(0, 7, 101, 0, 1001));
	put(0, copy(0, 7, 102, 1, 1001));
	put(1, copy(1, 7, 20001, 2, 1001));
	put(1, copy(1, 7, 101, 0, 1001));
}

static void a_step_back_after_silence(void)
{
	begin(2, 2);
	for (int i = 0; i < 20; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, 500 + i, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 505 + i, i, 1200 + l));
}

static void it_goes_on_after_silence(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 501 + i, i, 1200 + l));
}

static void a_jump_after_silence(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 30000 + i, i, 1200 + l));
}

static void repeats(void)
{
	begin(2, 2);
	for (int i = 0; i < 2; i++) {
		put(0, copy(0, 7, 500, 0, 1000));
		put(1, copy(i, 7, 500, 0, 1000));
	}
}

static void one_line_on_two_cpus(void)
{
	begin(2, 2);
	came(0, 7, 499, 1000);
	put(0, copy(0, 7, 500, 0, 1001));
	put(0, copy(1, 7, 501, 1, 1001));
	put(1, copy(0, 7, 501, 1, 1001));
	put(1, copy(1, 7, 500, 0, 1001));
}

static void three_lines(void)
{
	begin(3, 3);
	for (int l = 0; l < 3; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 500 + i, i, 1000));
}

static void four_lines(void)
{
	begin(4, 4);
	for (int l = 0; l < 4; l++)
		put(l, copy(l, 7, 500, 0, 1000));
}

static void two_sources_at_once(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7 + (i ^ l), 500 + 1000 * (i ^ l), i ^ l, 1000));
}

static void two_sources_of_one_line(void)
{
	begin(2, 2);
	for (int c = 0; c < 2; c++)
		for (int i = 0; i < 2; i++)
			put(c, copy(0, 7 + c, 500 + i, 2 * i + c, 1000));
}

/* From the last generation a jump leads to the first; what a line brings that does not follow passes too. */
static void generations_begin_anew(void)
{
	begin(2, 2);
	m.newest = (0x10000 - MERGE_LINES) << 8;
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	came(0, 7, 20000, 1001);
	came(1, 7, 501, 1040);
	came(0, 7, 20001, 1065);
	put(0, copy(0, 7, 20002, 0, 1070));
	put(1, copy(1, 7, 502, 1, 1070));
}

/* Where they are opened others were, long ago, of a line that is away. */
static void two_sources_take_over_at_once(void)
{
	begin(2, 2);
	for (int i = 0; i < 4; i++)
		came(1, 20 + i, 500, 1000 + 20 * i);
	for (int c = 0; c < 2; c++)
		for (int i = 0; i < 2; i++)
			put(c, copy(0, 7 + c, 500 + i, 2 * i + c, 1300));
}

/* Each line brings a stream of its own: one of them is taken, whole or from where it was first. */
static void two_strangers_at_once(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7 + l, 500 + i, i, 1000 + i));
}

static void two_more_sources_at_once(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 3, 9, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++)
			put(l, copy(l, 7 + ((i & 1) ^ l), 500 + i, (i << 1) + ((i & 1) ^ l), 1001));
}

/* The entry that one may have as its cell is the other's. */
static void two_sources_want_one_cell(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 3, 9, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7 << (i ^ l), 500, i ^ l, 1001));
}

static void a_place_is_taken_over(void)
{
	begin(2, 2);
	for (int i = 0; i < 4; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, 500 + 8000 * i, 1000 + 20 * i);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 40000 + i, i, 1090));
}

/* What is taken over is where the source was before. */
static void it_goes_back_to_where_it_once_was(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int i = 0; i < 2; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, 8500 + 4000 * i, 1010 + 10 * i);
	for (int l = 0; l < 2; l++)
		came(l, 7, 20000, 1080);
	came(0, 7, 510, 1090);	/* told of it */
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 511 + i, i, 1090));
}

static void a_line_that_was_away_comes_back_at_a_restart(void)
{
	begin(2, 2);
	for (int i = 0; i < 40; i++)
		for (int l = 0; l < (i ? 1 : 2); l++)
			came(l, 7, 500 + i, 1000 + 5 * i);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 9, 20000 + i, i, 1200));
}

static void check_scene(void);

/* And the stream that was there is booked once. */
static void check_place(void)
{
	check_scene();
	if (lost_on_all())
		fail("lost", lost_on_all(), 0);
	for (int l = 0; l < 2; l++)
		if (missed_by(l) != counted(l, MERGE_STRAY))
			fail("missed", missed_by(l), counted(l, MERGE_STRAY));
}

/* So many packets in a row that both brought before; the eighth is a restart. */
static void come_again(int count)
{
	begin(2, 2);
	for (int i = 0; i < 20; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, 500 + i, 1000);
	for (int i = 0; i < count; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, 500 + i, 1001);
}

static void it_begins_anew(void)
{
	come_again(7);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 507 + i, i, 1001));
}

static void a_tail_comes_again(void)
{
	come_again(5);
	for (int l = 0; l < 2; l++) {
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 505 + i, INDEXES, 1001));
		put(l, copy(l, 7, 520, 0, 1001));
	}
}

static void a_tail_comes_again_in_parts(void)
{
	come_again(7);
	for (int l = 0; l < 2; l++)
		came(l, 7, 520, 1001);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 507 + i, INDEXES, 1001));
}

/* The generation after the last one is the first. */
static void it_begins_anew_in_the_first_generation(void)
{
	first_generation = (0x10000 - MERGE_LINES) << 8;
	come_again(7);
	first_generation = 0;
	for (int l = 0; l < 2; l++)
		for (int i = l; i < 2 + l; i++)
			put(l, copy(l, 7, 507 + i, i, 1001));
}

/* What the line that lags still brings of the numbers before has passed. */
static void it_begins_anew_while_one_lags(void)
{
	begin(2, 2);
	for (int i = 0; i < 20; i++)
		for (int l = 0; l < (i < 12 ? 2 : 1); l++)
			came(l, 7, 500 + i, 1000);
	for (int i = 0; i < 7; i++)
		came(0, 7, 500 + i, 1001);
	put(0, copy(0, 7, 507, 0, 1001));
	put(0, copy(0, 7, 508, 1, 1001));
	put(1, copy(1, 7, 512, INDEXES, 1001));
	put(1, copy(1, 7, 513, INDEXES, 1001));
}

/* One packet from elsewhere on one line: not even what follows it is told twice. */
static void a_strange_packet(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	put(0, copy(0, 7, 30000, INDEXES, 1001));
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 501 + i, i, 1001));
}

/* Likewise from where the stream was long ago. */
static void a_packet_from_where_it_once_was(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int l = 0; l < 2; l++)
		came(l, 7, 20000, 1080);
	put(0, copy(0, 7, 510, INDEXES, 1090));
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 7, 20001, 0, 1090));
}

static void begin_sequence(__u32 bits)
{
	begin(2, 2);
	m.format.by = MERGE_BY_SEQUENCE;
	width = bits;
}

/* What stands outside the sequence passes once by its payload. */
static void outside_the_sequence(void)
{
	struct packet p;

	begin_sequence(32);
	for (int l = 0; l < 2; l++)
		came(l, 7, 5000000, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++) {
			p = copy(l, 7, i == 1 ? 5000001 : 0, i, 1001);
			p.hash = HASH(77 + i);
			put(l, p);
		}
}

/* Sequenced packets from a number on, each line's on a CPU. */
static void sequenced_from(__u32 bits, __u64 first)
{
	struct packet p;

	begin_sequence(bits);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++) {
			p = copy(l, 7, (first + i) & ((1ull << bits) - 1), i, 1000);
			p.hash = HASH(77 + i);
			put(l, p);
		}
}

/* 0 comes before the stream is there, while it is being opened, and after. */
static void the_sequence_begins_with_0(void)
{
	sequenced_from(32, 0);
}

/* Here 0 is a number as any other. */
static void the_sequence_comes_round_to_0(void)
{
	sequenced_from(16, 65535);
}

/* The other line brings what was before the stream's first, to both sides of 0. */
static void the_sequence_began_before_0(void)
{
	sequenced_from(16, 65535);
	for (int i = 0; i < 2; i++)
		queue[0][i] = queue[0][i + 1];
	queued[0] = 2;
}

static struct packet zero(__u32 line, __u32 index, __u64 at)
{
	struct packet p = copy(line, 7, 0, index, at);

	p.hash = HASH(77 + index);
	return p;
}

/* What stands outside it comes as the sequence begins near 0. */
static void outside_as_the_sequence_begins(void)
{
	begin_sequence(32);
	put(0, copy(0, 7, 1, 0, 1000));
	for (int i = 1; i < 3; i++)
		put(1, zero(1, i, 1000));
}

/* And when it has begun there. */
static void outside_a_sequence_near_0(void)
{
	begin_sequence(32);
	for (int l = 0; l < 2; l++)
		came(l, 7, 1, 1000);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, zero(l, i, 1001));
}

/* The sequence that 0 would be of is over, another goes on. */
static void outside_a_sequence_that_is_over(void)
{
	begin_sequence(16);
	for (int i = 0; i < 2; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, i ? 20000 : 65534, i ? 1080 : 1000);
	put(0, zero(0, 0, 1090));
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 7, 20001, 1, 1090));
}

/* Eight differing payloads have come under one number, and the ninth and tenth do. */
static void a_number_that_stands_still(void)
{
	struct packet p;

	begin(2, 2);
	for (int i = 0; i < 12; i++)
		for (int l = 0; l < 2; l++) {
			p = copy(l, 7, 500, i == 11 ? 1 : 0, i == 11 ? 1001 : 1000);
			p.hash = HASH(i) ^ i;
			if (i < 10)
				judge(&p);
			else
				put(l, (p.index = i - 10, p));
		}
}

static void a_stranger(void)
{
	begin(2, 3);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int i = 0; i < 2; i++) {
		put(0, copy(i, 7, 501, 0, 1001));
		put(1, copy(2, 9, 600 + i, INDEXES, 1001));
	}
}

static void several_numbers(void)
{
	struct packet p;

	begin(2, 2);
	m.format.count_bytes = 2;
	width = 48;
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++) {
			p = copy(l, 7, 500 + 3 * i, i, 1000);
			p.count = 3;
			put(l, p);
		}
}

static void heartbeats(void)
{
	struct packet p;

	begin(2, 2);
	for (int l = 0; l < 2; l++) {
		p = copy(l, 7, 501, 0, 1001);
		p.count = 0;
		put(l, p);
		put(l, copy(l, 7, 501, 1, 1001));
	}
}

static void payload(int on_cpus)
{
	begin(on_cpus, 2);
	by_payload = true;
	m.window_ns = 3ull << MERGE_TICK_SHIFT;
}

#define TICKS(n) ((__u64)(n) << MERGE_TICK_SHIFT)

static struct packet content(__u32 line, __u64 digest, __u32 index, __u64 tick)
{
	struct packet p = copy(line, 0, HASH(digest), index, 0);

	p.at_ns = TICKS(tick);
	return p;
}

static void same_payload(void)
{
	payload(2);
	for (int l = 0; l < 2; l++)
		put(l, content(l, 77, 0, 100));
}

static void payloads_crossed(void)
{
	payload(2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, content(l, 77 + (i ^ l), i ^ l, 100));
}

/* A word is forgotten between the CPUs' looks at it: one is a tick behind. */
static void a_payload_is_forgotten(void)
{
	payload(2);
	for (int i = 0; i < 2; i++) {
		struct packet p = content(0, 1 + i, 0, 96 - i);

		judge(&p);
	}
	for (int l = 0; l < 2; l++)
		put(l, content(l, 77, 0, 100 - l));
}

static void payloads_of_one_line_on_two_cpus(void)
{
	payload(3);
	put(0, content(0, 77, 0, 100));
	put(1, content(1, 77, 0, 100));
	put(2, content(0, 78, 1, 100));
	put(1, content(1, 78, 1, 100));
}

/* Reflected: whoever brings a payload, and however often, it passes once. */
static void reflected(int on_cpus)
{
	payload(on_cpus);
	m.format.by = MERGE_BY_ONCE;
}

static void the_same_reflected(void)
{
	reflected(3);
	for (int i = 0; i < 3; i++)
		put(i, content(0, 77, 0, 100));
}

static void crossed_reflected(void)
{
	reflected(2);
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			put(i, content(0, 77 + (i ^ j), i ^ j, 100));
}

static void the_same_again_and_again(void)
{
	reflected(2);
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			put(i, content(0, 77, 0, 100));
}

/* Where there is no room somebody else's makes some. */
static void a_full_bucket(void)
{
	reflected(2);
	for (int i = 0; i < MERGE_WAYS; i++) {
		struct packet p = content(0, 1 + i, 0, 100);

		judge(&p);
	}
	for (int i = 0; i < 2; i++)
		put(i, content(0, 77, 0, 100));
}

/* What makes room for another is counted. */
static void check_full(void)
{
	if (m.unsettled > 2)
		fail("forgotten", m.unsettled, 1);
	m.unsettled = !m.unsettled;
	check_scene();
}

/* All passed once; of what one line alone brought, as the other began, it may be never. */
static void check_brought(bool one_may_be_lost)
{
	__u32 passed[INDEXES] = { 0 }, sent[INDEXES] = { 0 };

	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++) {
			struct packet *p = &queue[c][i];

			if (p->index == INDEXES) {
				if (p->verdict == MERGE_FIRST)
					fail("what must not pass", 1, 0);
				continue;
			}
			sent[p->index]++;
			passed[p->index] += p->verdict == MERGE_FIRST;
		}
	for (int i = 0; i < INDEXES; i++)
		if (passed[i] != !!sent[i] && !(one_may_be_lost && sent[i] == 1 && !passed[i]))
			fail("times that a packet passed", passed[i], !!sent[i]);
	if (m.unsettled)
		fail("unsettled", m.unsettled, 0);
}

static void check_scene(void)
{
	check_brought(false);
}

/* And nothing is told as lost that is not. */
static void check_sequence(void)
{
	check_scene();
	if (lost_on_all())
		fail("numbers lost", lost_on_all(), 0);
}

static void check_begun(void)
{
	check_brought(true);
}

/* And each entry that was taken is one of the rule's, for a key of its own. */
static void check_cells(void)
{
	__u32 taken = 0, listed = 0;

	check_scene();
	for (__u32 i = 1; i < MERGE_RULES; i++) {
		taken += !!merges[i].owner;
		for (__u32 j = 1; j < i; j++)
			if (merges[i].owner && merges[i].owner == merges[j].owner)
				fail("entries of one key", i, j);
	}
	for each_cell(c)
		listed += c != merges;
	if (listed != taken)
		fail("entries of the rule", listed, taken);
}

/* What passes is all that one line brought, and nothing of another. */
static void check_strangers(void)
{
	int passed[MERGE_LINES] = { 0 }, brought[MERGE_LINES] = { 0 }, lines = 0;

	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++) {
			struct packet *p = &queue[c][i];

			brought[p->line]++;
			passed[p->line] += p->verdict == MERGE_FIRST;
		}
	for (int l = 0; l < MERGE_LINES; l++) {
		if (passed[l] && passed[l] != brought[l])
			fail("packets that passed of a line", passed[l], brought[l]);
		lines += !!passed[l];
	}
	if (lines != 1)
		fail("lines that passed", lines, 1);
	if (m.unsettled)
		fail("unsettled", m.unsettled, 0);
}

/* The same payload twice on each line passes twice. */
static void twins(void)
{
	payload(2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, content(l, 77, 0, 100));
}

static void check_twins(void)
{
	int passed = 0;

	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++)
			passed += queue[c][i].verdict == MERGE_FIRST;
	if (passed != 2)
		fail("times that twins passed", passed, 2);
}

static const struct scene {
	const char *name;
	void (*set)(void);
	void (*check)(void);
} scenes[] = {
	{ "the first packet ever on both lines", first_ever, check_scene },
	{ "three numbers around the wrap", around_the_wrap, check_scene },
	{ "48 bits around the wrap", around_the_wrap_of_48, check_scene },
	{ "crossed", crossed, check_scene },
	{ "a word is replaced", a_word_is_replaced, check_scene },
	{ "a late copy meets the turn of the ring", a_late_copy_meets_the_turn, check_scene },
	{ "another source", another_source, check_scene },
	{ "another source while one line lags", another_source_while_one_lags, check_scene },
	{ "a jump ahead while one line lags", a_jump_ahead_while_one_lags, check_scene },
	{ "a jump back", a_jump_back, check_scene },
	{ "a jump back while one line lags", a_jump_back_while_one_lags, check_scene },
	{ "a step back after silence", a_step_back_after_silence, check_scene },
	{ "it goes on after silence", it_goes_on_after_silence, check_scene },
	{ "a jump after silence", a_jump_after_silence, check_scene },
	{ "repeats", repeats, check_scene },
	{ "one line's packets on two CPUs", one_line_on_two_cpus, check_scene },
	{ "three lines", three_lines, check_scene },
	{ "four lines", four_lines, check_scene },
	{ "two sources at once", two_sources_at_once, check_scene },
	{ "two sources of one line at once", two_sources_of_one_line, check_scene },
	{ "generations begin anew", generations_begin_anew, check_scene },
	{ "it begins anew within reach", it_begins_anew, check_scene },
	{ "a tail comes again", a_tail_comes_again, check_scene },
	{ "a tail comes again in parts", a_tail_comes_again_in_parts, check_scene },
	{ "it begins anew in the first generation", it_begins_anew_in_the_first_generation, check_scene },
	{ "a packet from where it once was", a_packet_from_where_it_once_was, check_scene },
	{ "it begins anew while one line lags", it_begins_anew_while_one_lags, check_scene },
	{ "a strange packet", a_strange_packet, check_scene },
	{ "outside the sequence", outside_the_sequence, check_scene },
	{ "the sequence begins with 0", the_sequence_begins_with_0, check_sequence },
	{ "the sequence comes round to 0", the_sequence_comes_round_to_0, check_sequence },
	{ "the sequence began before 0", the_sequence_began_before_0, check_begun },
	{ "outside as the sequence begins", outside_as_the_sequence_begins, check_scene },
	{ "outside a sequence near 0", outside_a_sequence_near_0, check_scene },
	{ "outside a sequence that is over", outside_a_sequence_that_is_over, check_scene },
	{ "a number that stands still", a_number_that_stands_still, check_scene },
	{ "two sources of one line take over", two_sources_take_over_at_once, check_scene },
	{ "two strangers at once", two_strangers_at_once, check_strangers },
	{ "two more sources at once", two_more_sources_at_once, check_cells },
	{ "two sources want one cell", two_sources_want_one_cell, check_cells },
	{ "a place is taken over", a_place_is_taken_over, check_place },
	{ "it goes back to where it once was", it_goes_back_to_where_it_once_was, check_scene },
	{ "a line that was away comes back", a_line_that_was_away_comes_back_at_a_restart, check_scene },
	{ "a stranger", a_stranger, check_scene },
	{ "several numbers in a packet", several_numbers, check_scene },
	{ "heartbeats", heartbeats, check_scene },
	{ "payload: the same", same_payload, check_scene },
	{ "payload: crossed", payloads_crossed, check_scene },
	{ "payload: a word is forgotten", a_payload_is_forgotten, check_scene },
	{ "payload: one line on two CPUs", payloads_of_one_line_on_two_cpus, check_scene },
	{ "payload: twins", twins, check_twins },
	{ "reflected: the same", the_same_reflected, check_scene },
	{ "reflected: crossed", crossed_reflected, check_scene },
	{ "reflected: the same again and again", the_same_again_and_again, check_scene },
	{ "reflected: a full bucket", a_full_bucket, check_full },
};

/* Runs a scene; after each preemption the next CPU that has work goes on. How many points it had. */
static int run_scene(const struct scene *scene, int first)
{
	int at = first;

	scene->set();
	position = 0;
	for (int i = 0; i < cpus; i++) {
		done[i] = 0;
		cpu[i].live = true;
	}
	for (;;) {
		int tries = 0;

		while (!cpu[at].live && tries++ < cpus)
			at = (at + 1) % cpus;
		if (!cpu[at].live)
			break;
		go_on(at);
		at = (at + 1) % cpus;
	}
	schedules++;
	scene->check();
	return position;
}

static void deepen(const struct scene *scene, int first, int depth, int from, int most)
{
	int length;

	preemptions = depth;
	length = run_scene(scene, first);
	if (depth == most)
		return;
	for (int at = from; at < length; at++) {
		preempted_at[depth] = at;
		deepen(scene, first, depth + 1, at + 1, most);
	}
}

/* To see what happened there. */
static void tell(void)
{
	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++)
			printf("  cpu %d line %u key %u number %llu: %u\n", c, queue[c][i].line,
			       queue[c][i].key, queue[c][i].number, queue[c][i].verdict);
	for (int i = 0; i < preemptions; i++)
		printf("  preempted at access %d\n", preempted_at[i]);
	for each_cell(c)
		for (int i = 0; i < MERGE_STREAMS; i++)
			printf("  cell %d stream %d id %llx top %llx base %llx\n", (int)(c - merges), i,
			       c->stream[i].id, c->stream[i].top, c->stream[i].base);
}

static void check_preemptions(int most)
{
	leaves = leaves_where_told;
	on_failure = tell;
	slack = 0;
	for (__u32 i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		__u64 before = schedules;

		scenario = scenes[i].name;
		scenes[i].set();
		for (int first = 0; first < cpus; first++)
			deepen(&scenes[i], first, 0, 0, most);
		printf("%-40s %10llu schedules\n", scenario, schedules - before);
	}
}

#endif
