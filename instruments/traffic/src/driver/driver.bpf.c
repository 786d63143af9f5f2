/* The driver bed: frames as a driver delivers them, the bare XDP redirect, and the sinks. Pages are used again
 * as they are left, so the generator writes the headers anew each time.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include "helpers.h"

#define EGRESS_INDEX 3000	/* lab::topology::EGRESS_INDEX */
#define FIRST_PORT 5000
#define BATCH 8			/* frames that leave together where they are paced */
#define MOST_LOOPS (1 << 23)	/* BPF_MAX_LOOPS */
#define STEP_NS 250
#define STEPS 65536

/* Of one stream: Ethernet, IPv4 and UDP. */
struct headers {
	__u8 bytes[48];
};

/* What each frame's payload begins with: when it was made, and what balances that in the checksum. */
struct stamp {
	__u64 made_ns, balance;
} __attribute__((packed));

struct frame {
	__u8 ethernet[ETH_HLEN];
	struct iphdr ip;
	struct udphdr udp;
	struct stamp stamp;
} __attribute__((packed));

/* A run of the generator: it is one system call, which takes milliseconds to begin and end. So the program itself
 * waits for when the next batch is due, and lets nothing leave once the time is over.
 */
struct turn {
	__u64 next, streams, ifindex;
	__u64 start_ns;		/* of the first frame */
	__u64 length_ns;
	__u64 gap_ns;		/* between batches; 0: none */
	__u64 sent;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct headers);
} frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct turn);
} turns SEC(".maps");

/* Bytes of IP and UDP payload that came. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEPS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} latencies SEC(".maps");

static long is_due(__u32 i, __u64 *due)
{
	return bpf_ktime_get_ns() >= *due;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	__u32 zero = 0, stream;
	struct turn *turn = bpf_map_lookup_elem(&turns, &zero);
	__u64 now = bpf_ktime_get_ns(), due;
	struct headers *headers;

	if (!turn)
		return XDP_DROP;
	if (!turn->start_ns)
		turn->start_ns = now;
	due = turn->start_ns + turn->sent / BATCH * turn->gap_ns;
	if (turn->gap_ns && turn->sent % BATCH == 0 && now < due)
		bpf_loop(MOST_LOOPS, is_due, &due, 0);
	if ((now < due ? due : now) - turn->start_ns >= turn->length_ns)
		return XDP_DROP;
	stream = turn->next;
	turn->next = stream + 1 >= turn->streams ? 0 : stream + 1;
	headers = bpf_map_lookup_elem(&frames, &stream);
	if (!headers || (void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__builtin_memcpy(frame, headers, sizeof(*frame) - sizeof(struct stamp));
	frame->stamp.made_ns = bpf_ktime_get_ns();
	frame->stamp.balance = ~frame->stamp.made_ns;
	turn->sent++;
	return bpf_redirect(turn->ifindex, 0);
}

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	return bpf_redirect(EGRESS_INDEX, 0);
}

/* Says whether the frame is one of those that are counted, and counts it. */
static __always_inline bool count(const struct frame *frame, __u32 length)
{
	__u32 zero = 0, step;
	__u64 *bytes = bpf_map_lookup_elem(&arrived, &zero), *latency, stayed;

	if (!bytes || *(__be16 *)&frame->ethernet[12] != be16(ETH_P_IP) || frame->ip.protocol != IPPROTO_UDP ||
	    host16(frame->udp.dest) < FIRST_PORT)
		return false;
	__sync_fetch_and_add(bytes, (__u64)(length - (sizeof(*frame) - sizeof(struct stamp))));
	if (frame->stamp.made_ns != ~frame->stamp.balance)
		return true;
	stayed = (bpf_ktime_get_ns() - frame->stamp.made_ns) / STEP_NS;
	step = stayed < STEPS ? stayed : STEPS - 1;
	latency = bpf_map_lookup_elem(&latencies, &step);
	if (latency)
		__sync_fetch_and_add(latency, 1);
	return true;
}

SEC("xdp")
int sink_xdp(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	return count(frame, ctx->data_end - ctx->data) ? XDP_DROP : XDP_PASS;
}

SEC("classifier")
int sink_tc(struct __sk_buff *skb)
{
	struct frame frame;

	if (bpf_skb_load_bytes((void *)skb, 0, &frame, sizeof(frame)))
		return TC_ACT_OK;
	return count(&frame, skb->len) ? TC_ACT_SHOT : TC_ACT_OK;
}

char driver_license[] SEC("license") = "Dual MIT/GPL";
