/* Reads out of a payload what merging calls a packet by: number, stream, how many numbers.
 *
 * The includer defines MERGE_SOURCE, a type that stands for the packet, and MERGE_BYTES(source, offset,
 * to, length), which copies so many bytes of the payload, 1 to 8, to `to`, which has room for 8, and says
 * 0 if it could. Whether they lie within the payload has been checked. And MERGE_HEAD(source, room), which
 * says where the payload's first 12 bytes can be read: in the packet itself, or copied to `room`; or 0.
 */
#ifndef MERGE_READ_H
#define MERGE_READ_H

#include "merge.h"

#define MERGE_MIX 0x9e3779b97f4a7c15ull

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define merge_little64(x) (x)
#define merge_big64(x) __builtin_bswap64(x)
#define merge_big32(x) __builtin_bswap32(x)
#else
#define merge_little64(x) __builtin_bswap64(x)
#define merge_big64(x) (x)
#define merge_big32(x) (x)
#endif

/* Reads a number of 1 to 8 bytes. Not 0: it does not lie in the payload. */
merge_inline int merge_field(MERGE_SOURCE source, __u32 payload, __u32 offset, __u32 bytes, __u32 little,
			     __u64 *value)
{
	__u64 raw = 0;

	bytes = ((bytes - 1) & 7) + 1;	/* as the verifier sees it */
	if (offset + bytes > payload || MERGE_BYTES(source, offset, &raw, bytes))
		return 1;
	*value = little ? merge_little64(raw) : merge_big64(raw) >> (64 - 8 * bytes);
	return 0;
}

/* RTP: version 2, sequence number at 2, source at 8 (RFC 3550 section 5.1). */
merge_inline int merge_read_rtp(MERGE_SOURCE source, __u32 payload, struct merge_packet *p)
{
	__u32 room[3], first;
	const __u32 *head = payload < sizeof(room) ? 0 : MERGE_HEAD(source, room);

	if (!head)
		return 1;
	first = merge_big32(head[0]);
	if (first >> 30 != 2)
		return 1;
	p->number = first & 0xffff;
	p->key = merge_big32(head[2]);
	p->width = 16;
	p->count = !((first >> 16 & 0x60) == 0x40);	/* RTCP on the same port (RFC 5761 section 4) */
	return 0;
}

merge_inline int merge_read_sequence(const struct merge_format *f, MERGE_SOURCE source, __u32 payload,
				     struct merge_packet *p)
{
	__u32 little = f->little_endian, bytes = f->number_bytes, session = f->session_bytes;
	__u64 value;

	if (merge_field(source, payload, f->number_offset, bytes, little, &p->number))
		return 1;
	p->width = bytes == 2 ? 16 : bytes == 4 ? 32 : MERGE_NUMBER_BITS;
	p->number &= MERGE_NUMBER_MASK;
	p->key = 0;
	p->count = 1;
	if (session) {
		__u64 key;

		if (merge_field(source, payload, f->session_offset, session < 8 ? session : 8, 0, &key))
			return 1;
		if (session > 8) {
			if (merge_field(source, payload, f->session_offset + 8, session - 8, 0, &value))
				return 1;
			key ^= (value + 1) * MERGE_MIX;
			key = (key ^ key >> 29) * MERGE_MIX;
		}
		if (session > 4)
			key *= MERGE_MIX;
		p->key = key ^ key >> 32;
	}
	if (f->count_bytes) {
		if (merge_field(source, payload, f->count_offset, f->count_bytes, little, &value))
			return 1;
		/* MoldUDP64: 0 is a heartbeat, all ones the end of the session. Neither has a number. */
		p->count = f->count_bytes == 2 && value == 0xffff ? 0 : value < 0xffff ? value : 0xffff;
	}
	return 0;
}

/* Reads what a packet is called by, whose payload is so long. Not 0: it is no packet of this kind. */
merge_inline int merge_read(const struct merge *m, MERGE_SOURCE source, __u32 payload, struct merge_packet *p)
{
	return m->format.by == MERGE_BY_RTP ? merge_read_rtp(source, payload, p) :
					      merge_read_sequence(&m->format, source, payload, p);
}

/* Counts a packet that has no name. */
merge_inline __u32 merge_stray(struct merge *m, __u32 line)
{
	MERGE_ADD(m->line[line & (MERGE_LINES - 1)].counts[MERGE_STRAY], 1);
	return MERGE_STRAY;
}

#endif
