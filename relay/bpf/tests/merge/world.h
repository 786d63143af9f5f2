/* Streams of chance over lossy lines: what is sent, and which copies of it come. */
#ifndef WORLD_H
#define WORLD_H

#include "packets.h"

#define NUMBERS 4096
#define SEGMENTS 4
#define SOURCES 2

/* Numbers of one source that go on from each other. */
struct segment {
	__u64 first;
	__u32 key;
	bool held;	/* of what a stranger brought before it was begun */
};

/* One number of a source. */
struct sent {
	struct segment *segment;
	__u64 number;
	__u32 copies[MERGE_LINES];
	__u32 passed;
};

static struct {
	__u32 lines, sources, width, numbers, segments, gap, taken_up;
	__u64 reach, window, jitter, skew[MERGE_LINES], skew_most;
	double loss[MERGE_LINES], repeat;
	int dead;
	bool jumps, outage;
	__u64 strangers[MERGE_LINES];	/* how many packets were held back as those of one */
	struct segment segment[SOURCES][SEGMENTS];
	struct sent sent[SOURCES][NUMBERS];
} world;

static struct packet all[PACKETS];
static int total;

static bool happens(double chance)
{
	return (any() >> 11) * (1.0 / (1ull << 53)) < chance;
}

static __u64 within(__u64 limit)
{
	return limit ? any() % limit : 0;
}

static __u64 masked(__u64 number)
{
	return number & ((1ull << world.width) - 1);
}

/* All that may be in flight fits in the ring and in the window. */
static void make_world(void)
{
	__u32 log = below(3);

	memset(&world, 0, sizeof(world));
	world.lines = one_in(3) ? 3 + below(2) : 2;
	world.sources = one_in(4) ? 2 : 1;
	world.width = (__u32[]){ 16, 16, 32, 48 }[below(4)];
	world.numbers = 200 + below(1000);
	world.segments = one_in(3) ? 2 + below(3) : 1;
	world.taken_up = world.width == 48 && one_in(3) ? 2 + below(3) : 1;
	world.reach = ((8ull << log) - 1) << 3;
	world.jitter = within(world.reach / 4 / world.taken_up);
	for (__u32 l = 0; l < world.lines; l++) {
		if (one_in(2))
			world.skew[l] = within(world.reach / 2 / world.taken_up);
		if (world.skew[l] > world.skew_most)
			world.skew_most = world.skew[l];
		world.loss[l] = one_in(4) ? 0 : below(300) / 1000.0;
	}
	slack = (1 + below(5)) * UNIT;
	world.window = world.skew_most + world.jitter + 2 * (slack / UNIT) + 4;
	world.gap = world.window + 2;
	world.repeat = one_in(3) ? 0.1 : 0;
	world.dead = world.segments == 1 && one_in(6) ? (int)below(world.lines) : -1;
	prepare(1 + below(CPUS), world.lines, log, world.window * UNIT);
	by_payload = false;
	m.format.count_bytes = world.taken_up > 1;
}

static void make_segments(__u32 source)
{
	__u64 number = masked(any());
	__u32 key = any();

	if (one_in(2))
		number = masked(0ull - below(world.numbers));
	for (__u32 i = 0; i < world.segments; i++) {
		if (i && one_in(2)) {
			key = any();
			number = masked(any());
		} else if (i) {
			/* Far from where it was: 16 bits hold all segments that are remembered. */
			__u64 by = 3 * world.reach + world.numbers * world.taken_up + below(2000);

			world.jumps = true;
			by += world.numbers * world.taken_up;
			if (one_in(2))
				by = 0ull - by;
			number = masked(number + by);
		}
		world.segment[source][i] = (struct segment){ number, key };
	}
}

static bool arrives(__u32 line, __u32 i, bool *burst)
{
	/* Of one segment, the beginning and the end come whole: the lines' ranges are the same. */
	if ((int)line == world.dead && i > world.numbers / 3 && i < world.numbers * 2 / 3)
		return false;
	if (*burst) {
		*burst = !one_in(6);
		return !*burst;
	}
	if (!happens(world.loss[line]))
		return true;
	*burst = one_in(5);
	return false;
}

static void make_packets(__u32 source)
{
	bool burst[MERGE_LINES] = { 0 };
	__u32 absent = 0;

	for (__u32 i = 0; i < world.numbers; i++) {
		struct segment *s = &world.segment[source][i * world.segments / world.numbers];
		struct sent *sent = &world.sent[source][i];
		__u32 begins = ((s - world.segment[source]) * world.numbers + world.segments - 1) / world.segments;
		bool came = false;

		sent->segment = s;
		sent->number = masked(s->first + (i - begins) * world.taken_up);
		for (__u32 l = 0; l < world.lines; l++) {
			if (!arrives(l, i, &burst[l]))
				continue;
			came = true;
			sent->copies[l] = 1 + happens(world.repeat);
			for (__u32 c = 0; c < sent->copies[l]; c++) {
				if (total == PACKETS)
					fail("room for packets", total, PACKETS);
				all[total++] = (struct packet){
					/* The second begins when all lines have come. */
					.at_ns = (1000000 + i + source * 2 * world.window + world.skew[l] + within(world.jitter + 1)) * UNIT +
						 below(UNIT),
					.line = l, .key = s->key, .number = sent->number,
					.count = world.taken_up, .width = world.width,
					.index = source * NUMBERS + i,
				};
			}
		}
		absent = came ? 0 : absent + 1;
		/* Nothing came for so long that what follows may be another stream; and where the
		 * numbers jump by little more than what is remembered, one on the brink may pass in both.
		 */
		if (absent * world.taken_up + 8 * world.taken_up > world.reach / 4 || absent > world.window / 4)
			world.outage = true;
	}
}

#endif
