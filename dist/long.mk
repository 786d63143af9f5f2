# Tests that take long, each under one name: make long-NAME; make NAME is the same. `make help` shows
# them by what stands behind ##. DURATION and FAULT_SECONDS are seconds; MCR_TEST_SEED repeats a run of
# chance.

LONG := adversary agreement bench-fleet change-cost changes crowd demand fleet fleet-chance gaps hitless kernels many-rules \
    merge-chance merge-check merge-table names page power properties reload sanitize soak tunnel upgrade world zaps

.PHONY: $(LONG) $(LONG:%=long-%) reliability
$(LONG): %: long-%
reliability: long-hitless

# Tests take the binary that is there: one that asks cargo for it, from among the variables of `cargo test`,
# has crates built anew whose build scripts look at those.
WITH_BINARY = MCR_TEST_BINARY=$(abspath $(BINARY)) $(AS_ROOT) $(CARGO) test --locked
IN_LAB = $(WITH_BINARY) --release --package lab --test lab
ALONE = --ignored --nocapture --test-threads 1

.PHONY: tools
tools:
	dist/bootstrap test

long-adversary: ## faults, hostile clients and strangers' programs at once (DURATION=3600)
long-adversary: DURATION = 3600
long-adversary: build
	MCR_TEST_SECONDS=$(DURATION) $(IN_LAB) adversary:: -- --ignored --nocapture

long-agreement: ## reference and both paths on 100,000 generated packets each
	$(AS_ROOT) $(CARGO) test --locked --package dataplane --test paths very_many -- --ignored --nocapture

long-bench-fleet: ## a hundred relays with 10,000 rules against a real etcd
long-bench-fleet: build
	dist/bootstrap fleet
	$(SUDO) $(BINARY) bench fleet

long-change-cost: ## what a change of one rule among thousands costs (target/bench/change_cost.json)
long-change-cost: build
	$(IN_LAB) change_cost:: -- --ignored --nocapture

long-changes: ## 20,000 changes by eight clients; 30 kills while changes wait to be confirmed
long-changes: build
	$(WITH_BINARY) --release --package mcr --test mcr confirm::long -- $(ALONE)

long-crowd: ## 10,000 wrong tokens beside an operator who works on
long-crowd: build
	$(WITH_BINARY) --package mcr --test mcr elsewhere::crowd -- $(ALONE)

long-demand: ## outputs on demand beside igmpproxy; 50 hosts that join and leave 1,000 groups
long-demand: build
	dist/bootstrap bench
	$(IN_LAB) demand::side_by_side -- --ignored --nocapture

# MCR_TEST_ONLY and MCR_TEST_FAULT play a part of them.
long-fleet-chance: ## simulated fleets and faults by chance (MCR_CHANCE_ROUNDS=100000 from seed MCR_CHANCE_FROM=0)
	$(CARGO) test --release --locked --package fleet --lib chance:: -- $(ALONE)

long-fleet: ## every fault that a fleet must bear, FAULT_ROUNDS=10, then faults of chance (FAULT_SECONDS=3600)
long-fleet: FAULT_ROUNDS = 10
long-fleet: FAULT_SECONDS = 3600
long-fleet: tools build
	MCR_TEST_ROUNDS=$(FAULT_ROUNDS) MCR_TEST_SECONDS=$(FAULT_SECONDS) \
	    $(WITH_BINARY) --release --package lab --test fleet rounds:: -- $(ALONE)

long-gaps: ## how long nothing is relayed at each of 20 cuts of the active input
long-gaps: tools build
	$(IN_LAB) failover::gaps -- --ignored --nocapture

long-hitless: ## what becomes of packets while processes die and rules come and go (target/bench/reliability.json)
long-hitless: build
	$(IN_LAB) hitless::full -- $(ALONE)
	$(IN_LAB) churn::full -- $(ALONE)

# Under qemu, without KVM and without root; writes docs/measurements/kernels.md. MCR_TEST_SCALE=3 gives a busy
# machine three times as long. The release binary: in emulation the debug build is so slow that workers
# seem to hang.
long-kernels: ## a dozen kernels under qemu, both paths (MCR_TEST_KERNELS="6.1 newest" picks some)
long-kernels: export MCR_TEST_BINARY = $(abspath $(BINARY))
long-kernels: build
	dist/bootstrap kernels
	$(CARGO) test --locked --package bpf --test verifier --no-run
	$(CARGO) test --locked --package dataplane --test paths --no-run
	$(CARGO) test --locked --package lab --test kernels -- --ignored --exact all_that_can_be_had \
	    relays_over_devices_of_all_kinds_on_an_old_kernel_too relays_between_cards --nocapture

