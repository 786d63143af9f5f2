/* What a stream's own packets say about its health, as packet::health defines it: arrival times, RTP
 * sequence numbers, MPEG-TS continuity counters. State lies in `health`, by the route's index;
 * packets of one route that several CPUs handle at once may be counted inexactly.
 */
#ifndef HEALTH_H
#define HEALTH_H

#include "maps.h"
#include "parse.h"

#define RTP_HEADER 12
#define RTP_MAX_DROPOUT 3000	/* packet::health::rtp::MAX_DROPOUT */
#define RTP_WINDOW 64		/* packet::health::rtp::WINDOW */
#define RTP_TICK_SHIFT 16
#define TS_PACKET 188
#define TS_SYNC 0x47
#define TS_NULL_PID 0x1fff
#define TS_SEEN 0x80
#define TS_TWICE 0x40
#define TS_USUAL 7	/* packets in a datagram: as many as fit into 1500 bytes */
#define EPOCH_SHIFT 30		/* packet::health::EPOCH_SHIFT */

/* The payload under inspection. */
struct payload {
	struct __sk_buff *skb;
	struct health *h;
	__u8 *pids;
	__u64 now;
	__u32 route;
	__u32 offset;	/* of all segments, in the frame */
	__u32 length;
	__u32 segment;	/* length of each but the last */
	__u32 ts;	/* offset of the first MPEG-TS packet */
};

/* Copies words of the frame: straight where they lie in the first buffer, as most do, for the helper
 * costs as much as what is done with them; and as words, for the compiler would go byte by byte.
 */
static __always_inline bool peek(struct __sk_buff *skb, __u32 at, __be32 *to, const __u32 words)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (likely(at <= L4_MASK)) {
		__be32 *from = data + (at & L4_MASK);

		if (likely((void *)(from + words) <= end)) {
			for (__u32 i = 0; i < words; i++)
				to[i] = from[i];
			return true;
		}
	}
	return bpf_skb_load_bytes(skb, at, to, words * 4) == 0;
}

static __always_inline void note_arrival(struct health *h, __u64 now)
{
	__u64 epoch = now >> EPOCH_SHIFT;

	if (unlikely(epoch != h->epoch)) {
		h->gap_before_ns = h->epoch + 1 == epoch ? h->gap_ns : 0;
		h->gap_ns = 0;
		h->epoch = epoch;
	}
	if (likely(h->last_ns)) {
		if (now > h->last_ns && now - h->last_ns > h->gap_ns)
			h->gap_ns = now - h->last_ns;
	}
	h->last_ns = now;
}

static __always_inline __u32 ones(__u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555ull;
	bits = (bits & 0x3333333333333333ull) + (bits >> 2 & 0x3333333333333333ull);
	bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return bits * 0x0101010101010101ull >> 56;
}

/* Nanoseconds per tick, times 2^16 (RFC 3551, tables 4 and 5). */
static __always_inline __u64 rtp_tick(const struct health *h, __u32 type)
{
	const __u64 second = 1000000000ull << RTP_TICK_SHIFT;

	if (likely(type > 34))
		return h->per_tick;
	if (1u << (type & 31) & 0x0004b3b9 && type < 32)	/* 0 3-5 7-9 12 13 15 18 */
		return second / 8000;
	if (type == 14 || type == 25 || type == 26 || type == 28 || type >= 31)
		return second / 90000;
	if (type == 10 || type == 11)
		return second / 44100;
	if (type == 6)
		return second / 16000;
	if (type == 16)
		return second / 11025;
	if (type == 17)
		return second / 22050;
	return h->per_tick;
}

/* RFC 3550 A.8, in nanoseconds. */
static __always_inline void rtp_time(struct health *h, __u32 type, __u32 timestamp, __u64 now)
{
	__s64 ticks = (__s32)(timestamp - h->timestamp);
	__s64 sent = ticks * (__s64)rtp_tick(h, type) >> RTP_TICK_SHIFT;
	__s64 deviation = (__s64)(now - h->rtp_ns) - sent;
	__u64 smoothed = (h->jitter_ns_16 + 8) >> 4, jitter;

	jitter = h->jitter_ns_16 + (deviation < 0 ? -deviation : deviation);
	h->jitter_ns_16 = jitter > smoothed ? jitter - smoothed : 0;
	h->timestamp = timestamp;
	h->rtp_ns = now;
}

