/* What must be so when a scene is over. */
#ifndef SCENES_CHECKS_H
#define SCENES_CHECKS_H

/* What makes room for another is counted. */
static void check_full(void)
{
	if (m.unsettled > 2)
		fail("forgotten", m.unsettled, 1);
	m.unsettled = !m.unsettled;
	check_scene();
}

static void check_scene(void)
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
		if (passed[i] != !!sent[i])
			fail("times that a packet passed", passed[i], !!sent[i]);
	if (m.unsettled)
		fail("unsettled", m.unsettled, 0);
}

/* What passed as the merge began, and a line did not bring it. */
static void check_begin(void)
{
	check_scene();
	for (int l = 0; l < 2; l++)
		if (m.span - m.line[l].numbers != !l)
			fail("excused", m.span - m.line[l].numbers, !l);
}

/* And nothing is told as lost that is not. */
static void check_sequence(void)
{
	check_scene();
	if (lost_on_all())
		fail("numbers lost", lost_on_all(), 0);
}

/* Likewise where a stranger's packets left, too. */
static void check_ahead(void)
{
	check_scene();
	if ((__s64)lost_on_all() > 0)
		fail("numbers lost", lost_on_all(), 0);
}

/* Up to the newest all that did not come is lost. */
static void check_lost(__u64 lost)
{
	check_scene();
	if (lost_on_all() != lost)
		fail("numbers lost", lost_on_all(), lost);
}

static void check_lost_in_disorder(void)
{
	check_lost(15);
}

static void check_lost_many(void)
{
	check_lost(38);
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

/* The same payload twice on each line passes twice, also as the merge begins. */
static void twins(void)
{
	payload(2);
	for (int l = 0; l < 2; l++)
		m.line[l].since_ns = TICKS(102);
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

#endif
