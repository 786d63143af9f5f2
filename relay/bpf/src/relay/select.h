/* Which packets of a rule's several inputs pass: those of the active one (failover.h), or the first copy
 * of each (merge.h). Of a super-packet each segment is judged by itself.
 */
#ifndef SELECT_H
#define SELECT_H

#include "count.h"
#include "failover.h"
#include "fragment.h"
#include "replicate.h"

#define MERGE_CALL VERIFIED_ONCE
#define MERGE_MISSING(pointer) (!(pointer))
#define MERGE_KEEP(verdict) asm volatile("" : "+r"(verdict))
#define MERGE_NS() bpf_ktime_get_ns()
#define MERGE_BLOCK(m, n) merge_block_at(n)
#define MERGE_AT(p, index) merge_at(index)
#define MERGE_SOURCE struct merge_source
#define MERGE_BYTES(source, at, to, length) \
	load_bytes((source).skb, (source).offset + (at), to, length)
#define MERGE_HEAD(source, room) merge_head(source, room, sizeof(room))

/* A datagram's payload. */
struct merge_source {
	struct ctx_buff *skb;
	__u32 offset;
};

/* Where the payload's first bytes can be read: mostly in the packet, without a call. */
static __always_inline const void *merge_head(struct merge_source source, void *room, const __u32 length)
{
	void *data = (void *)(long)source.skb->data, *end = (void *)(long)source.skb->data_end;

	if (likely(source.offset <= L4_MASK)) {
		data += source.offset;
		if (likely(data + length <= end))
			return data;
	}
	return load_bytes(source.skb, source.offset, room, length) ? 0 : room;
}

VERIFIED_ONCE int merge_make_block(__u32 number)
{
	struct cut *cut = cut_here();

	if (!cut)
		return 0;
	for (__u32 i = 0; i < sizeof(struct merge_block) / 8; i++)
		((volatile __u64 *)cut->bytes)[i] = 0;
	return bpf_map_update_elem(&merge_blocks, &number, cut->bytes, BPF_NOEXIST);
}

static __always_inline struct merge_block *merge_block_at(__u32 number)
{
	struct merge_block *block = bpf_map_lookup_elem(&merge_blocks, &number);

	if (likely(block))
		return block;
	merge_make_block(number);
	return bpf_map_lookup_elem(&merge_blocks, &number);
}

static __always_inline struct merge *merge_at(__u32 index)
{
	return bpf_map_lookup_elem(&merges, &index);
}

#include "merge_read.h"
#include "merge_fragment.h"

/* Some segments of a super-packet pass and some do not. */
#define ARBITER_MIXED (DROP_SLOTS + 1)
/* None does, each for a reason of its own, and counted already. */
#define ARBITER_NONE (DROP_SLOTS + 2)

static __always_inline __u32 drop_reason(__u32 verdict)
{
	switch (verdict) {
	case MERGE_FIRST:
		return NOT_DROPPED;
	case MERGE_LATE:
		return DROP_LATE;
	case MERGE_STRAY:
		return DROP_STRAY;
	case MERGE_EXCEEDED:
		return DROP_STREAMS_EXCEEDED;
	default:
		return DROP_DUPLICATE;
	}
}

_Static_assert(sizeof(struct merge_packet) <= sizeof(((struct cut *)0)->packet), "it has room");

/* What stands for a packet's sender, its port included. */
static __always_inline __u32 sender_of(const struct packet *p)
{
	return digest(p, p->source) ^ p->sport * 0x9e3779b1u;
}

/* A payload on its way into a hash. */
struct hashed {
	struct merge_digest digest;
	struct cut *cut;
};

static long hash_chunk(__u32 i, struct hashed *h)
{
	__u64 *chunk = (__u64 *)(h->cut->bytes + below(i, CUT_PAYLOAD / MERGE_CHUNK) * MERGE_CHUNK);

	merge_digest_chunk(&h->digest, chunk);
	return 0;
}

VERIFIED_ONCE __u64 merge_hash(struct ctx_buff *skb, __u32 offset, __u32 length)
{
	struct hashed h = { .cut = cut_here() };

	if (!h.cut || length >= CUT_PAYLOAD)
		return 0;
	if (length && load_bytes(skb, offset, h.cut->bytes, below(length - 1, CUT_PAYLOAD) + 1))
		return 0;
	for (int i = 0; i < MERGE_CHUNK; i++)
		*(volatile __u8 *)&h.cut->bytes[below(length, CUT_PAYLOAD) + i] = 0;
	merge_digest_start(&h.digest);
	bpf_loop((length + MERGE_CHUNK - 1) / MERGE_CHUNK, hash_chunk, &h, 0);
	return merge_digest_end(&h.digest, length);
}

