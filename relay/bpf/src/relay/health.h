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
#define RTP_CONFIRM 16		/* packet::health::rtp::CONFIRM */
#define RTP_PATIENCE 8		/* packet::health::rtp::PATIENCE */
#define RTP_TICK_SHIFT 16
#define RTCP_FIRST 64		/* packet::rtp::RTCP_PAYLOAD_TYPES */
#define RTCP_LAST 95
#define TS_PACKET 188
#define TS_SYNC 0x47
#define TS_PIDS 0x2000
#define TS_NULL_PID (TS_PIDS - 1)
#define TS_SEEN 0x80
#define TS_TWICE 0x40
#define TS_HEADER_MASK 0xff800000	/* sync byte and transport error indicator */
#define TS_PAYLOAD 0x10
#define TS_USUAL 7	/* packets in a datagram: as many as fit into 1500 bytes */
#define EPOCH_SHIFT 30		/* packet::health::EPOCH_SHIFT */

/* The payload under inspection. */
struct payload {
	struct ctx_buff *skb;
	struct health *h;
	const struct cut *cut;	/* which segments pass; NULL: all */
	__u64 now;
	__u32 route;
	__u32 offset;	/* of all segments, in the frame */
	__u32 length;
	__u32 segment;	/* length of each but the last */
};

/* MPEG-TS packets under inspection. */
struct ts_packets {
	struct ctx_buff *skb;
	struct health *h;
	__u32 route;
	__u32 offset;	/* of the first, in the frame */
};

/* Copies words of the frame: straight where they lie in the first buffer, as most do, for the helper
 * costs as much as what is done with them; and as words, for the compiler would go byte by byte.
 */
static __always_inline bool peek(struct ctx_buff *skb, __u32 at, __be32 *to, const __u32 words)
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
	return load_bytes(skb, at, to, words * 4) == 0;
}

static __always_inline void note_arrival(struct health *h, __u64 now)
{
	__u64 epoch = now >> EPOCH_SHIFT, last = h->last_ns;

	if (unlikely(epoch != h->epoch)) {
		h->gap_before_ns = h->epoch + 1 == epoch ? h->gap_ns : 0;
		h->gap_ns = 0;
		h->epoch = epoch;
	}
	if (unlikely(last && now > last && now - last > h->gap_ns))
		h->gap_ns = now - last;
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
	h->rtp_packets += 2;	/* the candidate as well */
}

/* Says whether the packet is the second of two in a row of what is not followed yet. Some packets of
 * others may stand between: sources that send in turn. What is none of either is not recognised.
 */
