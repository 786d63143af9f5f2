/* A stream that begins anew, and what only looks like it. */
#ifndef SCENES_RESTARTS_H
#define SCENES_RESTARTS_H

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

/* Long enough for a restart, on one line: the stream goes on for both, and does so once. */
static void a_long_tail_comes_again(void)
{
	begin(2, 2);
	for (int i = 0; i < 20; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, 500 + i, 1000);
	for (int i = 0; i < 9; i++)
		came(1, 7, 510 + i, 1001);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++)
			put(l, copy(l, 7, 520 + i, i, 1002));
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

/* That line alone has the last of the numbers before; it is none of those that begin. */
static void it_begins_anew_while_one_has_more(void)
{
	begin(2, 2);
	for (int i = 0; i < 39; i++)
		for (int l = 0; l < (i < 38 ? 2 : 1); l++)
			came(l, 7, 500 + i, 1000);
	for (int i = 0; i < 8; i++)
		came(0, 7, 500 + i, 1001);
	put(0, copy(0, 7, 508, 0, 1001));
	put(1, copy(1, 7, 538, INDEXES, 1001));
	put(1, copy(1, 7, 539, 1, 1001));
	put(1, copy(0, 7, 539, 2, 1001));
}

/* What the line that lags brings after the restart passes, and what it brings before does not. */
static void it_begins_anew_before_one_line_does(void)
{
	come_again(3);
	for (int i = 3; i < 7; i++)
		came(0, 7, 500 + i, 1001);
	for (int l = 0; l < 2; l++)
		for (int i = l ? 0 : 4; i < 6; i++)
			put(l, copy(l, 7, 503 + i, i, 1001));
}

/* The first packets of a restart may be held back, but no line has missed them then. */
static void check_held(int held)
{
	__u32 passed[INDEXES] = { 0 }, sent[INDEXES] = { 0 };

	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++) {
			sent[queue[c][i].index] = 1;
			passed[queue[c][i].index] += queue[c][i].verdict == MERGE_FIRST;
		}
	for (int i = 0; i < INDEXES; i++)
		if (passed[i] > 1 || (i >= held && passed[i] != sent[i]))
			fail("times that a packet passed", passed[i], sent[i]);
	if (lost_on_all())
		fail("lost", lost_on_all(), 0);
	for (int l = 0; l < 2; l++)
		if (missed_by(l))
			fail("missed", missed_by(l), 0);
}

static void check_restart(void)
{
	check_held(4);
}

static void check_jump(void)
{
	check_held(1);
}

/* Both go back to before all that they brought, long after they began. */
static void it_goes_back_to_before_it_began(void)
{
	begin(2, 2);
	for (int i = 0; i < 20; i++)
		for (int l = 0; l < 2; l++)
			came(l, 7, 507 + i, 1000 + 5 * i);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++)
			put(l, copy(l, 7, 500 + i, i, 1096));
}

/* One packet from elsewhere comes twice on one line, and one after it when the stream has gone on. */
static void a_strange_packet(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int i = 0; i < 2; i++)
		put(0, copy(0, 7, 30000, INDEXES, 1001));
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, 501 + i, i, 1001));
	put(0, copy(0, 7, 30001, INDEXES, 1001));
}

/* Two strange packets near each other are a stream, which is over soon; what goes on beside it is not. */
static void a_strange_stream_is_over(void)
{
	begin(2, 2);
	for (int i = 0; i < 16; i++) {
		for (int l = 0; l < 2; l++)
			came(l, 7, 500 + i, 1000 + 5 * i);
		for (int j = 0; !i && j < 2; j++)
			came(0, 7, 30000 + j, 1000);
	}
	put(0, copy(0, 7, 10000, INDEXES, 1080));
	for (int l = 0; l < 2; l++)
		put(l, copy(l, 7, 516, 0, 1080));
}

/* A line jumps in disorder: which of the first two comes first does not matter. */
static void a_jump_in_disorder(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	came(0, 7, 20001, 1001);	/* told of it */
	put(0, copy(0, 7, 20000, 0, 1001));
	put(0, copy(0, 7, 20002, 1, 1001));
	put(1, copy(1, 7, 501, 2, 1001));
}

/* The first two of a jump come to a CPU each: one of them is the second. */
static void a_jump_on_two_cpus(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int i = 0; i < 2; i++)
		put(i, copy(0, 7, 20000 + i, 0, 1001));
	put(1, copy(0, 7, 20002, 1, 1001));
}

static void check_either(void)
{
	int passed[INDEXES] = { 0 };

	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++)
			passed[queue[c][i].index] += queue[c][i].verdict == MERGE_FIRST;
	if (!passed[0] || passed[1] != 1)
		fail("packets of a jump that passed", passed[0], 1);
}

/* What the line brings between them is from before the jump. */
static void a_straggler_amid_a_jump(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i += 2)
			came(l, 7, 500 + i, 1000);
	came(0, 7, 20000, 1001);	/* told of it */
	put(0, copy(0, 7, 501, 0, 1001));
	put(0, copy(0, 7, 20001, 1, 1001));
	put(1, copy(1, 7, 501, 0, 1001));
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

