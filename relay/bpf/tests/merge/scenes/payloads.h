/* Packets that are told apart by their payload. */
#ifndef SCENES_PAYLOADS_H
#define SCENES_PAYLOADS_H

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

/* Of a bucket without room but for what is forgotten another word becomes level between the CPUs' looks. */
static void a_word_becomes_level(void)
{
	payload(2);
	for (int i = 0; i < MERGE_WAYS; i++) {
		struct packet p = content(0, 1 + i, 0, i < MERGE_WAYS - 1 ? 100 : 90);

		judge(&p);
	}
	put(0, content(1, 2, INDEXES, 100));
	put(0, content(0, 77, 0, 100));
	put(1, content(1, 77, 0, 100));
}

static void payloads_of_one_line_on_two_cpus(void)
{
	payload(3);
	put(0, content(0, 77, 0, 100));
	put(1, content(1, 77, 0, 100));
	put(2, content(0, 78, 1, 100));
	put(1, content(1, 78, 1, 100));
}

/* The merge begins in a running stream; of what passes soon, line 0 has brought the first before. */
static void a_merge_begins(void)
{
	payload(2);
	m.line[0].since_ns = m.line[1].since_ns = TICKS(102);
	put(0, content(0, 77, 1, 100));
	put(0, content(0, 78, 2, 103));
	put(0, content(0, 79, 3, 103));
	put(1, content(1, 76, 0, 100));
	put(1, content(1, 77, 1, 101));
	put(1, content(1, 78, 2, 103));
}

static void joins(int l, __u64 since)
{
	m.line[l].since_ns = since;
	m.line[l].joins = 1;
}

/* Line 1 has another leg, which is behind with one that both have brought, and one that the leg before it has.
 * It brings a third twice.
 */
static void a_leg_is_replaced(void)
{
	const struct packet before[] = {
		content(0, 77, 0, 147), content(1, 77, 0, 147), content(1, 78, 0, 147),
	};

	payload(2);
	for (int i = 0; i < 3; i++)
		judge(&before[i]);
	joins(1, TICKS(148) + MERGE_BEGINS_NS / 2);
	put(0, content(0, 78, INDEXES, 148));
	put(0, content(0, 80, 2, 148));
	for (int i = 0; i < 2; i++) {
		put(1, content(1, 77 + i, INDEXES, 148));
		put(1, content(1, 79, i, 148));
	}
	put(1, content(1, 80, 2, 148));
}

/* Both lines have others, which bring again what either has brought, and then something new. */
static void both_legs_are_replaced(void)
{
	const struct packet before[] = {
		content(0, 77, 0, 147), content(1, 77, 0, 147), content(1, 78, 0, 147), content(0, 79, 0, 147),
	};

	payload(2);
	for (int i = 0; i < 4; i++)
		judge(&before[i]);
	for (int l = 0; l < 2; l++) {
		joins(l, TICKS(148) + MERGE_BEGINS_NS / 2 + l);
		for (int i = 0; i < 4; i++)
			put(l, content(l, 77 + i, i < 3 ? INDEXES : 0, 148));
	}
}

/* What it was behind with as it joined has made it level; what it brings long after is new. */
static void a_leg_that_joined_goes_on(void)
{
	const struct packet before[] = { content(0, 77, 0, 199), content(1, 77, 0, 250) };

	payload(2);
	m.window_ns = TICKS(200);
	joins(1, TICKS(300));
	for (int i = 0; i < 2; i++)
		judge(&before[i]);
	put(0, content(0, 78, 1, 310));
	put(1, content(1, 77, 0, 310));
	put(1, content(1, 78, 1, 310));
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

#endif