/* Reads what a datagram is called by, whose payload stands there; says whether it has such a name. */
VERIFIED_ONCE int merge_name(struct ctx_buff *skb, const struct merge *m, struct merge_packet *p,
			     __u32 offset, __u32 length)
{
	struct merge_source source = { .skb = skb, .offset = offset };

	if (!m || !p)
		return false;
	return !merge_read(m, source, length, p);
}

/* Judges a datagram whose payload stands there. What is said of it lies in `cut`, for the stack is short. */
static __always_inline __u32 merge_datagram(struct ctx_buff *skb, struct cut *cut, __u32 arbiter,
					    __u32 offset, __u32 length)
{
	struct merge_packet *p = (struct merge_packet *)cut->packet;
	__u32 index = (arbiter >> ARBITER_MERGE_SHIFT) - 1;
	struct merge *m = bpf_map_lookup_elem(&merges, &index);
	__u32 verdict;

	if (!m)
		return MERGE_FIRST;
	p->line = arbiter >> ARBITER_LINE_SHIFT & ARBITER_KIND;
	p->now_ns = bpf_ktime_get_coarse_ns();
	p->length = length;
	if (unlikely(m->format.by >= MERGE_BY_PAYLOAD)) {
		p->number = merge_hash(skb, offset, length);
		if (m->format.by == MERGE_BY_ONCE_FROM_EACH)
			p->number = merge_digest_of_sender(p->number, cut->sender);
		return merge_judge_payload(m, p);
	}
	p->merge = index;
	p->still = p->once = 0;
	if (unlikely(!merge_name(skb, m, p, offset, length)))
		return merge_stray(m, p->line);
	verdict = merge_judge(m, p);
	if (unlikely(verdict == MERGE_UNNUMBERED))
		verdict = merge_judge_unnumbered(m, p, merge_hash(skb, offset, length));
	return merge_count(m, p, verdict);
}

#define SUM_CHUNK 512		/* no more than bpf_csum_diff takes at once */

/* A datagram on its way into a sum. */
struct summed {
	struct cut *cut;
	__u32 length;	/* a multiple of four */
	__u32 sum;
};

static long sum_chunk(__u32 i, struct summed *s)
{
	__u32 left = s->length - i * SUM_CHUNK;
	__be32 *chunk = (__be32 *)(s->cut->bytes + below(i, CUT_PAYLOAD / SUM_CHUNK) * SUM_CHUNK);

	if (left > SUM_CHUNK)
		left = SUM_CHUNK;
	s->sum = bpf_csum_diff(0, 0, chunk, left, s->sum);
	return 0;
}

/* Says whether a datagram's UDP checksum holds, if it has one: a damaged copy shuts no good one out. One
 * that a device is to finish has the sum of the pseudo header; others that a device found good are.
 */
VERIFIED_ONCE int is_intact(struct ctx_buff *skb, const struct packet *p)
{
	struct summed s = { .cut = cut_here() };
	__u32 length;
	__u64 sum;

	if (!p || !s.cut || !p->udp_check)
		return true;
	length = p->payload + sizeof(struct udphdr);
	sum = (__u64)be16(IPPROTO_UDP) + be16(length);
	for (int i = 0; i < 4 && (!i || p->ipv6); i++)
		sum += (__u64)p->source[i] + p->destination[i];
	s.sum = fold(sum);
	if (s.sum == p->udp_check || length >= CUT_PAYLOAD || is_found_good(skb))
		return true;
	if (load_bytes(skb, p->l4 & L4_MASK, s.cut->bytes, below(length - 1, CUT_PAYLOAD) + 1))
		return true;
	for (int i = 0; i < 3; i++)
		*(volatile __u8 *)&s.cut->bytes[below(length, CUT_PAYLOAD) + i] = 0;
	s.length = (length + 3) & ~3u;
	bpf_loop((length + SUM_CHUNK - 1) / SUM_CHUNK, sum_chunk, &s, 0);
	return fold(s.sum) == 0xffff;
}

