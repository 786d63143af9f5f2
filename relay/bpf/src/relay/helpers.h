/* The kernel helpers that the program calls, by their numbers (linux/bpf.h, FN list), and the map
 * declaration macros that the loader reads. Saves the build a dependency on libbpf's headers.
 */
#ifndef HELPERS_H
#define HELPERS_H

#include <linux/bpf.h>

/* What a program of the hook that is compiled for gets. */
#ifdef AT_XDP
#define ctx_buff xdp_md
#else
#define ctx_buff __sk_buff
#endif

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#undef __always_inline	/* linux/stddef.h has a weaker one */
#define __always_inline inline __attribute__((always_inline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* A function that the verifier walks once, whatever its arguments, and not again on every way that leads
 * to it. So it returns a number, and checks pointers that are never null before all else.
 */
#define VERIFIED_ONCE __attribute__((noinline))
#define bool _Bool
#define true 1
#define false 0

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define be16(x) ((__be16)__builtin_bswap16(x))
#define be32(x) ((__be32)__builtin_bswap32(x))
#define host16(x) __builtin_bswap16(x)
#define host32(x) __builtin_bswap32(x)
#else
#define be16(x) ((__be16)(x))
#define be32(x) ((__be32)(x))
#define host16(x) (x)
#define host32(x) (x)
#endif

/* The bits of word `i` of an address that a prefix does not fix. */
static __always_inline __be32 host_bits(__u32 prefix, int i)
{
	__u32 fixed = prefix <= i * 32 ? 0 : prefix - i * 32;

	return fixed >= 32 ? 0 : be32(0xffffffff >> fixed);
}

/* The lower bits of an index, `limit` being a power of two. The mask comes last, where the compiler would
 * move it forward: up to Linux 6.9 verifiers forget the bounds of what is xored or ored with a variable
 * (adjust_scalar_min_max_vals).
 */
static __always_inline __u32 below(__u32 index, const __u32 limit)
{
	asm volatile("" : "+r"(index));
	return index & (limit - 1);
}

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
				   __u64 flags) = (void *)2;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_skb_store_bytes)(struct ctx_buff *skb, __u32 offset, const void *from,
				   __u32 length, __u64 flags) = (void *)9;
static long (*bpf_l4_csum_replace)(struct ctx_buff *skb, __u32 offset, __u64 from, __u64 to,
				   __u64 flags) = (void *)11;
static long (*bpf_clone_redirect)(struct ctx_buff *skb, __u32 ifindex, __u64 flags) = (void *)13;
static long (*bpf_skb_vlan_pop)(struct ctx_buff *skb) = (void *)19;
static long (*bpf_skb_load_bytes)(const struct ctx_buff *skb, __u32 offset, void *to,
				  __u32 length) = (void *)26;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static __s64 (*bpf_csum_diff)(const __be32 *from, __u32 from_size, const __be32 *to, __u32 to_size,
			      __u32 seed) = (void *)28;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*bpf_skb_change_tail)(struct ctx_buff *skb, __u32 length, __u64 flags) = (void *)38;
static long (*bpf_skb_pull_data)(struct ctx_buff *skb, __u32 len) = (void *)39;
static long (*bpf_csum_update)(struct ctx_buff *skb, __u32 csum) = (void *)40;
static long (*bpf_skb_change_head)(struct ctx_buff *skb, __u32 len, __u64 flags) = (void *)43;
static long (*bpf_skb_load_bytes_relative)(const struct ctx_buff *skb, __u32 offset, void *to,
					   __u32 length, __u32 start) = (void *)68;
static struct bpf_sock *(*bpf_sk_lookup_udp)(void *ctx, struct bpf_sock_tuple *tuple,
					     __u32 tuple_size, __u64 netns, __u64 flags) = (void *)85;
static long (*bpf_sk_release)(void *sock) = (void *)86;
static long (*bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static __u64 (*bpf_jiffies64)(void) = (void *)118;
static __u64 (*bpf_ktime_get_boot_ns)(void) = (void *)125;
static long (*bpf_csum_level)(struct ctx_buff *skb, __u64 level) = (void *)135;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)160;
static long (*bpf_xdp_load_bytes)(const struct ctx_buff *skb, __u32 offset, void *to,
				  __u32 length) = (void *)189;
static long (*bpf_loop)(__u32 count, void *callback, void *context, __u64 flags) = (void *)181;

#endif