/* A line that has missed all of a jump was long ago near where the next one leads. */
static void miss_a_jump(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	came(0, 7, 540, 1000);
	for (int i = 0; i < 3; i++)
		came(0, 7, 20000 + i, 1080);
}

static void jump_near_to_where_a_line_was(__u64 number)
{
	miss_a_jump();
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, copy(l, 7, number + i, i, 1090));
}

static void a_jump_ahead_of_where_a_line_was(void)
{
	jump_near_to_where_a_line_was(550);
}

static void a_jump_behind_where_a_line_was(void)
{
	jump_near_to_where_a_line_was(470);
}

/* It brings that alone, when all are silent. */
static void a_jump_alone_behind_where_a_line_was(void)
{
	miss_a_jump();
	for (int i = 0; i < 2; i++)
		put(i, copy(1, 7, 470, 0, 1140));
}

/* A line goes on further behind than is remembered: what it brings has passed, also when the other has jumped, or
 * is silent.
 */
static void goes_on_too_far_behind(int jumped, __u64 at)
{
	begin(2, 2);
	came(1, 7, 500, 1000);
	for (int i = 0; i < 20; i++)
		came(0, 7, 500 + 8 * i, 1000);
	for (int i = 0; i < jumped; i++)
		came(0, 7, 20000 + i, 1001);
	for (int i = 0; i < 2; i++)
		put(i, copy(1, 7, 508 + 8 * i, INDEXES, at));
}

static void too_far_behind_a_jump(void)
{
	goes_on_too_far_behind(3, 1002);
}

static void too_far_behind_what_is_over(void)
{
	goes_on_too_far_behind(0, 1060);
}

/* After a pause a stranger's packet comes first: what goes on is no stranger for that. */
static void a_stranger_comes_first_after_a_pause(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	came(0, 7, 20000, 1080);
	for (int i = 0; i < 2; i++)
		put(0, copy(1, 7, 501 + i, i, 1081));
	put(1, copy(0, 7, 502, 1, 1081));
}

/* A stranger comes first after a pause, where the stream jumps to a little later: of that it is one. */
static void a_stranger_where_it_jumps_to(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	came(1, 7, 20040, 1080);
	for (int l = 0; l < 2; l++)
		came(l, 7, 501, 1081);
	for (int i = 0; i < 3; i++)
		came(0, 7, 20000 + i, 1125);
	for (int l = 0; l < 2; l++)
		for (int i = l ? 0 : 3; i < 5; i++)
			put(l, copy(l, 7, 20000 + i, i < 3 ? INDEXES : i, 1135));
}

static void begin_at_a_jump(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int i = 0; i < 4; i++)	/* the first is told of it */
		came(0, 7, 20000 + i, 1001);
}

static void goes_on_from_a_jump(void)
{
	for (int i = 0; i < 2; i++)
		put(0, copy(0, 7, 20004 + i, 1 + i, 1002));
	put(1, copy(1, 7, 20000, 0, 1002));
	put(1, copy(1, 7, 20001, INDEXES, 1002));
}

/* A stranger is so far ahead of where the stream has jumped to that what the line that lags brings of it would
 * be forgotten.
 */
static void a_stranger_ahead_of_a_jump(void)
{
	begin_at_a_jump();
	put(1, copy(1, 7, 20059, 3, 1002));
	goes_on_from_a_jump();
}

static void a_stranger_was_ahead_of_a_jump(void)
{
	begin_at_a_jump();
	came(1, 7, 20059, 1002);
	goes_on_from_a_jump();
}

static void two_strangers_were_ahead_of_a_jump(void)
{
	begin_at_a_jump();
	came(1, 7, 20034, 1002);
	came(1, 7, 20059, 1002);
	goes_on_from_a_jump();
}

/* Single packets with much lost between them are no strangers. */
static void few_packets_far_apart(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	for (int i = 1; i < 3; i++)
		came(0, 7, 500 + 40 * i, 1001);
	put(1, copy(1, 7, 501, INDEXES, 1002));
	put(0, copy(0, 7, 581, 0, 1002));
	put(1, copy(1, 7, 581, 0, 1002));
}

/* One in disorder is the newest again when the stream comes near it. */
static void a_packet_far_ahead_in_disorder(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	came(0, 7, 520, 1001);
	for (int i = 1; i < 4; i++)
		came(0, 7, 500 + i, 1001);
	put(0, copy(0, 7, 504, 0, 1002));
	put(1, copy(1, 7, 504, 0, 1002));
}

/* What a line that lags fills in says nothing of where the stream is. */
static void a_packet_after_many_lost_ones(void)
{
	begin(2, 2);
	for (int i = 0; i < 11; i++)
		for (int l = 0; l < (i < 6 ? 2 : 1); l++)
			came(l, 7, 500 + i, 1000);
	put(0, copy(0, 7, 550, 0, 1001));
	put(1, copy(1, 7, 511, 1, 1001));
}

/* Likewise, and then it brings the newest, too. */
static void a_packet_far_ahead_on_both(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		came(l, 7, 500, 1000);
	put(0, copy(0, 7, 540, 0, 1001));
	put(1, copy(1, 7, 501, 1, 1001));
	put(1, copy(1, 7, 540, 0, 1001));
}

#endif
