/* Answers by unicast to what a rule reflects. Its copies come from this host's address, so answers to
 * them come here: for a while it is remembered who asked, by the port that the question came from. An
 * answer takes the route of the interface that it comes by, to the one output that leads to the asker.
 */
#ifndef REPLY_H
#define REPLY_H

#include "lookup.h"

#define MDNS_PORT 5353			/* packet::answer::MDNS_PORT */
#define ANSWERS_NS 10000000000ull	/* packet::answer::LIFETIME_NS */

static __always_inline void asker_key(__u32 ifindex, const __be32 *address, __be16 port, __u16 ipv6,
				      struct asker_key *key)
{
	key->ifindex = ifindex;
	key->port = port;
	key->ipv6 = ipv6;
	key->address[0] = address[0];
	if (ipv6)
		__builtin_memcpy(key->address, address, 16);
}

/* Says whether the packet is a question that is answered by unicast, as packet::answer::is_asked says. */
static __always_inline bool is_question(const struct packet *p)
{
	__u8 first = *(const __u8 *)p->source;

	if (p->part == PART_LATER || !p->sport || p->mac[6] & 1)
		return false;
	if (p->sport == p->dport && p->dport == be16(MDNS_PORT))
		return false;
	if (p->ipv6)
		return first != 0xff && (p->source[0] || p->source[1] || p->source[2]);
	return first != 0 && first != 127 && first < 224;
}

/* Remembers who asks by an output. Of two that ask from the same port, the later one is answered. */
VERIFIED_ONCE int note_question(struct ctx_buff *skb, const struct packet *p, const struct output *o)
{
	if (!p || !o)
		return 0;

	struct asker_key key = {};
	struct asker asker = {
		.asked_ns = bpf_ktime_get_ns(),
		.ifindex = ingress_of(skb),
		.port = p->sport,
		.group_port = p->dport,
	};

	if (!is_question(p))
		return 0;
	asker_key(o->ifindex, o->source, p->sport, p->ipv6, &key);
	__builtin_memcpy(asker.mac, p->mac + 6, 6);
	asker.address[0] = p->source[0];
	asker.group[0] = p->destination[0];
	if (p->ipv6) {
		__builtin_memcpy(asker.address, p->source, 16);
		__builtin_memcpy(asker.group, p->destination, 16);
	}
	bpf_map_update_elem(&askers, &key, &asker, 0);
	return 0;
}

/* The route that questions of a group take which come by the interface of this packet. */
static __always_inline struct route *route_of_group(struct ctx_buff *skb, const struct asker *asker,
						    bool ipv6)
{
	struct route *route;

	if (ipv6) {
		struct route_key6 key = { .ifindex = ingress_of(skb), .port = asker->group_port };

		__builtin_memcpy(key.group, asker->group, 16);
		route = route_at(bpf_map_lookup_elem(&routes6, &key));
	} else {
		struct route_key key = {
			.ifindex = ingress_of(skb),
			.group = asker->group[0],
			.port = asker->group_port,
		};

		route = route_at(bpf_map_lookup_elem(&routes, &key));
	}
	return route && !(route->lookup & LOOKUP_PLACEHOLDER) ? route : 0;
}

struct way_back {
	__u32 first;
	__u32 ifindex;
	__u32 found;	/* the slot plus one */
};

static long try_way_back(__u32 i, struct way_back *w)
{
	__u32 slot = w->first + i;
	struct output *o = bpf_map_lookup_elem(&outputs, &slot);

	if (!o || o->ifindex != w->ifindex || !(o->flags & OUTPUT_ANSWERS))
		return 0;
	w->found = slot + 1;
	return 1;
}

/* Says whether a packet that no route takes is an answer, and leads it to the asker's output. What a
 * socket of this host waits for is none.
 */
VERIFIED_ONCE int find_answer(struct ctx_buff *skb, const struct packet *p, struct match *m)
{
	if (!p || !m)
		return false;

	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	struct asker_key key = {};
	struct way_back back = {};
	struct asker *asker;
	struct route *route;

	if (is_group(p) || p->part != PART_WHOLE || !s || !s->answers)
		return false;
	asker_key(ingress_of(skb), p->destination, p->dport, p->ipv6, &key);
	asker = bpf_map_lookup_elem(&askers, &key);
	if (!asker || bpf_ktime_get_ns() - asker->asked_ns >= ANSWERS_NS)
		return false;
	route = route_of_group(skb, asker, p->ipv6);
	if (!route || find_socket(skb, p))
		return false;
	take(skb, route, m);
	back.first = m->first;
	back.ifindex = asker->ifindex;
	bpf_loop(m->count, try_way_back, &back, 0);
	if (!back.found)
		return false;
	m->first = back.found - 1;
	m->count = 1;
	m->flags = (m->flags & ~(ROUTE_LOCAL_AUTO | ROUTE_LOCAL_YES)) | MATCH_ANSWER;
	return true;
}

_Static_assert(sizeof(struct output) <= sizeof(((struct cut *)0)->packet), "it has room");

/* Puts aside in `cut`, for the stack is short, what an answer's copy by an output carries: it stays the
 * responder's, and goes to the asker. Says no if the asker has been forgotten for others meanwhile.
 */
VERIFIED_ONCE int plan_answer(struct ctx_buff *skb, const struct packet *p, const struct output *found)
{
	if (!p || !found)
		return false;

	struct asker_key key = {};
	struct cut *cut = cut_here();
	struct asker *asker;
	struct output *o;

	asker_key(ingress_of(skb), p->destination, p->dport, p->ipv6, &key);
	asker = bpf_map_lookup_elem(&askers, &key);
	if (!asker || !cut)
		return false;
	o = (struct output *)cut->packet;
	*o = *found;
	o->flags &= ~OUTPUT_SOURCE;
	o->dport = asker->port;
	__builtin_memcpy(o->destination, asker->address, 16);
	__builtin_memcpy(o->mac, asker->mac, 6);
	return true;
}

#endif
