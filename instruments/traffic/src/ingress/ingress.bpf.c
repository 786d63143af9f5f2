/* Counts test traffic at tc ingress, without sockets: the generator's sequence numbers and latency,
 * stream by stream. What it counts it consumes; everything else goes to the stack untouched.
 * The payload's checksum is not verified here; instruments/traffic/src/payload.rs says what lies where.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include "helpers.h"
#include "ingress.h"

/* Sizes are placeholders: user space sets them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct watch_key);
	__type(value, __u32);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct stream_key);
	__type(value, struct stream_state);
} streams SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct latency);
} latencies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct foreign);
} foreigns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct clock);
} clocks SEC(".maps");

/* The generator's header, as it lies in the payload; words of two bytes keep it unpadded. */
struct header {
	__u8 magic[4];
	__u8 version, reserved;
	__u16 run;
	__u32 stream;
	__u32 sequence_high, sequence_low;
	__u32 intended_high, intended_low;
};

#define OWN_HEADER 32		/* of which the checksum is not read */
#define RTP_VERSION 0x80
#define RTP_HEADER 12
#define TS_SYNC 0x47
#define TS_HEADER 4
#define MDP_HEADER 12
#define MOLD_HEADER 22

struct packet {
	struct __sk_buff *skb;
	struct stream_key key;
	__u32 payload;		/* offset from the start of the frame */
	__u32 end;
	__u32 size;		/* bytes of each segment's payload */
	__u32 watched;		/* whether somebody counts it */
	__u64 now_ns;
};

/* Makes the headers directly accessible. Where the device left the payload in pages they are just
 * what lies in front; pulling more than them would copy, and cost a sixth of the throughput.
 */
static __always_inline bool pull(struct __sk_buff *skb, __u32 length)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (likely(data + length <= end))
		return true;
	return skb->len >= length && bpf_skb_pull_data(skb, length) == 0;
}

#define LINK_MAX 64

/* The bytes before the IP header: an Ethernet header if it looks like one, else as many as there are where
 * the kernel takes the IP header to be.
 */
static __always_inline __u32 link_length(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 head[5], here[5];

	if (likely(data + ETH_HLEN <= end && *(__u16 *)(data + 12) == (__u16)skb->protocol))
		return ETH_HLEN;
	if (bpf_skb_load_bytes_relative(skb, 0, head, sizeof(head), BPF_HDR_START_NET))
		return LINK_MAX;
	for (__u32 offset = 0; offset < LINK_MAX; offset += 2) {
		if (bpf_skb_load_bytes(skb, offset, here, sizeof(here)))
			break;
		if (here[0] == head[0] && here[1] == head[1] && here[2] == head[2] &&
		    here[3] == head[3] && here[4] == head[4])
			return offset;
	}
	return LINK_MAX;
}

static __always_inline bool parse(struct __sk_buff *skb, struct packet *p)
{
	__u32 link = link_length(skb), l4, length;
	void *data, *end;
	struct udphdr *udp;

	if (link >= LINK_MAX || (skb->vlan_present && skb->vlan_tci & 0xfff))
		return false;
	if (skb->protocol == be16(ETH_P_IP)) {
		struct iphdr *ip;

		l4 = link + sizeof(*ip);
		if (!pull(skb, l4 + sizeof(*udp)))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		ip = data + link;
		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl != 5 ||
		    ip->protocol != IPPROTO_UDP || ip->frag_off & be16(0x3fff))
			return false;
		p->key.at.group[3] = ip->daddr;
	} else if (skb->protocol == be16(ETH_P_IPV6)) {
		struct ipv6hdr *ip;

		l4 = link + sizeof(*ip);
		if (!pull(skb, l4 + sizeof(*udp)))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		ip = data + link;
		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP)
			return false;
		__builtin_memcpy(p->key.at.group, &ip->daddr, 16);
	} else {
		return false;
	}
	udp = data + l4;
	if ((void *)(udp + 1) > end)
		return false;
	length = host16(udp->len);
	if (length < sizeof(*udp) || l4 + length > skb->len)
		return false;
	p->key.at.port = udp->dest;
	p->key.at.ifindex = skb->ifindex;
	p->payload = l4 + sizeof(*udp);
	p->end = l4 + length;
	return true;
}

