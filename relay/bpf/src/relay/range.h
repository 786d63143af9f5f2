/* Routes for ranges of groups or ports, looked up only where no exact route stands before them. */
#ifndef RANGE_H
#define RANGE_H

#include "maps.h"
#include "parse.h"

/* What is found for a packet whose port is not known. */
struct orphan {
	__u32 found;		/* index in `route_table`, plus one */
	__u32 rank;
	__u32 counter;		/* of its rule */
	__u32 several;		/* another rule might take it as well */
};

enum rank { EXACT_SPECIFIC, RANGE_SPECIFIC, EXACT_ANY, RANGE_ANY };

struct range_search {
	__be32 source[4];
	__u32 words;		/* of the address */
	__u32 port;
	__u32 first;
	__u32 specific_only;
	__u32 found;		/* index in `route_table`, plus one */
	struct orphan *orphan;	/* the port is not known: consider all */
};

/* The counter of the rule that a route belongs to. */
static __always_inline __u32 rule_counter(__u64 word)
{
	__u32 counter = (word >> WORD_COUNTER_SHIFT) & WORD_COUNTER_MASK;
	struct identity *input;

	if (likely(!(word >> WORD_FLAGS_SHIFT & ROUTE_INPUT)))
		return counter;
	input = bpf_map_lookup_elem(&identities, &counter);
	return input ? input->rule : counter;
}

static __always_inline void consider(struct orphan *o, __u32 rank, __u32 index)
{
	struct route *route = bpf_map_lookup_elem(&route_table, &index);
	__u32 counter;

	if (!route)
		return;
	counter = rule_counter(route->word);
	if (o->found && o->counter != counter)
		o->several = true;
	if (o->found && o->rank <= rank)
		return;
	o->found = index + 1;
	o->rank = rank;
	o->counter = counter;
}

static long try_candidate(__u32 i, struct range_search *s)
{
	__u32 slot = s->first + i;
	struct candidate *c = bpf_map_lookup_elem(&candidates, &slot);

	if (!c || (s->specific_only && !c->specific))
		return 1;
	if (!s->orphan && (s->port < c->first_port || s->port > c->last_port))
		return 0;
	if (c->specific) {
		__u32 differs = (s->source[0] ^ c->source[0]) & ~host_bits(c->specific, 0);

		if (s->words > 1)
			for (int i = 1; i < 4; i++)
				differs |= (s->source[i] ^ c->source[i]) & ~host_bits(c->specific, i);
		if (differs)
			return 0;
	}
	if (unlikely(s->orphan != 0)) {
		consider(s->orphan, c->specific ? RANGE_SPECIFIC : RANGE_ANY, c->route);
		return 0;
	}
	s->found = c->route + 1;
	return 1;
}

static __always_inline bool search_ranges(struct ctx_buff *skb, const struct packet *p,
					  struct range_search *search)
{
	struct range_key key = { .prefix = 96, .ifindex = ingress_of(skb) };
	struct range *range;

	search->words = 1;
	key.group[0] = p->destination[0];
	search->source[0] = p->source[0];
	if (p->ipv6) {
		key.prefix = 192;
		key.ipv6 = 1;
		search->words = 4;
		__builtin_memcpy(key.group, p->destination, 16);
		__builtin_memcpy(search->source, p->source, 16);
	}
	range = bpf_map_lookup_elem(&ranges, &key);
	if (!range)
		return false;
	search->first = range->first;
	bpf_loop(range->count, try_candidate, search, 0);
	return true;
}

/* Considers all range routes of the packet's group. */
static __always_inline void consider_ranges(struct ctx_buff *skb, const struct packet *p,
					    struct orphan *o)
{
	struct range_search search = { .orphan = o };

	search_ranges(skb, p, &search);
}

/* The most specific range route of the packet; with `specific_only`, only if it names a source. */
static __attribute__((noinline)) struct route *find_range(struct ctx_buff *skb,
							   const struct packet *p,
							   __u32 specific_only)
{
	struct range_search search = {
		.port = host16(p->dport),
		.specific_only = specific_only,
	};
	__u32 index;

	if (!search_ranges(skb, p, &search) || !search.found)
		return 0;
	index = search.found - 1;
	return bpf_map_lookup_elem(&route_table, &index);
}

#endif