VERIFIED_ONCE int merge_one(struct ctx_buff *skb, const struct packet *p, __u32 arbiter)
{
	struct cut *cut = cut_here();

	if (!p || !cut)
		return MERGE_FIRST;
	cut->sender = sender_of(p);
	return merge_datagram(skb, cut, arbiter, (p->l4 & L4_MASK) + sizeof(struct udphdr), p->payload);
}

static long judge_segment(__u32 i, struct fanout *f)
{
	struct cut *cut = cut_here();
	__u32 start, length, verdict;

	if (!cut || i >= CUT_SEGMENTS)
		return 1;
	start = i * cut->segment;
	if (start > cut->payload)
		return 1;
	length = cut->payload - start;
	if (length > cut->segment)
		length = cut->segment;
	verdict = merge_datagram(f->skb, cut, cut->arbiter,
				 (f->p.l4 & L4_MASK) + sizeof(struct udphdr) + start, length);
	if (verdict == MERGE_FIRST)
		cut->kept[below(i >> 6, CUT_SEGMENTS / 64)] |= 1ull << (i & 63);
	else
		cut->dropped[below(verdict, 8)]++;
	return 0;
}

/* Notes what will be judged of a super-packet; says whether there is room for it. */
VERIFIED_ONCE int begin_cut(struct ctx_buff *skb, const struct packet *p, __u32 arbiter)
{
	struct cut *cut = cut_here();

	if (!p || !cut || p->segments > CUT_SEGMENTS || segment_size(skb) > CUT_SEGMENT_MAX)
		return false;
	cut->sender = sender_of(p);
	cut->segment = segment_size(skb);
	cut->payload = p->payload;
	cut->arbiter = arbiter;
	cut->kept[0] = cut->kept[1] = 0;
	for (int i = 0; i < MERGE_VERDICTS; i++)
		cut->dropped[i] = 0;
	return true;
}

/* Counts the segments that do not pass, for the rule and for the input. */
VERIFIED_ONCE int count_cut(__u32 rule, __u32 input)
{
	struct drops *of_rule = bpf_map_lookup_elem(&drops, &rule);
	struct drops *of_input = bpf_map_lookup_elem(&drops, &input);
	struct cut *cut = cut_here();

	if (!cut || !of_rule || !of_input)
		return 0;
	for (__u32 i = MERGE_DUPLICATE; i < MERGE_VERDICTS; i++) {
		__u64 count = cut->dropped[i];
		__u32 reason = drop_reason(i);

		if (!count)
			continue;
		__sync_fetch_and_add(&of_rule->packets[reason], count);
		__sync_fetch_and_add(&of_input->packets[reason], count);
	}
	return 0;
}

/* What becomes of a super-packet whose segments were judged. */
VERIFIED_ONCE int sum_cut(__u32 segments)
{
	struct cut *cut = cut_here();
	__u32 dropped = 0;

	if (!cut)
		return NOT_DROPPED;
	for (__u32 i = MERGE_DUPLICATE; i < MERGE_VERDICTS; i++)
		dropped += cut->dropped[i];
	if (!dropped)
		return NOT_DROPPED;
	return dropped < segments ? ARBITER_MIXED : ARBITER_NONE;
}

static __always_inline __u32 merge_super(struct fanout *f, __u32 arbiter)
{
	if (!begin_cut(f->skb, &f->p, arbiter))
		return NOT_DROPPED;	/* rather twice than never */
	bpf_loop(f->p.segments, judge_segment, f, 0);
	return sum_cut(f->p.segments);
}

/* Where a fragment lies in its datagram. */
static __always_inline __u64 piece_of(struct ctx_buff *skb, const struct packet *p)
{
	__u32 at = IP_OFFSET + 6, length = p->payload & 0xffff, offset;
	__be16 field;

	if (p->part == PART_FIRST)
		return length + sizeof(struct udphdr);
	if (p->ipv6)
		at = (p->l4 & L4_MASK) - 6;
	if (load_bytes(skb, at, &field, sizeof(field)))
		return length;
	offset = host16(field);
	if (p->ipv6)
		return (__u64)(offset & 0xfff8) << 16 | length | (offset & 1 ? 0 : PIECE_LAST);
	return (__u64)(offset & 0x1fff) << 19 | length | (offset & 0x2000 ? 0 : PIECE_LAST);
}

