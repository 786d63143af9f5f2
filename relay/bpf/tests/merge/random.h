/* Generated streams over lossy lines under random schedules, against a model of sets. */
#ifndef RANDOM_H
#define RANDOM_H

#include "world.h"

static int stays;
static __u64 sum_packets, sum_passed, sum_duplicates, sum_repeats, sum_lost, sum_missed, sum_restarts, sum_held;
static char name[64];

static bool leaves_now_and_then(void)
{
	return one_in(stays);
}

static int by_time(const void *a, const void *b)
{
	const struct packet *x = a, *y = b;

	return x->at_ns < y->at_ns ? -1 : x->at_ns > y->at_ns;
}

static void run(void)
{
	bool wanders = one_in(3);
	int left;

	qsort(all, total, sizeof(*all), by_time);
	for (int i = 0; i < total; i++)
		put(wanders ? (int)below(cpus) : (int)all[i].line % cpus, all[i]);
	stays = 1 + below(30);
	for (int i = 0; i < cpus; i++) {
		done[i] = 0;
		cpu[i].live = true;
	}
	do {
		int at = below(cpus);

		left = 0;
		if (cpu[at].live)
			go_on(at);
		for (int i = 0; i < cpus; i++)
			left += cpu[i].live;
	} while (left);
	schedules++;
}

static bool is_strange(const struct packet *p)
{
	return p->verdict == MERGE_STRAY || p->verdict == MERGE_LATE;
}

/* A line that nothing came by for long is a stranger to what the others bring: what it brings of the next
 * stream is held back until one of them has begun that.
 */
static bool is_of_a_stranger(const struct packet *p)
{
	const struct segment *segment = world.sent[p->index / NUMBERS][p->index % NUMBERS].segment;
	__u64 patience = MERGE_PATIENCE * m.window_ns;

	if (!is_strange(p))
		return false;
	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++) {
			struct packet *before = &queue[c][i];

			/* Of what is less than that apart another CPU may not have known. */
			if (is_strange(before) || before->at_ns + slack >= p->at_ns)
				continue;
			if (before->line == p->line && before->at_ns + patience >= p->at_ns)
				return false;
			if (world.sent[before->index / NUMBERS][before->index % NUMBERS].segment == segment)
				return false;
		}
	return true;
}

/* What was held back for that is to the model as if it had not come. But its line has not missed it: each
 * accounts for such a stream from its own first number.
 */
static void forget_strangers(void)
{
	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++) {
			struct packet *p = &queue[c][i];

			if (!is_of_a_stranger(p))
				continue;
			world.sent[p->index / NUMBERS][p->index % NUMBERS].segment->held = true;
			world.sent[p->index / NUMBERS][p->index % NUMBERS].copies[p->line]--;
			world.strangers[p->line]++;
		}
}

static void check_passed(void)
{
	__u64 missing = 0, strays = 0, counts[MERGE_LINES][MERGE_VERDICTS] = { 0 };
	__u32 restarts = world.jumps ? world.sources * world.segments : 0;

	for (int c = 0; c < cpus; c++)
		for (int i = 0; i < queued[c]; i++) {
			struct packet *p = &queue[c][i];

			counts[p->line][p->verdict]++;
			strays += is_strange(p);
			if (p->verdict == MERGE_FIRST &&
			    world.sent[p->index / NUMBERS][p->index % NUMBERS].passed++ && !world.outage)
				fail("passed twice", p->number, 1);
		}
	for (__u32 l = 0; l < MERGE_LINES; l++)
		for (int v = 0; v < MERGE_VERDICTS; v++)
			if (counts[l][v] != counted(l, v))
				fail("counted", counted(l, v), counts[l][v]);
	for (__u32 s = 0; s < world.sources; s++)
		for (__u32 i = 0; i < world.numbers; i++) {
			struct sent *sent = &world.sent[s][i];
			__u32 copies = 0;

			for (__u32 l = 0; l < world.lines; l++)
				copies += sent->copies[l];
			missing += copies && !sent->passed;
		}
	/* A jump is believed when it is told twice, and a line that was away when all others are silent. */
	if (missing > strays || (!world.outage && missing > restarts * 3))
		fail("came and did not pass", missing, 0);
	sum_held += missing;
}

