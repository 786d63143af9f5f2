/* Sequenced packets, what stands outside their sequence, and several numbers of one packet. */
#ifndef SCENES_SEQUENCES_H
#define SCENES_SEQUENCES_H

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
		p.index = 2;	/* another under the same number */
		p.hash = HASH(78);
		put(l, p);
		put(l, copy(l, 7, 501, 1, 1001));
	}
}

#endif