/* Bits of a number above 0, less one: floor(log2). */
static __always_inline __u32 power(__u64 value)
{
	__u32 shift, bits = 0;

	shift = (value > 0xffffffff) << 5; value >>= shift; bits |= shift;
	shift = (value > 0xffff) << 4; value >>= shift; bits |= shift;
	shift = (value > 0xff) << 3; value >>= shift; bits |= shift;
	shift = (value > 0xf) << 2; value >>= shift; bits |= shift;
	shift = (value > 0x3) << 1; value >>= shift; bits |= shift;
	return bits | value >> 1;
}

static __always_inline void count_latency(__u32 endpoint, __u64 ns)
{
	struct latency *latency = bpf_map_lookup_elem(&latencies, &endpoint);
	__u32 bucket = ns, exponent;

	if (!latency)
		return;
	if (ns >= LATENCY_FINE) {
		exponent = power(ns);
		bucket = LATENCY_FINE + (exponent - 8) * LATENCY_STEPS +
			 ((ns >> (exponent - 7)) & (LATENCY_STEPS - 1));
	}
	if (bucket >= LATENCY_BUCKETS)
		bucket = LATENCY_BUCKETS - 1;
	__sync_fetch_and_add(&latency->buckets[bucket], 1);
}

static __always_inline void count_foreign(__u32 endpoint, __u32 bytes)
{
	struct foreign *foreign = bpf_map_lookup_elem(&foreigns, &endpoint);

	if (!foreign)
		return;
	__sync_fetch_and_add(&foreign->packets, 1);
	__sync_fetch_and_add(&foreign->bytes, bytes);
}

/* The same judgement as instruments/traffic/src/sequence.rs, a word of the window at a time. */
static __always_inline void follow(struct stream_state *s, __u64 number)
{
	__u64 word = number >> 6, top = s->highest >> 6, bit = 1ULL << (number & 63);

	if (number > s->highest) {
		__u64 entered = word - top;

		for (__u32 i = 1; i <= WINDOW_WORDS; i++) {
			if (i > entered)
				break;
			s->seen[(top + i) & (WINDOW_WORDS - 1)] = 0;
		}
		s->highest = number;
	} else if (top - word < WINDOW_WORDS &&
		   s->seen[word & (WINDOW_WORDS - 1)] & bit) {
		s->duplicated++;
		return;
	} else {
		s->reordered++;
		if (number < s->first)
			s->first = number;
		if (top - word >= WINDOW_WORDS) {
			s->distinct++;
			return;
		}
	}
	s->distinct++;
	s->seen[word & (WINDOW_WORDS - 1)] |= bit;
}

static __always_inline struct stream_state *begin(const struct packet *p, __u64 number)
{
	struct stream_state fresh = {};
	__u32 *endpoint = bpf_map_lookup_elem(&watched, &p->key.at);

	if (!endpoint)
		return 0;
	fresh.endpoint = *endpoint;
	fresh.first = number;
	fresh.highest = number;
	fresh.min_ns = ~0ULL;
	/* Another CPU may have been first; its state is as good. */
	bpf_map_update_elem(&streams, &p->key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&streams, &p->key);
}

