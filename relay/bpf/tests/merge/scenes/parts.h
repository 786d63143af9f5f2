/* Packets that take up several numbers or are cut differently, and datagrams in fragments. */
#ifndef SCENES_PARTS_H
#define SCENES_PARTS_H

static struct packet of_several(__u32 line, __u64 number, __u32 count, __u32 index)
{
	struct packet p = copy(line, 7, number, index, 1000);

	p.count = count;
	return p;
}

static void several_lines(void)
{
	begin(2, 2);
	m.format.count_bytes = 2;
	width = 48;
}

/* Of packets with many numbers the second one confirms, too. */
static void a_jump_of_several_numbers(void)
{
	several_lines();
	for (int l = 0; l < 2; l++) {
		struct packet p = of_several(l, 500, 18, 0);

		judge(&p);
	}
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 3; i++)
			put(l, of_several(l, 20000 + 18 * i, 18, i));
}


/* The same packets, whose numbers lie in several words. */
static void many_numbers(void)
{
	several_lines();
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, of_several(l, 500 + 12 * i, 12, i));
}

/* Each has numbers that others have, and some of its own. */
static void cut_differently(void)
{
	struct packet p;

	several_lines();
	p = of_several(0, 500, 10, 0);
	judge(&p);
	put(0, of_several(0, 510, 10, 0));
	put(1, of_several(1, 495, 10, 0));
	put(1, of_several(1, 505, 10, 0));
}

/* All numbers are among those that passed, and those that nobody brought before are counted. */
static void check_several(void)
{
	check_scene();
	if (lost_on_all())
		fail("lost", lost_on_all(), 0);
}

/* Of those that are cut differently each number leaves at least once. */
static void check_cut(void)
{
	bool passed[32] = { 0 };

	memset(passed + 5, true, 10);
	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++)
			if (queue[c][i].verdict == MERGE_FIRST)
				memset(passed + queue[c][i].number - 495, true, queue[c][i].count);
	for (int i = 0; i < 25; i++)
		if (!passed[i])
			fail("no packet with a number passed", 495 + i, 0);
	if (lost_on_all())
		fail("lost", lost_on_all(), 0);
}

/* A copy meets the stamp of a former version's program: number 16, time 48. */
static void a_former_stamp(void)
{
	begin(2, 2);
	came(0, 7, 512, 1000);
	for (int b = 0; b < BLOCKS; b++)
		for (int i = 0; i < MERGE_STAMPS; i++)
			if (blocks[b].stamp[i])
				blocks[b].stamp[i] = 512ull << MERGE_NUMBER_BITS | 5;
	put(0, copy(0, 7, 513, 0, 1000));
	put(1, copy(1, 7, 512, INDEXES, 1000));
}

static void check_stamp(void)
{
	check_scene();
	if (m.line[1].cut || m.line[1].skew_max_ns)
		fail("differently cut, or late", m.line[1].cut, 0);
}

/* Packets under one number that differ in length. */
static void lengths_differ(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++) {
		struct packet p = copy(l, 7, 512, 0, 1000);

		p.length = 100 + l;
		put(l, p);
	}
}

/* Where one is judged while the other has not yet said its length, nobody knows. */
static void check_lengths(void)
{
	__u64 cut = m.line[0].cut + m.line[1].cut;

	check_scene();
	if (cut != 1 && !preemptions)
		fail("differently cut", cut, 1);
}

/* Of a packet's two fragments, the first or the last. */
static struct packet fragment(struct packet p, bool is_last)
{
	p.piece = is_last ? 1000ull << 16 | PIECE_LAST | 500 : 1000;
	return p;
}

/* Each line brings both fragments of a datagram. */
static void fragments(void)
{
	begin(2, 2);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, fragment(copy(l, 7, 500, 0, 1000), i));
}

/* Two lines bring those of one that a third has brought whole, more than a few windows ago. */
static void fragments_far_apart(void)
{
	__u64 at = 1000;

	begin(2, 3);
	for (int i = 0; i < 2; i++) {
		struct packet p = fragment(copy(2, 7, 500, 0, at), i);

		judge(&p);
	}
	for (; at * UNIT < 1000 * UNIT + (8ull << MERGE_TICK_SHIFT); at += WINDOW / UNIT / 2)
		came(2, 7, 501, at);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, fragment(copy(l, 7, 500, INDEXES, at), i));
}

/* A 0 in fragments that one line brought before the sequence had come round to it, the others as one of it. */
static void fragments_of_0(void)
{
	begin(2, 3);
	m.format.by = MERGE_BY_SEQUENCE;
	for (int i = 0; i < 3; i++) {
		struct packet p = zero(2, 0, 1000);

		if (i < 2)
			p = fragment(p, i);
		else
			p = copy(2, 7, 65535, 0, 1000);
		judge(&p);
	}
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			put(l, fragment(zero(l, INDEXES, 1000), i));
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 2; i++)
			queue[l][i].hash = HASH(77);
}

/* It passes whole by one of them. */
static void check_fragments(void)
{
	int whole = 0;

	for (int c = 0; c < cpus; c++)
		whole += queue[c][0].verdict == MERGE_FIRST && queue[c][1].verdict == MERGE_FIRST;
	if (whole != 1)
		fail("times that a datagram passed whole", whole, 1);
}

#endif
