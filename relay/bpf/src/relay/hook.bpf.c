/* The kernel path at XDP: packets of routes that need nothing but one copy leave here, before the kernel
 * makes an skb of each. All others go on to tc, where nothing is counted twice: what is taken is decided
 * before anything is counted.
 *
 * What the driver of the output's device refuses, it refuses behind the program. So a packet that is handed
 * over is noted, and counted by the kernel's tracepoints: as sent or as dropped, each for its output.
 */
#define AT_XDP
#include <linux/bpf.h>
#include "judge.h"

#define BULK 16		/* DEV_MAP_BULK_SIZE in kernel/bpf/devmap.c: so many are handed over at once */
#define EMSGSIZE 90

/* A packet on its way to a device. */
struct note {
	__u32 counter;	/* the output's */
	__u32 bytes;
};

#define PLACES 1024

/* Those of one device and CPU, in their order: all of one NAPI poll, for the kernel hands over what is left
 * at its end (xdp_do_flush). The one that makes a bulk too many is noted before that bulk goes.
 */
struct handed {
	__u32 ifindex;
	__u32 count;
	struct note notes[BULK + 1];
};

/* Devices that take what XDP hands over, by their index. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} ports SEC(".maps");

/* Each device has the place of its index's lower bits, as far as no other has it: a hash costs a tenth of all
 * that the program does.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PLACES);
	__type(key, __u32);
	__type(value, struct handed);
} handed SEC(".maps");

/* Packets that were handed over, by the interface they came by. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} taken SEC(".maps");

/* The kernel's number of `ports`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ports_id SEC(".maps");

static __always_inline struct handed *handed_to(__u32 ifindex)
{
	__u32 place = below(ifindex, PLACES);
	struct handed *to = bpf_map_lookup_elem(&handed, &place);

	return to && to->ifindex == ifindex ? to : 0;
}

/* The one output of a route that needs nothing else. `compile::hook` says the same of rules. */
static __always_inline struct output *only_output(struct fanout *f)
{
	__u32 slot = f->m.first;
	struct output *o;

	if (f->m.count != 1 || f->m.flags & (ROUTE_SHADOW | ROUTE_LOCAL_YES))
		return 0;
	o = bpf_map_lookup_elem(&outputs, &slot);
	if (!o || (o->flags & (OUTPUT_DOWN | OUTPUT_MAC | OUTPUT_ANSWERS)) != OUTPUT_MAC)
		return 0;
	return o;
}

/* Says whether this hook takes the packet, whose counter it is given: it is whole and sound, and the stack
 * does not want it. Of several inputs each remembers for itself who listens.
 */
static __always_inline bool takes(struct fanout *f, struct tally *counter)
{
	return counter && measure(f->skb, &f->p) && !has_trailer(f->skb, &f->p) &&
	       !(f->m.flags & ROUTE_LOCAL_AUTO && socket_listens(f->skb, &f->p, counter));
}

SEC("xdp")
int relay_xdp(struct xdp_md *ctx)
{
	struct fanout f = { .skb = ctx };
	struct tally *counter;
	struct handed *to;
	struct output *o;
	__u32 reason, at;

	if (!parse_ethernet(ctx, &f.p) || f.p.part != PART_WHOLE || !(f.p.mac[0] & 1) ||
	    !lookup(ctx, &f.p, &f.m))
		return XDP_PASS;
	o = only_output(&f);
	to = o ? handed_to(o->ifindex) : 0;
	counter = bpf_map_lookup_elem(&counters, &f.m.counter);
	if (!to || !takes(&f, counter) || bpf_redirect_map(&ports, o->ifindex, XDP_PASS) != XDP_REDIRECT)
		return XDP_PASS;
	if (judge(&f, counter) != ACCEPTED)
		return XDP_DROP;
	reason = refused(ctx, &f.p, o);
	if (likely(reason == NOT_DROPPED) && unlikely(!learn_checksum(ctx, &f.p) || !rewrite(ctx, &f.p, o)))
		reason = DROP_EGRESS_ERROR;
	if (unlikely(reason != NOT_DROPPED)) {
		count_drop(o->counter, reason & ~ASIDE, &f.p);
		return XDP_DROP;
	}
	at = to->count;
	if (unlikely(at > BULK))	/* left by a run that nobody flushed */
		at = 0;
	to->notes[at].counter = o->counter;
	to->notes[at].bytes = f.p.payload;
	to->count = at + 1;
	if (unlikely(f.began))
		note_latency(ctx, f.m.counter, f.began);
	return XDP_REDIRECT;
}

/* Where the hook has to stand aside: to take the program off would have drivers rebuild their rings. */
SEC("xdp")
int pass_xdp(struct xdp_md *ctx)
{
	return XDP_PASS;
}

static __always_inline void count_note(const struct note *note, __u32 reason)
{
	struct packet p = { .segments = 1, .payload = note->bytes };

	if (likely(reason == NOT_DROPPED))
		count(note->counter, &p);
	else
		count_drop(note->counter, reason, &p);
}

/* Of the kernel's type, as far as it is read. */
struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

/* Of notes, those behind the first `skip` are of this bulk. */
struct bulk {
	struct handed *handed;
	__s32 skip, sent;
	__u32 reason;
};

static long count_one(__u32 i, struct bulk *bulk)
{
	__s32 at = i - bulk->skip;

	if (i > BULK)
		return 1;
	if (at >= 0)
		count_note(&bulk->handed->notes[i], at < bulk->sent ? NOT_DROPPED : bulk->reason);
	return 0;
}

/* A bulk was handed to a device, which took the first `sent` of it. Others' packets have no notes here:
 * within one poll of our input's all are ours.
 */
SEC("tp_btf/xdp_devmap_xmit")
int xdp_devmap_xmit(__u64 *args)
{
	struct net_device *from = (void *)args[0], *to = (void *)args[1];
	struct bulk bulk = { .sent = args[2], .reason = args[4] ? DROP_EGRESS_ERROR : DROP_EGRESS_FULL };
	__s32 total = bulk.sent + (__s32)args[3];
	__u32 input = from->ifindex, count, rest = 0;
	struct handed *handed_here = handed_to(to->ifindex);
	__u64 *sum;

	if (!handed_here || !handed_here->count)
		return 0;
	count = handed_here->count;
	if (count > BULK && total == BULK)
		rest = 1;
	count -= rest;
	/* Notes that nobody flushed are the oldest. */
	bulk.skip = count - total;
	bulk.handed = handed_here;
	/* One of its own the verifier of Linux 7.3 walks 431,252 instructions for. */
	bpf_loop(count, count_one, &bulk, 0);
	if (rest)
		handed_here->notes[0] = handed_here->notes[BULK];
	handed_here->count = rest;
	sum = bpf_map_lookup_elem(&taken, &input);
	if (sum)
		*sum += count;
	return 0;
}

/* The packet that the program has just noted did not get that far. */
SEC("tp_btf/xdp_redirect_err")
int xdp_redirect_err(__u64 *args)
{
	__u32 zero = 0, at;
	__u32 reason = (__s32)args[3] == -EMSGSIZE ? DROP_TOO_BIG : DROP_EGRESS_ERROR;
	__u32 *id = bpf_map_lookup_elem(&ports_id, &zero);
	struct handed *handed_here = handed_to(args[6]);

	if (!id || *id != (__u32)args[5] || !handed_here)
		return 0;
	at = handed_here->count - 1;
	if (at > BULK)
		return 0;
	count_note(&handed_here->notes[at], reason);
	handed_here->count = at;
	return 0;
}

char dual_license[] SEC("license") = "Dual MIT/GPL";