long-many-rules: ## 100,000 rules on the kernel path, the last of which relays
long-many-rules: tools build
	$(IN_LAB) scale::the_last_of_a_hundred -- --ignored --nocapture

long-merge-chance: ## merging of streams of chance, by what was sent (DURATION=600, from seed MCR_TEST_SEED=1)
long-merge-chance: DURATION = 600
long-merge-chance:
	MCR_TEST_SECONDS=$(DURATION) $(CARGO) test --release --locked --package bpf --test merge \
	    very_many_streams_of_chance -- $(ALONE)

# MCR_TEST_SCENE="a line begins too late" begins the schedules there.
long-merge-check: ## merging under every schedule of three preemptions; errors put in that must be noticed
	$(CARGO) test --locked --package bpf --test merge -- --include-ignored --nocapture

long-merge-table: ## every case that a merge must bear, both paths, at 20,000 packets a second
long-merge-table: tools build
	$(IN_LAB) merge::table -- --ignored --nocapture

long-names: ## a name whose 64 addresses change each second; 500 that come and go at 20,000 packets a second
long-names: tools build
	$(IN_LAB) names::servers::long -- $(ALONE)

long-page: ## frame times of the page with 10,000 rules, and five tasks of a newcomer
long-page: build
	$(WITH_BINARY) --package mcr --test mcr -- elsewhere::page_frames newcomer --include-ignored --nocapture --test-threads 1

# Without root; MCR_TEST_SCALE as above.
long-power: ## a guest whose clock is set while a change waits to be confirmed
long-power: export MCR_TEST_BINARY = $(abspath $(BINARY))
long-power: build
	dist/bootstrap kernels
	$(CARGO) test --locked --package lab --test kernels -- $(ALONE) power::

long-properties: ## requests made of the API's description, by every role and by nobody
long-properties: tools build
	$(WITH_BINARY) --package mcr --test mcr elsewhere::properties -- --ignored --nocapture

long-reload: ## a stream of 300,000 packets a second while 1,000 other rules change, 20 times
long-reload: build
	$(IN_LAB) reload:: -- --ignored --nocapture

# RUSTC_BOOTSTRAP: the stable compiler has the switch but does not offer it. No search for leaks: it
# traces processes, and workers are fenced off from that. Tests that look at the daemon's memory are
# left out: the sanitizer holds back what is freed.
SANITIZED := $(shell uname -m)-unknown-linux-gnu

long-sanitize: ## crates with unsafe code, hostile input and kills, under AddressSanitizer
long-sanitize: export RUSTC_BOOTSTRAP = 1
long-sanitize: export RUSTFLAGS = -Zsanitizer=address
long-sanitize: export ASAN_OPTIONS = detect_leaks=0
long-sanitize: export CARGO_BUILD_TARGET = $(SANITIZED)
long-sanitize: export CARGO_TARGET_DIR = target/sanitize
long-sanitize: tools
	$(AS_ROOT) $(CARGO) test --locked --no-fail-fast \
	    --package sys --package bpf --package dataplane --package traffic
	$(AS_ROOT) $(CARGO) test --locked --no-fail-fast --package lab \
	    --test lab -- hostile:: hostile_clients:: hitless::

long-soak: ## load, churn and faults (DURATION=3600; target/bench/soak.json)
long-soak: DURATION = 3600
long-soak: build
	MCR_TEST_SECONDS=$(DURATION) $(IN_LAB) soak:: -- --ignored --nocapture

long-tunnel: ## 200 groups at 100,000 packets a second in all through a tunnel between two relays
long-tunnel: tools build
	$(IN_LAB) tunnel::throughput -- $(ALONE)

# The former version is built from the repository's history, or is what MCR_TEST_FORMER names; systemd's
# restarts are upgrades from what it names.
long-upgrade: ## an upgrade from a former version and 20 restarts by systemd under load, on both paths
long-upgrade: build
	$(IN_LAB) upgrade:: -- $(ALONE)
	$(WITH_BINARY) --release --package mcr --test mcr systemd::restarts_under -- $(ALONE)

long-world: ## the world changes, in an order of chance (DURATION=600)
long-world: build
	MCR_TEST_SECONDS=$(DURATION) $(IN_LAB) world:: -- --ignored --nocapture

long-zaps: ## 200 players that zap 1,000 times a second in all: what the network before the relay hears
long-zaps: build
	$(IN_LAB) demand::zapping::a_thousand -- $(ALONE)
