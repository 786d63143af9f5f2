/* Checks the program's merge.h and merge_payload.h themselves, with a scheduling point before every
 * access to what CPUs share.
 *
 *	check preempt N [SCENE]		every schedule with up to N preemptions, over short scenes, from one of them on
 *	check random RUNS [SEED]	generated streams and schedules against a model of sets
 */
#include "preempt.h"
#include "random.h"

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 2 && !strcmp(argv[1], "preempt"))
		check_preemptions(atoi(argv[2]), argc > 3 ? argv[3] : NULL);
	else if (argc > 2 && !strcmp(argv[1], "random"))
		check_random(strtoull(argv[2], NULL, 0), argc > 3 ? strtoull(argv[3], NULL, 0) : seed);
	printf("%llu schedules, %llu accesses\n", schedules, points);
	return schedules ? 0 : 2;
}
