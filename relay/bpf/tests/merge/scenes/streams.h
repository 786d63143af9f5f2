/* Streams of numbers: their first packets, the wrap, jumps, several sources, and what takes an entry over. */
#ifndef SCENES_STREAMS_H
#define SCENES_STREAMS_H

/* Scenes: what was before, and what comes to each CPU. */
static void first_ever(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 7, 100, 0, 1000));
}

/* Both begin at once, and neither with what the other brings first. */
static void both_begin_at_once(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 7, 100 + l, l, 1000));
}

/* Likewise long after there was anything: further back than what is remembered, and near to that. */
static void both_begin_again(__u64 number)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 20000, 1000);
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 7, number + l, l, 2000));
}

static void both_begin_again_far_back(void)
{
	both_begin_again(100);
}

static void both_begin_again_near(void)
{
	both_begin_again(19990);
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
static void strangers(__u32 key, __u64 number)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, l ? key : 7, (l ? number : 500) + i, i, 1000 + i));
}

static void two_strangers_at_once(void)
{
	strangers(8, 500);
}

/* Its leg begins with what the other has left behind. */
static void a_line_begins_too_late(void)
{
	begin(2, 2);
	for (int i = 0; i < 100; i++)
		came(0, 7, 500 + i, 1000);
	for (int i = 0; i < 2; i++)
		put(0, copy(1, 7, 505 + i, INDEXES, 1001));
	put(1, copy(0, 7, 600, 0, 1001));
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

/* User space takes the rule's entry back from a key while another has a cell. */
static void a_key_is_freed_beside_a_cell(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 3, 9, 1000);
	came(0, 7, 500, 1001);
	m.key = 0;
	put(0, copy(0, 7, 501, 0, 1002));
	put(1, copy(1, 7, 500, INDEXES, 1002));
	put(1, copy(1, 7, 501, 0, 1002));
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

/* The line that was away and a stranger then goes on alone; the other one comes later. */
static void a_line_that_was_away_goes_on_alone(void)
{
	begin(2, 2);
	for (int i = 0; i < 40; i++)
		for (int l = 0; l < (i ? 1 : 2); l++)
			came(l, 7, 500 + i, 1000 + 5 * i);
	came(1, 9, 20000, 1200);
	for (int i = 0; i < 9; i++)
		came(1, 9, 20001 + i, 1400);
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 9, 20010, 0, 1401));
}

/* A line that was away brings again what it had brought, and one that was never there what was before. */
static void strangers_from_behind(void)
{
	begin(3, 3);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 9; i++)
			came(l, 7, 20000 + i, 1000);
	for (int i = 0; i < 60; i++)
		came(0, 7, 20009 + 2 * i, 1000 + 4 * i);
	for (int l = 1; l < 3; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, (l < 2 ? 20003 : 19990) + i, INDEXES, 1240));
	put(0, copy(0, 7, 20129, 0, 1240));
}

static void check_scene(void);

/* None of it is late, as if it were of the stream. */
static void check_behind(void)
{
	check_scene();
	for (int l = 1; l < 3; l++)
		if (counted(l, MERGE_STRAY) != 2)
			fail("stray", counted(l, MERGE_STRAY), 2);
}

/* That misses what came before it. */
static void check_alone(void)
{
	check_scene();
	if (missed_by(0) != 9)
		fail("missed", missed_by(0), 9);
}

/* What the line brought of the next stream, before the other began that, it has not missed. */
static void check_away(void)
{
	check_scene();
	for (int l = 0; l < 2; l++)
		if (missed_by(l) != (l ? 39 : 0))
			fail("missed", missed_by(l), l ? 39 : 0);
}

/* And the stream that was there is booked once. */
static void check_place(void)
{
	check_scene();
	if (lost_on_all())
		fail("lost", lost_on_all(), 0);
	for (int l = 0; l < 2; l++)
		if (missed_by(l))
			fail("missed", missed_by(l), 0);
}

#endif
