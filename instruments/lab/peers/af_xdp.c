/* A bare relay by AF_XDP in copy mode: takes frames of veth1, rewrites them, sends them by veth2. It judges
 * nothing: the input is one port a stream, and each stream has one output.
 *
 * af_xdp RULES: lines of GROUP%IFACE:PORT GROUP%IFACE:PORT, input first.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES 8192
#define FRAME 2048
#define RING 4096		/* entries of each ring */
#define BATCH 64

#define CHECK(what) ({ long r_ = (long)(what); if (r_ < 0) { perror(#what); exit(1); } r_; })

struct ring {
	uint32_t *producer, *consumer, *flags, mask, at;
	void *entries;
};

struct rule {
	uint32_t in, out;
	uint16_t out_port;
};

static struct rule rules[65536];	/* by the input's port */
static uint8_t *umem;

static struct ring map_ring(int fd, uint64_t page, const struct xdp_ring_offset *of, uint32_t n, size_t width)
{
	uint8_t *at = mmap(NULL, of->desc + n * width, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);

	if (at == MAP_FAILED) {
		perror("mmap of a ring");
		exit(1);
	}
	return (struct ring){
		.producer = (void *)(at + of->producer), .consumer = (void *)(at + of->consumer),
		.flags = (void *)(at + of->flags), .entries = at + of->desc, .mask = n - 1,
	};
}

struct socket {
	int fd;
	struct ring fill, done, rx, tx;
};

/* The first registers the frames, the second shares them. */
static struct socket open_socket(int ifindex, int shares, bool zero_copy)
{
	struct socket s = { .fd = CHECK(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)) };
	struct xdp_umem_reg reg = { .addr = (uint64_t)umem, .len = (uint64_t)FRAMES * FRAME, .chunk_size = FRAME };
	struct xdp_mmap_offsets of;
	struct sockaddr_xdp to = { .sxdp_family = AF_XDP, .sxdp_ifindex = ifindex };
	socklen_t length = sizeof(of);
	int n = RING;

	if (shares < 0)
		CHECK(setsockopt(s.fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)));
	CHECK(setsockopt(s.fd, SOL_XDP, XDP_UMEM_FILL_RING, &n, sizeof(n)));
	CHECK(setsockopt(s.fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &n, sizeof(n)));
	CHECK(setsockopt(s.fd, SOL_XDP, XDP_RX_RING, &n, sizeof(n)));
	CHECK(setsockopt(s.fd, SOL_XDP, XDP_TX_RING, &n, sizeof(n)));
	CHECK(getsockopt(s.fd, SOL_XDP, XDP_MMAP_OFFSETS, &of, &length));
	s.fill = map_ring(s.fd, XDP_UMEM_PGOFF_FILL_RING, &of.fr, RING, 8);
	s.done = map_ring(s.fd, XDP_UMEM_PGOFF_COMPLETION_RING, &of.cr, RING, 8);
	s.rx = map_ring(s.fd, XDP_PGOFF_RX_RING, &of.rx, RING, sizeof(struct xdp_desc));
	s.tx = map_ring(s.fd, XDP_PGOFF_TX_RING, &of.tx, RING, sizeof(struct xdp_desc));
	to.sxdp_flags = shares < 0 ? (zero_copy ? XDP_ZEROCOPY : XDP_COPY) | XDP_USE_NEED_WAKEUP : XDP_SHARED_UMEM;
	to.sxdp_shared_umem_fd = shares < 0 ? 0 : shares;
	CHECK(bind(s.fd, (void *)&to, sizeof(to)));
	return s;
}

/* Has what comes to queue 0 of an interface go to the socket. */
static void attach(int ifindex, int xsk)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 4 };
	int map_fd = CHECK(syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof(map)));
	uint32_t queue = 0;
	union bpf_attr put = { .map_fd = map_fd, .key = (uint64_t)&queue, .value = (uint64_t)&xsk };
	struct bpf_insn program[] = {
		{ .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = 2, .src_reg = 1, .off = 16 },	/* rx_queue_index */
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map_fd }, { 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_XDP, .insns = (uint64_t)program, .license = (uint64_t)"GPL",
		.insn_cnt = sizeof(program) / sizeof(*program), .expected_attach_type = BPF_XDP,
	};
	union bpf_attr link = { 0 };

	CHECK(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &put, sizeof(put)));
	link.link_create.prog_fd = CHECK(syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load)));
	link.link_create.target_ifindex = ifindex;
	link.link_create.attach_type = BPF_XDP;
	link.link_create.flags = XDP_FLAGS_DRV_MODE;
	CHECK(syscall(SYS_bpf, BPF_LINK_CREATE, &link, sizeof(link)));
}

