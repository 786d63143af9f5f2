/* Routes for ranges of groups or ports, looked up only where no exact route stands before them. */
#ifndef RANGE_H
#define RANGE_H

#include "maps.h"
#include "parse.h"

struct range_search {
	__be32 source[4];
	__u32 words;		/* of the address */
	__u32 port;
	__u32 first;
	__u32 specific_only;
	__u32 found;		/* index in `route_table`, plus one */
};

static long try_candidate(__u32 i, struct range_search *s)
{
	__u32 slot = s->first + i;
	struct candidate *c = bpf_map_lookup_elem(&candidates, &slot);

	if (!c || (s->specific_only && !c->specific))
		return 1;
	if (s->port < c->first_port || s->port > c->last_port)
		return 0;
	if (c->specific) {
		__u32 differs = s->source[0] ^ c->source[0];

		if (s->words > 1)
			differs |= (s->source[1] ^ c->source[1]) | (s->source[2] ^ c->source[2]) |
				   (s->source[3] ^ c->source[3]);
		if (differs)
			return 0;
	}
	s->found = c->route + 1;
	return 1;
}

/* The most specific range route of the packet; with `specific_only`, only if it names a source. */
static __attribute__((noinline)) struct route *find_range(struct __sk_buff *skb,
							   const struct packet *p,
							   __u32 specific_only)
{
	struct range_search search = {
		.words = 1,
		.port = host16(p->dport),
		.specific_only = specific_only,
	};
	struct range_key key = { .prefix = 96, .ifindex = skb->ifindex };
	struct range *range;
	__u32 index;

	key.group[0] = p->destination[0];
	search.source[0] = p->source[0];
	if (p->ipv6) {
		key.prefix = 192;
		key.ipv6 = 1;
		search.words = 4;
		__builtin_memcpy(key.group, p->destination, 16);
		__builtin_memcpy(search.source, p->source, 16);
	}
	range = bpf_map_lookup_elem(&ranges, &key);
	if (!range)
		return 0;
	search.first = range->first;
	bpf_loop(range->count, try_candidate, &search, 0);
	if (!search.found)
		return 0;
	index = search.found - 1;
	return bpf_map_lookup_elem(&route_table, &index);
}

#endif
