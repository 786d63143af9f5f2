/* What merging keeps of a rule whose lines bring the same: the same words for the program and for the
 * workers. `layout.rs` mirrors it.
 */
#ifndef MERGE_LAYOUT_H
#define MERGE_LAYOUT_H

#include <linux/types.h>

#define MERGE_LINES 4		/* rules::merge::LINES_MAX */
#define MERGE_STREAMS 4
#ifndef MERGE_WORDS_LOG	/* the checker has small ones */
#define MERGE_WORDS_LOG 8
#endif
#define MERGE_WORDS (1 << MERGE_WORDS_LOG)	/* of a block, 8 numbers each */
#define MERGE_BLOCK_NUMBERS (8 * MERGE_WORDS)	/* rules::merge::DEFAULT_PACKETS */
#define MERGE_STAMPS (MERGE_WORDS / 4)
#ifndef MERGE_RINGS
#define MERGE_RINGS 262144	/* names of blocks that user space gives to rules */
#endif
#define MERGE_TABLE 4		/* blocks of what has no number, of each entry of `merges`; behind those */
#ifndef MERGE_RULES
#define MERGE_RULES 131072
#define MERGE_CELL_BLOCKS 128	/* of each cell, behind the tables */
#endif
#define MERGE_CELL (1ull << 63)	/* in `owner`: packets took it for a key of a rule */
#define MERGE_READY (1ull << 62)

enum merge_by {
	MERGE_BY_NOTHING = 0,	/* nothing is merged: each packet is the first */
	MERGE_BY_RTP = 1,
	MERGE_BY_SEQUENCE = 2,
	MERGE_BY_PAYLOAD = 3,
	MERGE_BY_ONCE = 4,	/* each payload passes once in a window, whichever line brings it */
	MERGE_BY_ONCE_FROM_EACH = 5,	/* likewise, of each sender by itself */
};

/* What a packet of a stream is called by, in the payload. */
struct merge_format {
	__u32 by;
	__u16 number_offset;
	__u8 number_bytes;	/* 2, 4, 8 */
	__u8 little_endian;
	__u16 session_offset;
	__u8 session_bytes;	/* 0: one stream; up to 16 */
	__u8 count_bytes;	/* 0: each packet takes up one number; 1, 2, 4 */
	__u16 count_offset;
	__u16 pad;
};

/* The numbers of one stream that one line brought. Generation in the upper 16 bits. */
struct merge_part {
	__u64 first;
	__u64 last;
	__u64 mark;	/* the last that it brought at all, be it too far behind */
};

/* A stream: numbers of one SSRC or session that go on from each other. When they do not any more, the
 * next generation of them is another stream. A generation: count 14, line that opened the stream 2.
 */
struct merge_stream {
	__u64 id;	/* key 32, generation 16, lower bits of its first number 16; generation 0: none */
	__u64 top;	/* newest number: generation 16, number 48 */
	__u64 base;	/* oldest: the same */
	__u64 opened_ns;
	__u64 seen_ns;
	__u64 began_ns;	/* when it got its first number */
	__u64 again;	/* of each line 16 bits: how often in a row it repeated itself, and where */
	__u64 pad[1];
};

/* Whole cache lines for each line: what its packets write, and no other's. */
struct merge_line {
	__u64 counts[5];	/* by enum merge_verdict */
	__u64 numbers;		/* that it brought, in time or late */
	__u64 seen_ns;		/* when a packet of it belonged to a stream */
	__u64 candidate;	/* a number that may begin a stream anew, with a digest of its key, plus one */
	__u64 span;		/* numbers of streams that are over */
	__u64 skew_ns_8;	/* how much later than the first its copies come: mean, times 8 */
	__u64 skew_max_ns;
	__u64 since_ns;		/* written by user space: since when it is a line of this rule; 0: it is none */
	__u64 owner;		/* likewise, for itself alone: its input's counter plus one */
	__u64 unnumbered;	/* of `counts`, first and duplicate ones that have no number */
	__u64 still;		/* of `counts`, first ones under a number that stands still */
	__u64 exceeded;		/* of streams for which there was no room */
	__u64 cut;		/* of what another line cut into packets differently, as far as that is seen */
	__u64 stray;		/* like `candidate`, of what nobody had begun when it brought that */
	__u64 joins;		/* written by user space: it came to others, or in the place of some */
	__u64 began_ns;		/* when it brought its first of the stream that it came to last */
	struct merge_part part[MERGE_STREAMS];	/* of each stream */
};

/* Entry of `merges`: a rule's, with its legs and the streams of one SSRC or session; or a cell, which
 * packets take for another one of the rule's, and user space gives back when nothing comes any more. What
 * a cell counts is part of what the rule does. Of a rule's user space writes it all before the first packet, and of a rule that is running
 * only `window_ns` and, of a line that comes, what is that line's.
 */
struct merge {
	struct merge_format format;
	__u32 first_block;	/* of `merge_blocks`; MERGE_STREAMS << blocks_log follow each other */
	__u32 blocks_log;	/* blocks of a stream */
	__u64 window_ns;	/* after so long without a packet nothing of a stream is in flight */
	__u64 newest;		/* generation of the stream opened last, without a line; its place 8 */
	__u64 owner;		/* for user space alone: the rule's counter plus one; 0: free */
	__u32 first_place;	/* of the entries that packets may take as cells, */
	__u32 places;		/* so many */
	__u64 cells;		/* the first of the rule's, plus one; above it, how many. Of a cell: the next */
	__u64 span;		/* numbers of streams that are over */
	__u64 firsts;		/* numbers that left and stand in no line's counts: of lines that went, and
				 * all where packets take up several
				 */
	__u64 unnumbered;	/* packets that passed and have no number */
	__u64 unsettled;	/* passed on without a decision: the memory has no room for them */
	__u32 watch;		/* the route whose `health` all lines' packets are looked at for, plus one */
	__u32 watcher;		/* of the kernel path: a CPU is at it */
	__u64 key;		/* whose streams are here, with bit 32 set; 0: nobody's */
	__u64 opener;		/* when a leg began to bring something while none did 32, its number 16, of a digest of
				 * its key 14, the leg 2
				 */
	__u32 streams;		/* the most keys at a time */
	__u32 pad;
	struct merge_stream stream[MERGE_STREAMS];
	struct merge_line line[MERGE_LINES];
};

/* What a leg has brought of a datagram in fragments (merge_fragment.h). */
struct merge_pieces {
	__u32 name;
	__u32 state;
};

/* Element of `merge_blocks`, of one stream: a ring of words or part of it.
 *
 *	63       48 47  32 31                                0
 *	generation  epoch  a bit for each line and 8 numbers
 *
 * By payload all blocks are one table of `word`s, eight to a bucket.
 */
struct merge_block {
	__u64 word[MERGE_WORDS];
	__u64 stamp[MERGE_STAMPS];	/* number 16, length 16, time 32, of the packet that opened a word */
};

#endif
