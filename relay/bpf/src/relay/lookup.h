/* From packet to route: the exact (*,G) first, because it is the common case and says whether there
 * is anything more specific.
 */
#ifndef LOOKUP_H
#define LOOKUP_H

#include "fragment.h"
#include "gate.h"
#include "maps.h"
#include "parse.h"
#include "range.h"

/* A route as one packet sees it: `word` read once. */
struct match {
	__u32 first;
	__u16 count;
	__u16 flags;		/* enum route_flags, enum match_flags */
	__u32 counter;		/* the rule's; until `count_input` the input's, with ROUTE_INPUT */
	__u32 health;
	__u32 gate;
};

enum match_flags {
	MATCH_AMBIGUOUS = 1 << 5,	/* a fragment that several rules might take */
	MATCH_RANGE = 1 << 6,		/* count it for its own group and port as well */
	MATCH_CUT = 1 << 7,		/* only some of its segments leave */
	MATCH_ANSWER = 1 << 8,		/* an answer, to the one output of its route that is left */
	MATCH_METERED = 1 << 9,		/* its segments are judged by the rule's limit one by one */
	MATCH_WHOLE = 1 << 10,		/* this host's stack gets it: it is not cut */
	MATCH_REST = 1 << 11,		/* outputs are left that judge its segments one by one */
};

/* Beside enum route_lookup: after what is in that header the maps are named that an upgrade finds. */
enum route_lookup_beside {
	LOOKUP_ANSWERED = 8,	/* answers to its copies go back to whoever sent the packets */
	LOOKUP_LEAVING = 16,	/* what arrives since the hand-over is the userspace path's */
	LOOKUP_COMING = 32,	/* what arrived before it is */
};

#define TURNS (LOOKUP_LEAVING | LOOKUP_COMING)

/* What taps know a packet by that a program of this host sent: no frame comes with a mark. */
enum looped {
	LOOPED_MARK = 1296257612,
};

static __always_inline struct route *route_at(const __u32 *index)
{
	return index ? bpf_map_lookup_elem(&route_table, index) : 0;
}

static __always_inline struct route *find_ipv4(struct ctx_buff *skb, const struct packet *p)
{
	struct route_key key = {
		.ifindex = ingress_of(skb),
		.group = p->destination[0],
		.port = p->dport,
	};
	struct route *route = route_at(bpf_map_lookup_elem(&routes, &key)), *specific;

	if (!route || likely(!(route->lookup & LOOKUP_SOURCES)))
		return route;
	key.source = p->source[0];
	specific = route_at(bpf_map_lookup_elem(&routes, &key));
	return specific ? specific : route;
}

static __attribute__((noinline)) struct route *find_ipv6(struct ctx_buff *skb,
							  const struct packet *p)
{
	struct route_key6 key = {
		.ifindex = ingress_of(skb),
		.port = p->dport,
	};
	struct route *route, *specific;

	__builtin_memcpy(key.group, p->destination, 16);
	route = route_at(bpf_map_lookup_elem(&routes6, &key));
	if (!route || likely(!(route->lookup & LOOKUP_SOURCES)))
		return route;
	__builtin_memcpy(key.source, p->source, 16);
	specific = route_at(bpf_map_lookup_elem(&routes6, &key));
	return specific ? specific : route;
}

/* Says whether the userspace path relays a packet of a route that changes paths: it does what arrives since the
 * hand-over, or what arrived before. At XDP, where packets have no timestamp yet, all go on to tc. Returns the flag.
 */
VERIFIED_ONCE int shadow_of_turn(struct ctx_buff *skb, __u32 lookup)
{
#ifdef AT_XDP
	return ROUTE_SHADOW;
#else
	bool leaving = lookup & LOOKUP_LEAVING;

	return came_since_handover(skb) == leaving ? ROUTE_SHADOW : 0;
#endif
}

static __always_inline void take(struct ctx_buff *skb, const struct route *route, struct match *m)
{
	__u16 lookup = *(volatile __u16 *)&route->lookup;
	__u64 word = *(volatile __u64 *)&route->word;

	m->first = word & WORD_FIRST_MASK;
	m->count = (word >> WORD_COUNT_SHIFT) & WORD_COUNT_MASK;
	m->counter = (word >> WORD_COUNTER_SHIFT) & WORD_COUNTER_MASK;
	m->flags = word >> WORD_FLAGS_SHIFT;
	m->health = route->health;
	m->gate = *(volatile __u16 *)&route->gate;
	if (unlikely(lookup & TURNS))
		m->flags |= shadow_of_turn(skb, lookup);
}

/* Gives a fragment the route of its group. The stack gets it too: a socket of another port may wait
 * for it.
 */
static __always_inline bool adopt(struct ctx_buff *skb, __u32 found, struct match *m)
{
	__u32 index = (found & ~GROUP_OF_SEVERAL) - 1;
	struct route *route = bpf_map_lookup_elem(&route_table, &index);

	if (!route)
		return false;
	take(skb, route, m);
	m->flags = (m->flags & ~ROUTE_LOCAL_AUTO) | ROUTE_LOCAL_YES;
	if (found & GROUP_OF_SEVERAL)
		m->flags |= MATCH_AMBIGUOUS;
	return true;
}

/* Says whether a route takes what a program of this host sends. Not where `local=no`, nor what programs
 * send on each interface by themselves: to reflected and link-local groups.
 */