static __always_inline void count(struct packet *p, const struct header *h, __u32 bytes)
{
	__u64 number = (__u64)host32(h->sequence_high) << 32 | host32(h->sequence_low);
	__u64 intended = (__u64)host32(h->intended_high) << 32 | host32(h->intended_low);
	__u64 latency = p->now_ns > intended ? p->now_ns - intended : 0;
	struct stream_state *s;
	__u32 endpoint;

	p->key.stream = h->stream;
	p->key.run = h->run;
	s = bpf_map_lookup_elem(&streams, &p->key);
	if (unlikely(!s)) {
		s = begin(p, number);
		if (!s)
			return;
	}
	p->watched = 1;
	endpoint = s->endpoint;
	bpf_spin_lock(&s->lock);
	s->bytes += bytes;
	if (latency < s->min_ns)
		s->min_ns = latency;
	if (latency > s->max_ns)
		s->max_ns = latency;
	if (unlikely(s->packets++ == 0)) {
		s->distinct = 1;
		s->seen[(number >> 6) & (WINDOW_WORDS - 1)] = 1ULL << (number & 63);
	} else {
		follow(s, number);
	}
	bpf_spin_unlock(&s->lock);
	count_latency(endpoint, latency);
}

static __always_inline bool is_own(const struct header *h)
{
	return h->magic[0] == 'M' && h->magic[1] == 'C' && h->magic[2] == 'R' &&
	       h->magic[3] == 't' && h->version == 1;
}

static __always_inline bool is_own_at(struct packet *p, __u32 offset, __u32 framing, __u32 bytes,
				      struct header *h)
{
	return bytes >= framing + OWN_HEADER &&
	       bpf_skb_load_bytes(p->skb, offset + framing, h, sizeof(*h)) == 0 && is_own(h);
}

/* Reads the generator's header at the start of a payload, or behind the framing it may stand in:
 * RTP without sources or extension, the header of an MPEG-TS packet, both, or the header of an
 * MDP 3.0 or MoldUDP64 packet.
 */
static __always_inline bool read_header(struct packet *p, __u32 offset, __u32 bytes,
					struct header *h)
{
	__u32 framing = 0;
	__u8 first;

	if (bytes < OWN_HEADER || bpf_skb_load_bytes(p->skb, offset, h, sizeof(*h)))
		return false;
	if (likely(is_own(h)))
		return true;
	first = h->magic[0];
	if (first == RTP_VERSION) {
		framing = RTP_HEADER;
		first = ((__u8 *)h)[RTP_HEADER];
	}
	if (first == TS_SYNC)
		framing += TS_HEADER;
	return (framing && is_own_at(p, offset, framing, bytes, h)) ||
	       is_own_at(p, offset, MDP_HEADER, bytes, h) ||
	       is_own_at(p, offset, MOLD_HEADER, bytes, h);
}

/* One datagram; the callback of bpf_loop for the segments of a super-packet. */
static long segment(__u32 index, struct packet *p)
{
	__u32 offset = p->payload + index * p->size, bytes;
	struct header h;
	__u32 *endpoint;

	if (offset > p->end || (offset == p->end && index > 0))
		return 1;
	bytes = p->end - offset < p->size ? p->end - offset : p->size;
	if (read_header(p, offset, bytes, &h)) {
		count(p, &h, bytes);
		return !p->watched;
	}
	endpoint = bpf_map_lookup_elem(&watched, &p->key.at);
	if (!endpoint)
		return 1;
	p->watched = 1;
	count_foreign(*endpoint, bytes);
	return 0;
}

SEC("classifier")
int sequence(struct __sk_buff *skb)
{
	struct packet p = { .skb = skb };
	struct clock *clock;
	__u32 zero = 0;

	if (!parse(skb, &p))
		return TC_ACT_UNSPEC;
	clock = bpf_map_lookup_elem(&clocks, &zero);
	if (!clock)
		return TC_ACT_UNSPEC;
	p.now_ns = bpf_ktime_get_ns() + clock->offset_ns;
	p.size = p.end - p.payload;
	if (skb->gso_size) {
		p.size = skb->gso_size;
		bpf_loop(1024, segment, &p, 0);
	} else {
		segment(0, &p);
	}
	return p.watched ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

char dual_license[] SEC("license") = "Dual MIT/GPL";