static __always_inline bool rtp_candidate(struct health *h, __u32 ssrc, __u16 sequence)
{
	__u16 ahead = sequence - h->candidate_next;
	bool near = h->has_candidate && h->candidate_ssrc == ssrc && ahead < RTP_CONFIRM;

	if (near && !ahead)
		return true;
	if (h->has_candidate && !near) {
		h->unrecognised += !h->followed;
		if (h->has_candidate++ < RTP_PATIENCE)
			return false;
	}
	h->has_candidate = 1;
	h->candidate_ssrc = ssrc;
	h->candidate_next = sequence + 1;
	return false;
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

/* Where a PID's state lies in `known`: neighbours apart, and the usual round numbers as well. */
static __always_inline __u32 ts_place(__u32 pid)
{
	return below(pid ^ pid >> TS_PLACES_SHIFT ^ pid >> 2 * TS_PLACES_SHIFT, TS_PLACES);
}

/* Takes a packet with payload that goes on from the last one of a PID that is known, or stuffing. */
static __always_inline bool ts_goes_on(struct health *h, __u32 header)
{
	__u32 pid = header >> 8 & 0x1fff, place = ts_place(pid);
	__u32 tag = pid >> TS_PLACES_SHIFT << 8 | TS_SEEN;

	if (unlikely((header & TS_HEADER_MASK) != (__u32)TS_SYNC << 24))
		return false;
	if (likely(header & TS_PAYLOAD &&
		   (h->known[place] & ~TS_TWICE) == (tag | ((header - 1) & 0x0f)))) {
		h->known[place] = tag | (header & 0x0f);
		return true;
	}
	return pid == TS_NULL_PID;
}

/* The state of a PID, which takes its place in `known`; what was there goes back to its own in
 * `pids`. The upper half says whose it is.
 */
static __always_inline bool ts_know(struct health *h, __u32 route, __u32 pid, __u32 *state)
{
	__u32 place = ts_place(pid), was = h->known[place], other = was >> 8;
	__u8 *all;

	*state = was & 0xff;
	if (was & TS_SEEN && other == pid >> TS_PLACES_SHIFT)
		return true;
	all = bpf_map_lookup_elem(&pids, &route);
	if (unlikely(!all))
		return false;
	if (was & TS_SEEN) {
		other = other << TS_PLACES_SHIFT |
			((place ^ other ^ other >> TS_PLACES_SHIFT) & (TS_PLACES - 1));
		all[below(other, TS_PIDS)] = was;
	}
	*state = all[pid];
	return true;
}

/* Looks at a packet by its header and the word behind that, whose first two bytes are the adaptation
 * field's.
 */
static __always_inline void ts_packet(struct health *h, __u32 route, __u32 header, __be32 behind)
{
	__u32 pid = header >> 8 & 0x1fff, adaptation = header >> 4 & 3, counter = header & 0x0f;
	__u32 state, next = TS_SEEN | counter;

	if (unlikely(header >> 24 != TS_SYNC)) {
		h->sync_errors++;
		return;
	}
	if (unlikely(header & 0x800000)) {
		h->transport_errors++;
		return;
	}
	if (pid == TS_NULL_PID || !adaptation || !ts_know(h, route, pid, &state))
		return;
	if (!(state & TS_SEEN))
		h->pids++;
	else if (adaptation & 2 && host32(behind) >> 24 && host32(behind) & 0x800000)
		;
	else if (!(adaptation & 1))
		h->continuity_errors += counter != (state & 0x0f);
	else if (counter == (state & 0x0f) && !(state & TS_TWICE))
		next |= TS_TWICE;
	else
		h->continuity_errors += counter != ((state + 1) & 0x0f);
	h->known[ts_place(pid)] = pid >> TS_PLACES_SHIFT << 8 | next;
}

static long ts_next(__u32 i, struct ts_packets *t)
{
	__be32 header[2];

	if (!peek(t->skb, t->offset + i * TS_PACKET, header, 2))
		return 1;
	t->h->ts_packets++;
	ts_packet(t->h, t->route, host32(header[0]), header[1]);
	return 0;
}

VERIFIED_ONCE int ts_all(struct ctx_buff *skb, struct health *h, __u32 route, __u32 offset,
			 __u32 packets)
{
	if (!h)
		return 0;

	struct ts_packets t = { .skb = skb, .h = h, .route = route, .offset = offset };

	bpf_loop(packets, ts_next, &t, 0);
	return 0;
}

/* The same for as many packets as there mostly are, where all lie in the first buffer. A loop, as small
 * code that the rest of the stack does not push out of the cache.
 */
static __always_inline void ts_usual(struct ctx_buff *skb, struct health *h, __u32 route,
				     __u32 at)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	void *from = data + (at & L4_MASK);
	__u32 i = 0;

	if (likely(at <= L4_MASK && from + TS_USUAL * TS_PACKET <= end)) {
#pragma clang loop unroll(disable)
		for (; i < TS_USUAL; i++) {
			const __be32 *header = from + i * TS_PACKET;

			if (unlikely(!ts_goes_on(h, host32(*header))))
				break;
		}
		h->ts_packets += i;
	}
	if (unlikely(i < TS_USUAL))
		ts_all(skb, h, route, at + i * TS_PACKET, TS_USUAL - i);
}

/* Takes `length` bytes at `offset` if they are a whole number of packets. */
static __always_inline bool ts(struct ctx_buff *skb, struct health *h, __u32 route, __u32 offset,
			       __u32 length, __u8 first)
{
	if (first != TS_SYNC || !length || length % TS_PACKET)
		return false;
	ts_all(skb, h, route, offset, length / TS_PACKET);
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
	if (unlikely(first & 0x20000000)) {	/* padding, whose last byte counts it */
		__u8 padding = 0;

		if (load_bytes(y->skb, offset + length - 1, &padding, 1))
			return;
		length -= padding;
	}
	if (at >= length || length > y->length || !peek(y->skb, offset + at, &word, 1))
		return;
	ts(y->skb, y->h, y->route, offset + at, length - at, host32(word) >> 24);
}

static __always_inline bool is_rtp(__u32 first)
{
	__u32 type = first >> 16 & 0x7f;

	return first >> 30 == 2 && !(type >= RTCP_FIRST && type <= RTCP_LAST);
}

