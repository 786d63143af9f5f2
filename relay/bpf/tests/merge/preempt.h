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

#include "scenes/streams.h"
#include "scenes/restarts.h"
#include "scenes/sequences.h"
#include "scenes/payloads.h"
#include "scenes/checks.h"
#include "scenes/parts.h"

static const struct scene {
	const char *name;
	void (*set)(void);
	void (*check)(void);
} scenes[] = {
	{ "the first packet ever on both lines", first_ever, check_scene },
	{ "both lines begin at once", both_begin_at_once, check_cells },
	{ "both lines begin again far back", both_begin_again_far_back, check_scene },
	{ "both lines begin again near", both_begin_again_near, check_scene },
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
	{ "a long tail comes again", a_long_tail_comes_again, check_scene },
	{ "a tail comes again in parts", a_tail_comes_again_in_parts, check_scene },
	{ "it begins anew in the first generation", it_begins_anew_in_the_first_generation, check_scene },
	{ "a packet from where it once was", a_packet_from_where_it_once_was, check_scene },
	{ "a jump ahead of where a line was", a_jump_ahead_of_where_a_line_was, check_scene },
	{ "a jump behind where a line was", a_jump_behind_where_a_line_was, check_scene },
	{ "a jump alone behind where a line was", a_jump_alone_behind_where_a_line_was, check_scene },
	{ "too far behind a jump", too_far_behind_a_jump, check_scene },
	{ "too far behind what is over", too_far_behind_what_is_over, check_scene },
	{ "a stranger comes first after a pause", a_stranger_comes_first_after_a_pause, check_scene },
	{ "a stranger where it jumps to", a_stranger_where_it_jumps_to, check_scene },
	{ "a stranger ahead of a jump", a_stranger_ahead_of_a_jump, check_scene },
	{ "a stranger was ahead of a jump", a_stranger_was_ahead_of_a_jump, check_ahead },
	{ "two strangers were ahead of a jump", two_strangers_were_ahead_of_a_jump, check_ahead },
	{ "few packets far apart", few_packets_far_apart, check_scene },
	{ "a packet far ahead in disorder", a_packet_far_ahead_in_disorder, check_lost_in_disorder },
	{ "a packet after many lost ones", a_packet_after_many_lost_ones, check_lost_many },
	{ "a packet far ahead on both lines", a_packet_far_ahead_on_both, check_lost_many },
	{ "it begins anew while one line lags", it_begins_anew_while_one_lags, check_scene },
	{ "it begins anew while one line has more", it_begins_anew_while_one_has_more, check_scene },
	{ "it begins anew before one line does", it_begins_anew_before_one_line_does, check_restart },
	{ "it goes back to before it began", it_goes_back_to_before_it_began, check_jump },
	{ "a jump in disorder", a_jump_in_disorder, check_scene },
	{ "a jump of one line on two CPUs", a_jump_on_two_cpus, check_either },
	{ "a straggler amid a jump", a_straggler_amid_a_jump, check_scene },
	{ "a strange packet", a_strange_packet, check_scene },
	{ "a strange stream is over", a_strange_stream_is_over, check_scene },
	{ "outside the sequence", outside_the_sequence, check_scene },
	{ "the sequence begins with 0", the_sequence_begins_with_0, check_sequence },
	{ "the sequence comes round to 0", the_sequence_comes_round_to_0, check_sequence },
	{ "the sequence began before 0", the_sequence_began_before_0, check_scene },
	{ "outside as the sequence begins", outside_as_the_sequence_begins, check_scene },
	{ "outside a sequence near 0", outside_a_sequence_near_0, check_scene },
	{ "outside a sequence that is over", outside_a_sequence_that_is_over, check_scene },
	{ "a number that stands still", a_number_that_stands_still, check_scene },
	{ "two sources of one line take over", two_sources_take_over_at_once, check_scene },
	{ "two strangers at once", two_strangers_at_once, check_strangers },
	{ "a line begins too late", a_line_begins_too_late, check_scene },
	{ "two more sources at once", two_more_sources_at_once, check_cells },
	{ "two sources want one cell", two_sources_want_one_cell, check_cells },
	{ "a key is freed beside a cell", a_key_is_freed_beside_a_cell, check_cells },
	{ "a place is taken over", a_place_is_taken_over, check_place },
	{ "it goes back to where it once was", it_goes_back_to_where_it_once_was, check_scene },
	{ "a line that was away comes back", a_line_that_was_away_comes_back_at_a_restart, check_away },
	{ "a line that was away goes on alone", a_line_that_was_away_goes_on_alone, check_alone },
	{ "a stranger", a_stranger, check_scene },
	{ "strangers from behind", strangers_from_behind, check_behind },
	{ "several numbers in a packet", several_numbers, check_several },
	{ "a jump of several numbers", a_jump_of_several_numbers, check_jump },
	{ "numbers in several words", many_numbers, check_several },
	{ "cut differently", cut_differently, check_cut },
	{ "a former version's stamp", a_former_stamp, check_stamp },
	{ "lengths differ", lengths_differ, check_lengths },
	{ "heartbeats", heartbeats, check_scene },
	{ "fragments", fragments, check_fragments },
	{ "fragments far apart", fragments_far_apart, check_scene },
	{ "fragments of 0", fragments_of_0, check_scene },
	{ "payload: the same", same_payload, check_scene },
	{ "payload: crossed", payloads_crossed, check_scene },
	{ "payload: a word is forgotten", a_payload_is_forgotten, check_scene },
	{ "payload: a word becomes level", a_word_becomes_level, check_scene },
	{ "payload: one line on two CPUs", payloads_of_one_line_on_two_cpus, check_scene },
	{ "payload: twins", twins, check_twins },
	{ "payload: a merge begins", a_merge_begins, check_begin },
	{ "payload: a leg is replaced", a_leg_is_replaced, check_scene },
	{ "payload: both legs are replaced", both_legs_are_replaced, check_scene },
	{ "payload: a leg that joined goes on", a_leg_that_joined_goes_on, check_scene },
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

static void check_preemptions(int most, const char *from)
{
	__u32 i = 0;

	while (from && i < sizeof(scenes) / sizeof(scenes[0]) && strcmp(scenes[i].name, from))
		i++;
	leaves = leaves_where_told;
	on_failure = tell;
	slack = 0;
	for (; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		__u64 before = schedules;

		scenario = scenes[i].name;
		scenes[i].set();
		for (int first = 0; first < cpus; first++)
			deepen(&scenes[i], first, 0, 0, most);
		printf("%-40s %10llu schedules\n", scenario, schedules - before);
	}
}

#endif
