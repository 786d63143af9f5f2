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

#endif
