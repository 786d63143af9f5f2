/* CPUs that share memory, as coroutines: each access is a point at which another may go on. */
#ifndef CPUS_H
#define CPUS_H

#include <linux/types.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define CPUS 4
#define STACK (64 * 1024)

static void point(void);
#define MERGE_LOAD(place) ({ point(); *(volatile __u64 *)&(place); })
#define MERGE_STORE(place, value) ({ __u64 to_ = (value); point(); *(volatile __u64 *)&(place) = to_; })
#define MERGE_CAS(place, from, to) ({ \
	__u64 from_ = (from), to_ = (to), was_; \
	point(); \
	was_ = (place); \
	if (was_ == from_) \
		(place) = to_; \
	was_; })
#define MERGE_ADD(place, count) ({ __u64 add_ = (count); point(); (place) += add_; })

static struct {
	jmp_buf at;
	bool made, live;
} cpu[CPUS];
static jmp_buf scheduler;
static ucontext_t outside;
static int running = -1;	/* none: what is done is done at once */
static __u64 points, schedules;

static bool (*leaves)(void);	/* whether the CPU is left at this point */
static void work(int self);	/* what a CPU has to do */

/* Back to the scheduler, until it comes round again. */
static void leave(void)
{
	int self = running;

	if (!_setjmp(cpu[self].at))
		_longjmp(scheduler, 1);
}

static void point(void)
{
	if (running < 0)
		return;
	points++;
	if (leaves())
		leave();
}

static void life(void)
{
	for (;;) {
		work(running);
		cpu[running].live = false;
		leave();
	}
}

static void go_on(int self)
{
	running = self;
	if (!_setjmp(scheduler)) {
		if (cpu[self].made)
			_longjmp(cpu[self].at, 1);
		ucontext_t begin;

		cpu[self].made = true;
		getcontext(&begin);
		begin.uc_stack.ss_sp = malloc(STACK);
		begin.uc_stack.ss_size = STACK;
		begin.uc_link = &outside;
		makecontext(&begin, life, 0);
		setcontext(&begin);
	}
	running = -1;
}

static __u64 seed = 88172645463325252ull;

static inline __u64 any(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static inline __u32 below(__u32 limit)
{
	return limit ? (any() >> 16) % limit : 0;
}

static inline bool one_in(__u32 count)
{
	return !below(count);
}

#endif
