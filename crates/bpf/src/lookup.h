/* From packet to route: (*,G) first, because it is the common case and says whether (S,G) entries
 * exist; the most specific one wins.
 */
#ifndef LOOKUP_H
#define LOOKUP_H

#include "maps.h"
#include "parse.h"

/* A route as one packet sees it: `word` read once. */
struct match {
	__u32 first;
	__u32 count;
	__u32 counter;
	__u32 flags;
};

static __always_inline struct route *route_of(const struct route_key *key)
{
	__u32 *index = bpf_map_lookup_elem(&routes, key);

	return index ? bpf_map_lookup_elem(&route_table, index) : 0;
}

static __always_inline bool lookup(struct __sk_buff *skb, const struct packet *p, struct match *m)
{
	struct route_key key = {
		.ifindex = skb->ifindex,
		.group = p->destination,
		.port = p->dport,
	};
	struct route *route = route_of(&key), *exact;
	__u64 word;

	if (!route)
		return false;
	if (unlikely(route->lookup & LOOKUP_SOURCES)) {
		key.source = p->source;
		exact = route_of(&key);
		if (exact)
			route = exact;
	}
	if (unlikely(route->lookup & LOOKUP_PLACEHOLDER))
		return false;
	word = *(volatile __u64 *)&route->word;
	m->first = word & WORD_FIRST_MASK;
	m->count = (word >> WORD_COUNT_SHIFT) & WORD_COUNT_MASK;
	m->counter = (word >> WORD_COUNTER_SHIFT) & WORD_COUNTER_MASK;
	m->flags = word >> WORD_FLAGS_SHIFT;
	return true;
}

/* Says whether the packet comes from this host itself, that is, went in a loop. */
static __always_inline bool own_source(const struct packet *p)
{
	__u32 zero = 0, bit = (p->source * 0x9e3779b1u) >> 20;
	struct bloom *bloom = bpf_map_lookup_elem(&own_bloom, &zero);
	struct address key = {};

	if (likely(!bloom || !(bloom->words[bit >> 6] & 1ull << (bit & 63))))
		return false;
	key.words[2] = be32(0xffff);
	key.words[3] = p->source;
	return bpf_map_lookup_elem(&own_sources, &key) != 0;
}

/* Asks the host's socket table whether a UDP socket would take the packet. */
static __always_inline bool find_socket(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {
		.ipv4 = { p->source, p->destination, p->sport, p->dport },
	};
	struct bpf_sock *sock = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), -1, 0);

	if (likely(!sock))
		return false;
	bpf_sk_release(sock);
	return true;
}

/* Says whether a UDP socket of this host would take the packet, as of this timer tick: a socket that
 * binds while packets flow gets its copies from the next tick on.
 */
static __always_inline bool socket_listens(struct __sk_buff *skb, const struct packet *p,
					   struct tally *rule)
{
	__u64 sender = (__u64)p->source << 16 | p->sport;
	__u64 question = (__u64)p->destination << 32 | (__u32)p->dport << 16 |
			 (bpf_jiffies64() & 0x7fff) << 1;
	bool listens;

	if (likely(rule->sender == sender && (rule->asked & ~1ull) == question))
		return rule->asked & 1;
	listens = find_socket(skb, p);
	rule->sender = sender;
	rule->asked = question | listens;
	return listens;
}

#endif
