/* Merging for the workers of the userspace path: the program's own source on memory that they share.
 * `merge.rs` calls it. Nothing in the memory is trusted to lead anywhere: it is shared.
 */
#include <linux/types.h>
#include <stddef.h>

struct native_source {
	const __u8 *payload;
};

#define MERGE_CALL static
#define MERGE_MISSING(pointer) 0
#define MERGE_KEEP(verdict)
#define MERGE_NS() (p->now_ns)
#define MERGE_PACKET_MORE struct merge_block *blocks; struct merge *merges; __u32 block_count;
#define MERGE_AT(p, index) ((index) < MERGE_RULES ? &(p)->merges[index] : NULL)
#define MERGE_BLOCK(m, n) native_block(p, n)
#define MERGE_SOURCE struct native_source
#define MERGE_BYTES(source, offset, to, length) (__builtin_memcpy(to, source.payload + (offset), length), 0)
#define MERGE_HEAD(source, room) __builtin_memcpy(room, source.payload, sizeof(room))

struct merge_packet;
static struct merge_block *native_block(const struct merge_packet *p, __u32 n);

#include "merge_read.h"
#include "merge_fragment.h"

static inline struct merge_block *native_block(const struct merge_packet *p, __u32 n)
{
	return n < p->block_count ? &p->blocks[n] : NULL;
}

static __u64 native_digest(const __u8 *payload, __u32 length)
{
	__u64 chunk[MERGE_CHUNK_WORDS];
	struct merge_digest d;
	__u32 at = 0;

	merge_digest_start(&d);
	for (; length - at >= MERGE_CHUNK; at += MERGE_CHUNK) {
		__builtin_memcpy(chunk, payload + at, MERGE_CHUNK);
		merge_digest_chunk(&d, chunk);
	}
	if (length - at) {
		__builtin_memset(chunk, 0, MERGE_CHUNK);
		__builtin_memcpy(chunk, payload + at, length - at);
		merge_digest_chunk(&d, chunk);
	}
	return merge_digest_end(&d, length);
}

static __u32 native_judge(struct merge *m, struct merge_packet *p, const __u8 *payload, __u32 length, __u32 sender)
{
	struct native_source source = { payload };
	__u32 verdict;

	switch (m->format.by) {
	case MERGE_BY_RTP:
	case MERGE_BY_SEQUENCE:
		if (merge_read(m, source, length, p))
			return merge_stray(m, p->line);
		verdict = merge_judge(m, p);
		if (verdict == MERGE_UNNUMBERED)
			verdict = merge_judge_unnumbered(m, p, native_digest(payload, length));
		return merge_count(m, p, verdict);
	case MERGE_BY_PAYLOAD:
	case MERGE_BY_ONCE:
	case MERGE_BY_ONCE_FROM_EACH:
		p->number = native_digest(payload, length);
		if (m->format.by == MERGE_BY_ONCE_FROM_EACH)
			p->number = merge_digest_of_sender(p->number, sender);
		return merge_judge_payload(m, p);
	default:
		return MERGE_FIRST;
	}
}

/* Judges a packet of the rule with that index, or a fragment of one, of whose datagram its leg has brought
 * `pieces`; `piece` says where it lies, PIECE_LATER whether it follows others.
 */
__u32 mcr_merge_judge(struct merge *merges, __u32 index, struct merge_block *blocks, __u32 block_count, __u32 line,
		      const __u8 *payload, __u32 length, __u32 sender, __u64 now_ns, struct merge_pieces *pieces,
		      __u64 piece)
{
	struct merge_packet packet = {
		.merges = merges, .merge = index, .line = line, .now_ns = now_ns, .blocks = blocks, .block_count = block_count,
		.length = length,
	};
	struct merge *m = &merges[index];
	__u32 verdict = MERGE_VERDICTS;

	if (!pieces || !(piece & PIECE_LATER))
		verdict = native_judge(m, &packet, payload, length, sender);
	else if (!(pieces->state & PIECES_FATE))
		packet.number = merge_digest_of_sender(native_digest(payload, length) ^ piece, sender);
	return pieces ? merge_follow(m, &packet, pieces, piece, verdict) : verdict;
}

/* Where everything lies, for a test of the mirror in Rust. */
#define AT(type, member) offsetof(struct type, member)
const __u32 mcr_merge_layout[] = {
	sizeof(struct merge_format), AT(merge_format, by), AT(merge_format, number_offset),
	AT(merge_format, number_bytes), AT(merge_format, little_endian), AT(merge_format, session_offset),
	AT(merge_format, session_bytes), AT(merge_format, count_bytes), AT(merge_format, count_offset),
	sizeof(struct merge_part), AT(merge_part, first), AT(merge_part, last),
	AT(merge_part, mark),
	sizeof(struct merge_stream), AT(merge_stream, id), AT(merge_stream, top), AT(merge_stream, base),
	AT(merge_stream, opened_ns), AT(merge_stream, seen_ns), AT(merge_stream, began_ns), AT(merge_stream, again),
	sizeof(struct merge_line), AT(merge_line, counts), AT(merge_line, numbers), AT(merge_line, seen_ns),
	AT(merge_line, candidate), AT(merge_line, span), AT(merge_line, skew_ns_8),
	AT(merge_line, skew_max_ns), AT(merge_line, since_ns), AT(merge_line, owner),
	AT(merge_line, unnumbered), AT(merge_line, still), AT(merge_line, exceeded), AT(merge_line, cut),
	AT(merge_line, stray), AT(merge_line, joins),
	AT(merge_line, began_ns), AT(merge_line, part),
	sizeof(struct merge), AT(merge, format), AT(merge, first_block), AT(merge, blocks_log),
	AT(merge, window_ns), AT(merge, newest), AT(merge, owner), AT(merge, first_place), AT(merge, places), AT(merge, cells), AT(merge, span), AT(merge, firsts),
	AT(merge, unnumbered), AT(merge, unsettled), AT(merge, watch), AT(merge, watcher), AT(merge, key), AT(merge, opener), AT(merge, streams), AT(merge, stream), AT(merge, line),
	sizeof(struct merge_block), AT(merge_block, word), AT(merge_block, stamp),
};
const __u32 mcr_merge_layout_length = sizeof(mcr_merge_layout) / sizeof(mcr_merge_layout[0]);