static __always_inline void rtp_advance(struct health *h, __u32 step)
{
	__u64 window = h->window;

	if (likely(step == 1)) {
		h->lost += ~window >> 63;
		h->window = window << 1 | 1;
	} else if (step < RTP_WINDOW) {
		h->lost += step - ones(window >> ((RTP_WINDOW - step) & 63));
		h->window = window << (step & 63) | 1;
	} else {
		h->lost += ones(~window) + step - RTP_WINDOW;
		h->window = 1;
	}
}

static __always_inline void rtp_follow(struct health *h, __u32 ssrc, __u16 sequence,
				       __u32 timestamp, __u64 now)
{
	h->followed = 1;
	h->has_candidate = 0;
	h->ssrc = ssrc;
	h->highest = sequence;
	h->window = ~0ull;
	h->timestamp = timestamp;
	h->rtp_ns = now;
	h->rtp_packets++;
}

/* Says whether the packet is the second of two in a row of what is not followed yet. */
static __always_inline bool rtp_candidate(struct health *h, __u32 ssrc, __u16 sequence)
{
	bool follows = h->has_candidate && h->candidate_ssrc == ssrc &&
		       h->candidate_next == sequence;

	h->has_candidate = 1;
	h->candidate_ssrc = ssrc;
	h->candidate_next = sequence + 1;
	return follows;
}

static __always_inline void rtp(struct health *h, const __be32 *header, __u64 now)
{
	__u32 first = host32(header[0]), timestamp = host32(header[1]), ssrc = host32(header[2]);
	__u32 type = first >> 16 & 0x7f;
	__u16 sequence = first, ahead, behind;

	if (unlikely(!h->followed || ssrc != h->ssrc)) {
		if (rtp_candidate(h, ssrc, sequence)) {
			h->ssrc_changes += h->followed;
			h->payload_type = type;
			rtp_follow(h, ssrc, sequence, timestamp, now);
		}
		return;
	}
	ahead = sequence - h->highest;
	behind = h->highest - sequence;
	if (likely(ahead && ahead < RTP_MAX_DROPOUT)) {
		rtp_advance(h, ahead);
		h->highest = sequence;
	} else if (behind < RTP_WINDOW) {
		if (h->window >> behind & 1) {
			h->duplicated++;
			h->has_candidate = 0;
			return;
		}
		h->window |= 1ull << behind;
		h->reordered++;
	} else {
		if (rtp_candidate(h, ssrc, sequence)) {
			h->restarts++;
			h->payload_type = type;
			rtp_follow(h, ssrc, sequence, timestamp, now);
		}
		return;
	}
	h->has_candidate = 0;
	h->rtp_packets++;
	h->payload_type = type;
	rtp_time(h, type, timestamp, now);
}

/* Looks at a packet by its header and the word behind that, whose first two bytes are the adaptation
 * field's.
 */
static __always_inline void ts_packet(struct health *h, __u8 *pids, __u32 header, __be32 behind)
{
	__u32 pid = header >> 8 & 0x1fff, adaptation = header >> 4 & 3, counter = header & 0x0f;
	__u8 *state = pids + pid, last, next = TS_SEEN | counter;

	if (unlikely(header >> 24 != TS_SYNC)) {
		h->sync_errors++;
		return;
	}
	if (unlikely(header & 0x800000)) {
		h->transport_errors++;
		return;
	}
	if (pid == TS_NULL_PID || !adaptation)
		return;
	last = *state & 0x0f;
	if (likely(adaptation & 1 && (*state & ~TS_TWICE) == (TS_SEEN | ((counter - 1) & 0x0f))))
		;
	else if (unlikely(!(*state & TS_SEEN)))
		h->pids++;
	else if (unlikely(adaptation & 2 && host32(behind) >> 24 && host32(behind) & 0x800000))
		;
	else if (unlikely(!(adaptation & 1)))
		h->continuity_errors += counter != last;
	else if (unlikely(counter == last && !(*state & TS_TWICE)))
		next |= TS_TWICE;
	else
		h->continuity_errors++;
	*state = next;
}

