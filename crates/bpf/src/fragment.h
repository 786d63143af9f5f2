/* Fragments: the first one's ports are remembered for those that follow it, which carry none. A
 * fragment that comes before its datagram's first cannot be attributed and goes to the stack.
 */
#ifndef FRAGMENT_H
#define FRAGMENT_H

#include "maps.h"
#include "parse.h"

#define FRAGMENT_LIFETIME_NS 2000000000ull	/* packet::memory::LIFETIME_NS */

static __always_inline void fragment_key(struct __sk_buff *skb, const struct packet *p,
					 struct fragment_key *key)
{
	key->ifindex = skb->ifindex;
	key->id = p->id;
	key->source[0] = p->source[0];
	key->destination[0] = p->destination[0];
	if (p->ipv6) {
		__builtin_memcpy(key->source, p->source, 16);
		__builtin_memcpy(key->destination, p->destination, 16);
	}
}

static __attribute__((noinline)) int remember(struct __sk_buff *skb, const struct packet *p)
{
	struct fragment_key key = {};
	struct fragment_ports ports = {
		.seen_ns = bpf_ktime_get_ns(),
		.sport = p->sport,
		.dport = p->dport,
	};

	fragment_key(skb, p, &key);
	bpf_map_update_elem(&fragments, &key, &ports, 0);
	return 0;
}

/* Gives a later fragment its datagram's ports; says whether they are known. */
static __attribute__((noinline)) int recall(struct __sk_buff *skb, struct packet *p)
{
	struct fragment_key key = {};
	struct fragment_ports *ports;

	fragment_key(skb, p, &key);
	ports = bpf_map_lookup_elem(&fragments, &key);
	if (!ports || bpf_ktime_get_ns() - ports->seen_ns >= FRAGMENT_LIFETIME_NS)
		return false;
	p->sport = ports->sport;
	p->dport = ports->dport;
	return true;
}

#endif