static __always_inline bool is_kept(const struct cut *cut, __u32 segment)
{
	return segment < CUT_SEGMENTS &&
	       cut->kept[below(segment >> 6, CUT_SEGMENTS / 64)] >> (segment & 63) & 1;
}

static long inspect_segment(__u32 i, struct payload *y)
{
	__u32 start = i * y->segment, length = y->length - start;
	__u32 offset = y->offset + start;
	__u32 content = y->h->content, first;
	__be32 header[RTP_HEADER / 4];

	if (start > y->length)
		return 1;
	if (y->cut && !is_kept(y->cut, i))
		return 0;
	if (length > y->segment)
		length = y->segment;
	if (length < RTP_HEADER || !peek(y->skb, offset, header, RTP_HEADER / 4))
		goto unrecognised;
	first = host32(header[0]);
	if (content != CONTENT_RTP && ts(y->skb, y->h, y->route, offset, length, first >> 24))
		return 0;
	if (content == CONTENT_TS || !is_rtp(first))
		goto unrecognised;
	rtp(y->h, header, y->now);
	ts_in_rtp(y, offset, length, first);
	return 0;
unrecognised:
	y->h->unrecognised++;
	return 0;
}

/* Looks at whatever it may be: of a super-packet, at every segment. */
VERIFIED_ONCE int inspect_any(struct ctx_buff *skb, const struct packet *p, struct health *h,
			      __u32 route, __u64 now)
{
	if (!p || !h)
		return 0;

	struct payload y = { .skb = skb, .h = h, .now = now, .route = route };

	y.offset = (p->l4 & L4_MASK) + sizeof(struct udphdr);
	y.length = p->payload;
	y.segment = segment_size(skb);
	if (!y.segment)
		y.segment = y.length;
	bpf_loop(p->segments, inspect_segment, &y, 0);
	return 0;
}

/* Looks at what mostly comes: RTP without contributors, extension and padding, or MPEG-TS, or both. All that in
 * one call, for kernels that guard returns make them dear; and a call it is, for the frame of the whole
 * program has no room. Says no before it has counted anything.
 */
VERIFIED_ONCE int inspect_usual(struct ctx_buff *skb, const struct packet *p, struct health *h,
				__u32 route, __u64 now)
{
	if (!p || !h)
		return 0;

	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 at = (p->l4 & L4_MASK) + sizeof(struct udphdr), first;
	const __be32 *header = data + (at & L4_MASK);
	__u32 rest = p->payload;

	if ((void *)(header + RTP_HEADER / 4 + 1) > end || rest < RTP_HEADER + 4)
		return false;
	first = host32(header[0]);
	if (h->content != CONTENT_TS && is_rtp(first) && !(first & 0x3f000000)) {
		bool has_ts = host32(header[RTP_HEADER / 4]) >> 24 == TS_SYNC;

		rest -= RTP_HEADER;
		if (has_ts && unlikely(rest != TS_USUAL * TS_PACKET))
			return false;
		rtp(h, header, now);
		if (!has_ts)
			return true;
		at += RTP_HEADER;
	} else if (first >> 24 != TS_SYNC || h->content == CONTENT_RTP ||
		   rest != TS_USUAL * TS_PACKET) {
		return false;
	}
	ts_usual(skb, h, route, at);
	return true;
}

/* Looks at a packet of the route whose index is `slot - 1`. Of a fragmented datagram only the time
 * of its pieces counts.
 */
static __always_inline void inspect(struct ctx_buff *skb, const struct packet *p, __u32 slot)
{
	__u32 route = slot - 1;
	struct health *h = bpf_map_lookup_elem(&health, &route);
	__u64 now;

	if (!h)
		return;
	now = bpf_ktime_get_ns();
	note_arrival(h, now);
	if (h->content == CONTENT_NONE || p->part != PART_WHOLE)
		return;
	if (unlikely(segment_size(skb)) || unlikely(!inspect_usual(skb, p, h, route, now)))
		inspect_any(skb, p, h, route, now);
}

/* Lets the RTP stream of that route begin anew, for packets of it were not looked at. */
static __always_inline void lose_track(__u32 slot)
{
	__u32 route = slot - 1;
	struct health *h = bpf_map_lookup_elem(&health, &route);

	if (h && h->followed)
		h->followed = 0;
}

#endif