static uint16_t fold(uint32_t sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static uint32_t halves(uint32_t word)
{
	return (word & 0xffff) + (word >> 16);
}

static const uint8_t *own_mac;
static uint32_t own_address;

static bool rewrite(uint8_t *frame, uint32_t length)
{
	struct ethhdr *eth = (void *)frame;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	uint32_t group, change;
	struct rule *rule;

	if (length < sizeof(*eth) + sizeof(*ip) + sizeof(*udp) || eth->h_proto != htons(ETH_P_IP) || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_UDP)
		return false;
	rule = &rules[ntohs(udp->dest)];
	if (!rule->out || rule->in != ip->daddr)
		return false;
	change = halves(~ip->saddr) + halves(~ip->daddr) + halves(own_address) + halves(rule->out);
	ip->check = ~fold((uint16_t)~ip->check + change + (uint16_t)~(ip->ttl | ip->protocol << 8) +
			  (uint16_t)((ip->ttl - 1) | ip->protocol << 8));
	ip->ttl--;
	if (udp->check)
		udp->check = ~fold((uint16_t)~udp->check + change + (uint16_t)~udp->dest + htons(rule->out_port));
	udp->dest = htons(rule->out_port);
	ip->saddr = own_address;
	ip->daddr = rule->out;
	group = ntohl(ip->daddr);
	memcpy(eth->h_dest, (uint8_t[]){ 1, 0, 0x5e, group >> 16 & 0x7f, group >> 8, group }, 6);
	memcpy(eth->h_source, own_mac, 6);
	return true;
}

static void read_rules(const char *path)
{
	FILE *file = fopen(path, "r");
	char in[64], out[64], by[2][16];
	int ports[2];

	while (file && fscanf(file, "%63[^%]%%%15[^:]:%d %63[^%]%%%15[^:]:%d ", in, by[0], &ports[0], out, by[1], &ports[1]) == 6)
		rules[ports[0]] = (struct rule){ inet_addr(in), inet_addr(out), ports[1] };
}

int main(int argc, char **argv)
{
	int in = if_nametoindex("veth1"), out = if_nametoindex("veth2");
	bool zero_copy = getenv("ZERO_COPY");
	struct ifreq mac = { .ifr_name = "veth2" }, address = { .ifr_name = "veth2" };
	int any = CHECK(socket(AF_INET, SOCK_DGRAM, 0));
	struct socket rx, tx;
	uint32_t i;

	if (argc != 2 || !in || !out)
		return 2;
	read_rules(argv[1]);
	CHECK(ioctl(any, SIOCGIFHWADDR, &mac));
	CHECK(ioctl(any, SIOCGIFADDR, &address));
	own_mac = (uint8_t *)mac.ifr_hwaddr.sa_data;
	own_address = ((struct sockaddr_in *)&address.ifr_addr)->sin_addr.s_addr;
	umem = mmap(NULL, (size_t)FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	rx = open_socket(in, -1, zero_copy);
	tx = open_socket(out, rx.fd, zero_copy);
	for (i = 0; i < RING; i++)
		((uint64_t *)rx.fill.entries)[i] = (uint64_t)i * FRAME;
	__atomic_store_n(rx.fill.producer, rx.fill.at = RING, __ATOMIC_RELEASE);
	attach(in, rx.fd);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		uint32_t have, given, sent = 0, back;

		/* What was sent may be filled again. */
		back = __atomic_load_n(tx.done.producer, __ATOMIC_ACQUIRE) - tx.done.at;
		for (i = 0; i < back; i++) {
			uint64_t frame = ((uint64_t *)tx.done.entries)[tx.done.at++ & tx.done.mask];

			((uint64_t *)rx.fill.entries)[rx.fill.at++ & rx.fill.mask] = frame & ~(uint64_t)(FRAME - 1);
		}
		__atomic_store_n(tx.done.consumer, tx.done.at, __ATOMIC_RELEASE);
		have = __atomic_load_n(rx.rx.producer, __ATOMIC_ACQUIRE) - rx.rx.at;
		if (have > BATCH)
			have = BATCH;
		for (i = 0; i < have; i++) {
			struct xdp_desc got = ((struct xdp_desc *)rx.rx.entries)[rx.rx.at++ & rx.rx.mask];

			if (rewrite(umem + got.addr, got.len)) {
				((struct xdp_desc *)tx.tx.entries)[(tx.tx.at + sent++) & tx.tx.mask] =
					(struct xdp_desc){ got.addr, got.len, 0 };
			} else {
				((uint64_t *)rx.fill.entries)[rx.fill.at++ & rx.fill.mask] =
					got.addr & ~(uint64_t)(FRAME - 1);
			}
		}
		__atomic_store_n(rx.rx.consumer, rx.rx.at, __ATOMIC_RELEASE);
		__atomic_store_n(rx.fill.producer, rx.fill.at, __ATOMIC_RELEASE);
		if (sent) {
			tx.tx.at += sent;
			__atomic_store_n(tx.tx.producer, tx.tx.at, __ATOMIC_RELEASE);
		}
		given = __atomic_load_n(tx.tx.consumer, __ATOMIC_ACQUIRE);
		if (given != tx.tx.at)
			sendto(tx.fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
		if (!have) {
			struct pollfd wait = { .fd = rx.fd, .events = POLLIN };

			poll(&wait, 1, given != tx.tx.at ? 0 : 100);
		}
	}
}