/* Puts aside what has come of a fragment's datagram, and which piece it is: the stack is short. */
VERIFIED_ONCE int begin_piece(struct ctx_buff *skb, const struct packet *p, __u32 index)
{
	struct cut *cut = cut_here();
	struct fragment_key key = {};
	struct fragment_ports *ports;
	struct merge_packet *m;

	if (!p || !cut)
		return 0;
	m = (struct merge_packet *)cut->packet;
	ports = begin_datagram(skb, p, &key);
	cut->pieces.name = ports ? ports->name : 0;
	cut->pieces.state = ports ? ports->state : 0;
	cut->piece = piece_of(skb, p);
	if (p->part == PART_FIRST)
		return 0;
	m->now_ns = bpf_ktime_get_coarse_ns();
	m->merge = index;
	if (!(cut->pieces.state & PIECES_FATE))
		m->number = merge_digest_of_sender(merge_hash(skb, p->l4 & L4_MASK, p->payload) ^ cut->piece,
						   sender_of(p) ^ p->id);
	return 0;
}

/* Judges a fragment; of a first one its datagram has been judged. */
VERIFIED_ONCE __u32 follow(__u32 index, __u32 verdict)
{
	struct merge *rule = bpf_map_lookup_elem(&merges, &index);
	struct cut *cut = cut_here();

	if (!rule || !cut)
		return MERGE_FIRST;
	return merge_follow(rule, (struct merge_packet *)cut->packet, &cut->pieces, cut->piece, verdict);
}

VERIFIED_ONCE int end_piece(struct ctx_buff *skb, const struct packet *p)
{
	struct cut *cut = cut_here();
	struct fragment_key key = {};
	struct fragment_ports *ports;

	if (!p || !cut)
		return 0;
	ports = datagram_of(skb, p, &key);
	if (ports) {
		ports->name = cut->pieces.name;
		ports->state = cut->pieces.state | FRAGMENT_TICKS;
	}
	return 0;
}

static __always_inline __u32 merge_piece(struct fanout *f, __u32 arbiter)
{
	__u32 verdict = MERGE_VERDICTS;

	if (f->p.part == PART_FIRST)
		verdict = merge_one(f->skb, &f->p, arbiter);
	begin_piece(f->skb, &f->p, (arbiter >> ARBITER_MERGE_SHIFT) - 1);
	verdict = follow((arbiter >> ARBITER_MERGE_SHIFT) - 1, verdict);
	end_piece(f->skb, &f->p);
	return drop_reason(verdict);
}

#define WATCH_TURNS 256		/* looking at a packet takes less */

/* The route whose `health` a packet is looked at for: where legs are merged, one for all of them, and one
 * CPU at a time, or what passes would seem to have holes.
 */
VERIFIED_ONCE __u32 begin_watch(__u32 arbiter, __u32 slot)
{
	__u32 index = (arbiter >> ARBITER_MERGE_SHIFT) - 1;
	struct merge *m = bpf_map_lookup_elem(&merges, &index);

	if (!m)
		return slot;
	for (int i = 0; i < WATCH_TURNS; i++)
		if (!__sync_val_compare_and_swap(&m->watcher, 0, 1))
			break;
	if (!m->watch)
		m->watch = slot;
	return m->watch;
}

VERIFIED_ONCE int end_watch(__u32 arbiter)
{
	__u32 index = (arbiter >> ARBITER_MERGE_SHIFT) - 1;
	struct merge *m = bpf_map_lookup_elem(&merges, &index);

	if (m)
		*(volatile __u32 *)&m->watcher = 0;
	return 0;
}

/* Why a packet of one of a rule's several inputs does not pass. */
static __always_inline __u32 arbitrate(struct fanout *f, __u32 input, __u32 arbiter)
{
	if ((arbiter & ARBITER_KIND) == ARBITER_FAILOVER)
		return is_standby(f->m.counter, input) ? DROP_STANDBY : NOT_DROPPED;
	if (unlikely(f->p.part != PART_WHOLE))
		return merge_piece(f, arbiter);
	if (unlikely(segment_size(f->skb)))
		return merge_super(f, arbiter);
	if (unlikely(!is_intact(f->skb, &f->p)))
		return DROP_MALFORMED;
	return drop_reason(merge_one(f->skb, &f->p, arbiter));
}

#endif