static __always_inline bool takes_looped(const struct route *route, const struct packet *p,
					 struct match *m)
{
	if (route->lookup & LOOKUP_ANSWERED || !(m->flags & (ROUTE_LOCAL_AUTO | ROUTE_LOCAL_YES)) ||
	    (p->ipv6 ? (p->destination[0] & be32(0xff0f0000)) == be32(0xff020000) :
		       (p->destination[0] & be32(0xffffff00)) == be32(0xe0000000)))
		return false;
	m->flags = (m->flags & ~ROUTE_LOCAL_AUTO) | ROUTE_LOCAL_YES;
	return true;
}

static __always_inline bool lookup(struct ctx_buff *skb, struct packet *p, struct match *m)
{
	struct route *route;
	__u32 flags = 0;

	if (unlikely(p->part != PART_WHOLE)) {
		__u32 found = find_by_group(skb, p);

		if (!found)
			return false;
		if (p->part == PART_FIRST)
			remember(skb, p);
		else if (!recall(skb, p))
			return adopt(skb, found, m);
	}
	route = unlikely(p->ipv6) ? find_ipv6(skb, p) : find_ipv4(skb, p);
	if (!route || unlikely(route->lookup & (LOOKUP_PLACEHOLDER | LOOKUP_RANGES))) {
		bool exact = route && !(route->lookup & LOOKUP_PLACEHOLDER);
		__u32 zero = 0;
		struct settings *s = bpf_map_lookup_elem(&settings, &zero);
		struct route *range = s && s->ranges ? find_range(skb, p, exact) : 0;

		if (range) {
			route = range;
			flags = MATCH_RANGE;
		}
	}
	if (!route || unlikely(route->lookup & LOOKUP_PLACEHOLDER))
		return false;
	take(skb, route, m);
	m->flags |= flags;
	return likely(!is_looped(skb)) || takes_looped(route, p, m);
}

/* 32 bits that stand for an address: itself, or the sum of its words without carry. */
static __always_inline __u32 digest(const struct packet *p, const __be32 *address)
{
	__u32 sum = address[0];

	if (unlikely(p->ipv6))
		sum ^= address[1] ^ address[2] ^ address[3];
	return sum;
}

#define LOOPBACK 1		/* index of `lo`, by which this host's own packets come rightly */
#define OWN_INTERFACES 0x01000000	/* 100:: in `own_sources`, which nobody sends from (RFC 6666) */

/* Says whether the VRF that the packet comes within has its source, or, of a link-local one, the interface.
 * In `own_sources` the VRF of an interface stands under 100:: and its index, and an address with its VRF or
 * interface in the first word.
 */
VERIFIED_ONCE int is_own(struct ctx_buff *skb, const struct packet *p)
{
	struct address key = {};
	__u32 *vrf, scope = ingress_of(skb);

	if (!p || scope == LOOPBACK || is_looped(skb))
		return false;
	if (p->ipv6 ? (p->source[0] & be32(0xffc00000)) != be32(0xfe800000) :
		      (p->source[0] & be32(0xffff0000)) != be32(0xa9fe0000)) {
		key.words[0] = be32(OWN_INTERFACES);
		key.words[3] = scope;
		vrf = bpf_map_lookup_elem(&own_sources, &key);
		scope = vrf ? *vrf : 0;
	}
	if (p->ipv6) {
		__builtin_memcpy(key.words, p->source, 16);
	} else {
		key.words[0] = 0;
		key.words[2] = be32(0xffff);
		key.words[3] = p->source[0];
	}
	key.words[0] ^= scope;
	return bpf_map_lookup_elem(&own_sources, &key) != 0;
}

/* Says whether the packet comes from this host itself, that is, went in a loop. */
static __always_inline bool own_source(struct ctx_buff *skb, const struct packet *p)
{
	__u32 zero = 0, bit = (digest(p, p->source) * 0x9e3779b1u) >> 20;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	if (likely(!s || !(s->own_bloom[bit >> 6] & 1ull << (bit & 63))))
		return false;
	return is_own(skb, p);
}

/* Asks the host's socket table whether a UDP socket would take the packet. */
VERIFIED_ONCE int find_socket(struct ctx_buff *skb, const struct packet *p)
{
	if (!p)
		return 0;

	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sock;

	if (p->ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, p->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, p->destination, 16);
		tuple.ipv6.sport = p->sport;
		tuple.ipv6.dport = p->dport;
		sock = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv6), -1, 0);
	} else {
		tuple.ipv4.saddr = p->source[0];
		tuple.ipv4.daddr = p->destination[0];
		tuple.ipv4.sport = p->sport;
		tuple.ipv4.dport = p->dport;
		sock = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), -1, 0);
	}
	if (!sock)
		return false;
	bpf_sk_release(sock);
	return true;
}

/* Says whether a UDP socket of this host would take the packet, as of this timer tick: a socket that
 * binds while packets flow gets its copies from the next tick on.
 */
static __always_inline bool socket_listens(struct ctx_buff *skb, const struct packet *p,
					   struct tally *rule)
{
	__u64 sender = (__u64)digest(p, p->source) << 16 | p->sport;
	__u64 question = (__u64)digest(p, p->destination) << 32 | (__u32)p->dport << 16 |
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