static long ts_next(__u32 i, struct payload *y)
{
	__be32 header[2];

	if (!peek(y->skb, y->ts + i * TS_PACKET, header, 2))
		return 1;
	y->h->ts_packets++;
	ts_packet(y->h, y->pids, host32(header[0]), header[1]);
	return 0;
}

/* The same for as many packets as there mostly are, where all lie in the first buffer. */
static __always_inline bool ts_usual(struct payload *y, struct health *h, __u8 *pids, __u32 at)
{
	void *data = (void *)(long)y->skb->data, *end = (void *)(long)y->skb->data_end;
	void *from = data + (at & L4_MASK);

	if (at > L4_MASK || from + TS_USUAL * TS_PACKET > end)
		return false;
	h->ts_packets += TS_USUAL;
	for (__u32 i = 0; i < TS_USUAL; i++) {
		const __be32 *header = from + i * TS_PACKET;

		ts_packet(h, pids, host32(header[0]), header[1]);
	}
	return true;
}

/* Takes `length` bytes at `offset` if they are a whole number of packets. */
static __always_inline bool ts(struct payload *y, __u32 offset, __u32 length, __u8 first)
{
	if (first != TS_SYNC || !length || length % TS_PACKET)
		return false;
	y->ts = offset;
	if (!y->pids)
		y->pids = bpf_map_lookup_elem(&pids, &y->route);
	if (unlikely(!y->pids))
		return true;
	if (length != TS_USUAL * TS_PACKET || !ts_usual(y, y->h, y->pids, offset))
		bpf_loop(length / TS_PACKET, ts_next, y, 0);
	return true;
}

/* MPEG-TS behind the RTP header, its list of contributors and its extension. */
static __always_inline void ts_in_rtp(struct payload *y, __u32 offset, __u32 length, __u32 first)
{
	__u32 at = RTP_HEADER + (first >> 24 & 0x0f) * 4;
	__be32 word;

	if (unlikely(first & 0x10000000)) {
		if (at + 4 > length || !peek(y->skb, offset + at, &word, 1))
			return;
		at += 4 + (host32(word) & 0xffff) * 4;
	}
	if (at >= length || (length - at) % TS_PACKET || !peek(y->skb, offset + at, &word, 1))
		return;
	ts(y, offset + at, length - at, host32(word) >> 24);
}

static long inspect_segment(__u32 i, struct payload *y)
{
	__u32 start = i * y->segment, length = y->length - start;
	__u32 offset = y->offset + start;
	__u32 content = y->h->content, first, type;
	__be32 header[RTP_HEADER / 4];

	if (start > y->length)
		return 1;
	if (length > y->segment)
		length = y->segment;
	if (length < RTP_HEADER || !peek(y->skb, offset, header, RTP_HEADER / 4))
		goto unrecognised;
	first = host32(header[0]);
	if (content != CONTENT_RTP && ts(y, offset, length, first >> 24))
		return 0;
	type = first >> 16 & 0x7f;
	if (content == CONTENT_TS || first >> 30 != 2 || (type >= 72 && type <= 76))
		goto unrecognised;
	rtp(y->h, header, y->now);
	ts_in_rtp(y, offset, length, first);
	return 0;
unrecognised:
	y->h->unrecognised++;
	return 0;
}

/* Looks at a packet of the route whose index is `slot - 1`. Of a fragmented datagram only the time
 * of its pieces counts; of a super-packet, every segment is looked at.
 */
static __attribute__((noinline)) int inspect(struct __sk_buff *skb, const struct packet *p,
					     __u32 slot)
{
	struct payload y = { .skb = skb, .route = slot - 1 };

	y.h = bpf_map_lookup_elem(&health, &y.route);
	if (!y.h)
		return 0;
	y.now = bpf_ktime_get_ns();
	note_arrival(y.h, y.now);
	if (y.h->content == CONTENT_NONE || p->part != PART_WHOLE)
		return 0;
	y.offset = (p->l4 & L4_MASK) + sizeof(struct udphdr);
	y.length = p->payload;
	y.segment = skb->gso_size;
	if (likely(!y.segment)) {
		y.segment = y.length;
		inspect_segment(0, &y);
		return 0;
	}
	bpf_loop(p->segments, inspect_segment, &y, 0);
	return 0;
}

#endif
