/* Fragments: the first one's ports are remembered for those that follow it, which carry none. One
 * that comes before its datagram's first is an orphan: it takes the route of its group, if all that
 * might take it belong to one rule.
 */
#ifndef FRAGMENT_H
#define FRAGMENT_H

#include "maps.h"
#include "parse.h"
#include "range.h"

#define FRAGMENT_TICK_SHIFT 20
#define FRAGMENT_TICKS 0x20	/* in `state`, beside what is merge_fragment.h's */
#define FRAGMENT_LIFETIME_NS 2000000000ull	/* packet::fragment_cache::LIFETIME_NS */

static __always_inline void fragment_key(struct ctx_buff *skb, const struct packet *p,
					 struct fragment_key *key)
{
	key->ifindex = ingress_of(skb);
	key->id = p->id;
	key->source[0] = p->source[0];
	key->destination[0] = p->destination[0];
	if (p->ipv6) {
		__builtin_memcpy(key->source, p->source, 16);
		__builtin_memcpy(key->destination, p->destination, 16);
	}
}

/* Notes that something of a datagram has come. */
static __always_inline void see_datagram(struct fragment_ports *ports)
{
	ports->seen = bpf_ktime_get_ns() >> FRAGMENT_TICK_SHIFT;
	ports->state |= FRAGMENT_TICKS;
}

static __always_inline bool is_recent(const struct fragment_ports *ports)
{
	__u64 now = bpf_ktime_get_ns();

	if (ports->state & FRAGMENT_TICKS)
		return (__u32)(now >> FRAGMENT_TICK_SHIFT) - ports->seen < FRAGMENT_LIFETIME_NS >> FRAGMENT_TICK_SHIFT;
	return now - ports->seen_ns < FRAGMENT_LIFETIME_NS;
}

/* What is known of a fragment's datagram, if that is not too long ago. */
static __always_inline struct fragment_ports *datagram_of(struct ctx_buff *skb, const struct packet *p,
							  struct fragment_key *key)
{
	struct fragment_ports *ports;

	fragment_key(skb, p, key);
	ports = bpf_map_lookup_elem(&fragments, key);
	return ports && is_recent(ports) ? ports : 0;
}

/* The same, and begins to know it. */
static __always_inline struct fragment_ports *begin_datagram(struct ctx_buff *skb, const struct packet *p,
							     struct fragment_key *key)
{
	struct fragment_ports *ports = datagram_of(skb, p, key), fresh = {};

	if (ports) {
		if (!(ports->state & FRAGMENT_TICKS))
			see_datagram(ports);
		return ports;
	}
	see_datagram(&fresh);
	bpf_map_update_elem(&fragments, key, &fresh, 0);
	return bpf_map_lookup_elem(&fragments, key);
}

VERIFIED_ONCE int remember(struct ctx_buff *skb, const struct packet *p)
{
	struct fragment_key key = {};
	struct fragment_ports *ports;

	if (!p)
		return 0;
	ports = begin_datagram(skb, p, &key);
	if (!ports)
		return 0;
	see_datagram(ports);
	ports->sport = p->sport;
	ports->dport = p->dport;
	return 0;
}

/* Gives a later fragment its datagram's ports; says whether they are known. */
VERIFIED_ONCE int recall(struct ctx_buff *skb, struct packet *p)
{
	struct fragment_key key = {};
	struct fragment_ports *ports;

	if (!p)
		return 0;
	ports = datagram_of(skb, p, &key);
	if (!ports || !ports->dport)
		return false;
	p->sport = ports->sport;
	p->dport = ports->dport;
	return true;
}

static __always_inline void consider_group(struct ctx_buff *skb, const struct packet *p,
					   bool specific, struct orphan *o)
{
	struct group_key key = { .ifindex = ingress_of(skb) };
	__u32 *value;

	key.group[0] = p->destination[0];
	if (specific)
		key.source[0] = p->source[0];
	if (p->ipv6) {
		__builtin_memcpy(key.group, p->destination, 16);
		if (specific)
			__builtin_memcpy(key.source, p->source, 16);
	}
	value = bpf_map_lookup_elem(&group_routes, &key);
	if (!value)
		return;
	if (*value & GROUP_OF_SEVERAL)
		o->several = true;
	consider(o, specific ? EXACT_SPECIFIC : EXACT_ANY, *value & ~GROUP_OF_SEVERAL);
}

/* The most specific route that takes the packet's group, whatever its port: its index in
 * `route_table` plus one, with GROUP_OF_SEVERAL if another rule might take it as well.
 */
VERIFIED_ONCE __u32 find_by_group(struct ctx_buff *skb, const struct packet *p)
{
	if (!p)
		return 0;

	struct orphan o = {};

	consider_group(skb, p, true, &o);
	consider_group(skb, p, false, &o);
	consider_ranges(skb, p, &o);
	if (o.found && !is_group(p))	/* other ports of this host's address are not relayed */
		o.several = true;
	return o.several ? o.found | GROUP_OF_SEVERAL : o.found;
}

#endif