/* What a model of sets says, of streams in which nothing was held back. */
static void check_accounts(void)
{
	__u64 lost = 0, missed[MERGE_LINES] = { 0 }, first[MERGE_LINES] = { 0 };
	__u64 distinct[MERGE_LINES] = { 0 }, repeated[MERGE_LINES] = { 0 }, passed = 0, firsts = 0;

	for (__u32 s = 0; s < world.sources; s++)
		for (__u32 i = 0; i < world.numbers;) {
			struct segment *segment = world.sent[s][i].segment;
			__u64 holes = 0;
			bool begun = false, came[MERGE_LINES] = { 0 };

			for (; i < world.numbers && world.sent[s][i].segment == segment; i++) {
				struct sent *sent = &world.sent[s][i];

				for (__u32 l = 0; l < world.lines; l++) {
					distinct[l] += sent->copies[l] > 0;
					repeated[l] += sent->copies[l] > 1;
				}
				passed += sent->passed;
				if (!sent->passed) {
					holes += begun;
					continue;
				}
				begun = true;
				lost += holes;
				holes = 0;
				for (__u32 l = 0; l < world.lines; l++) {
					came[l] |= sent->copies[l] > 0;
					missed[l] += !sent->copies[l] && (came[l] || !segment->held);
				}
			}
		}
	for (__u32 l = 0; l < world.lines; l++) {
		__u64 counts[MERGE_VERDICTS];

		for (int v = 0; v < MERGE_VERDICTS; v++)
			counts[v] = counted(l, v);

		firsts += counts[MERGE_FIRST];
		first[l] = counts[MERGE_FIRST] + counts[MERGE_DUPLICATE];
		if (first[l] != distinct[l])
			fail("first and duplicate", first[l], distinct[l]);
		if (counts[MERGE_REPEATED] != repeated[l])
			fail("repeated", counts[MERGE_REPEATED], repeated[l]);
		if (counts[MERGE_LATE] + counts[MERGE_STRAY] + counts[MERGE_EXCEEDED] != world.strangers[l])
			fail("late or stray", counts[MERGE_LATE] + counts[MERGE_STRAY], world.strangers[l]);
		if (missed_by(l) != missed[l] * world.taken_up)
			fail("missed by a line", missed_by(l), missed[l] * world.taken_up);
		sum_missed += missed[l];
		sum_duplicates += counts[MERGE_DUPLICATE];
		sum_repeats += repeated[l];
	}
	if (firsts != passed)
		fail("passed", firsts, passed);
	/* One that comes far ahead in disorder may be a stranger's: as a stream ends, less may be known. */
	if (world.jitter > MERGE_CONFIRM ? lost_on_all() > lost * world.taken_up : lost_on_all() != lost * world.taken_up)
		fail("lost", lost_on_all(), lost * world.taken_up);
	if (streams_begun() != world.sources * world.segments)
		fail("streams", streams_begun(), world.sources * world.segments);
	sum_lost += lost;
	sum_passed += passed;
}

static void tell_world(void)
{
	printf("  %d CPUs %u lines %u sources %u segments of %u numbers by %u, width %u, reach %llu, window %llu, jitter %llu, slack %llu, dead %d\n",
	       cpus, world.lines, world.sources, world.segments, world.numbers, world.taken_up, world.width,
	       world.reach, world.window, world.jitter, slack / UNIT, world.dead);
	for (__u32 l = 0; l < world.lines; l++)
		printf("  line %u skew %llu loss %.2f counts %llu %llu %llu %llu %llu\n", l, world.skew[l],
		       world.loss[l], m.line[l].counts[0], m.line[l].counts[1], m.line[l].counts[2],
		       m.line[l].counts[3], m.line[l].counts[4]);
	for each_cell(c)
		for (int s = 0; s < MERGE_STREAMS; s++)
			printf("  cell %d stream %d id %llx top %llx base %llx opened %llu\n", (int)(c - merges), s,
			       c->stream[s].id, c->stream[s].top, c->stream[s].base,
			       c->stream[s].opened_ns / UNIT);
}

static void check_random(__u64 runs, __u64 from)
{
	seed = from;
	leaves = leaves_now_and_then;
	on_failure = tell_world;
	scenario = name;
	for (__u64 i = 0; i < runs; i++) {
		snprintf(name, sizeof(name), "random 1 %llu", seed);
		total = 0;
		do {
			make_world();
			for (__u32 s = 0; s < world.sources; s++)
				make_segments(s);
			/* What is remembered are four streams. */
		} while (world.numbers / world.segments < 3 * world.gap);
		for (__u32 s = 0; s < world.sources; s++)
			make_packets(s);
		run();
		if (!world.outage)
			forget_strangers();
		check_passed();
		if (!world.outage && !world.jumps)
			check_accounts();
		if (m.unsettled)
			fail("unsettled", m.unsettled, 0);
		sum_packets += total;
		sum_restarts += world.sources * (world.segments - 1);
	}
	printf("%llu packets: %llu numbers passed once, %llu duplicates, %llu repeats; %llu lost, %llu missed; "
	       "%llu restarts, %llu held back there\n", sum_packets, sum_passed, sum_duplicates, sum_repeats,
	       sum_lost, sum_missed, sum_restarts, sum_held);
}

#endif
