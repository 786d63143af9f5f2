# make demo      relay real multicast in namespaces of its own; make demo-fleet, relays that take over
# make test      everything that CI runs
# make fuzz      DURATION=600, seconds for each target
# make install   PREFIX=/usr/local, DESTDIR=; make uninstall takes it away
# make deb       a Debian package, target/mcr.deb, tested; make rpm, target/mcr.rpm
# make static    one file without shared libraries, target/static/mcr
# make packages  all of these with checksums, and lint-dist
#
# As root or as a user who may use sudo. The first line of each purpose installs what is missing.

PREFIX ?= /usr/local
DESTDIR ?=

CARGO ?= cargo
TRIPLE := $(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU
BINARY := target/release/mcr
# Demo, bench and tests need root; a user builds as himself and runs them through sudo.
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)
RUNNER := $(if $(SUDO),sudo -E env PATH=$(PATH) HOME=$(HOME))

LONG = $(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)') $(CARGO) test --release --locked --package lab

.PHONY: demo
demo:
	dist/bootstrap demo
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) demo

.PHONY: demo-fleet
demo-fleet:
	dist/bootstrap fleet
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) demo --fleet

.PHONY: build
build:
	dist/bootstrap build
	$(CARGO) build --release --locked --package mcr

.PHONY: test
test:
	dist/bootstrap test
	$(MAKE) lint deny doc check

.PHONY: lint
lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings

.PHONY: deny
deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) deny --locked check licenses bans sources; \
	else \
	    echo "skipped: cargo deny check: cargo-deny is not installed (cargo install --locked cargo-deny)"; \
	fi

# Without mcr: the comments on its arguments are help texts, not markup.
.PHONY: doc
doc:
	RUSTDOCFLAGS="--deny warnings --allow rustdoc::private-intra-doc-links" $(CARGO) doc --locked --workspace --exclude mcr --no-deps --document-private-items --quiet

# All tests, those that need root included. The lab runs the binary that this very build makes, so
# that no test process has to ask cargo for one.
.PHONY: check
check: export MCR_TEST_BINARY = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/mcr
check:
	$(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)') $(CARGO) test --locked --workspace --no-fail-fast

# Long: a stream of 300,000 packets a second while 1,000 other rules change, 20 times.
.PHONY: reload
reload:
	$(CARGO) build --release --locked --package mcr
	$(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)') $(CARGO) test --release --locked --package lab \
	    --test lab reload:: -- --ignored --nocapture

# Long: reference, kernel path and userspace path on 100,000 generated packets each.
.PHONY: agreement
agreement:
	$(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)') $(CARGO) test --locked --package dataplane \
	    --test paths very_many -- --ignored --nocapture

# Long: merging under every schedule with three preemptions, under 180,000 generated streams, and with
# errors put in that must be noticed.
.PHONY: merge-check
merge-check:
	$(CARGO) test --locked --package bpf --test merge -- --include-ignored --nocapture

# Long: how long nothing is relayed when the active input is cut, 20 cuts for each silence and path.
.PHONY: gaps
gaps:
	dist/bootstrap test
	$(CARGO) build --release --locked --package mcr
	$(LONG) --test lab failover::gaps -- --ignored --nocapture

# Long: 200 groups at 100,000 packets a second in all through a tunnel between two relays.
.PHONY: tunnel
tunnel:
	dist/bootstrap test
	$(CARGO) build --release --locked --package mcr
	$(LONG) --test lab tunnel::throughput -- --ignored --nocapture --test-threads 1

# Long: every case that a merge must bear, on both paths, at 20,000 packets a second.
.PHONY: merge-table
merge-table:
	dist/bootstrap test
	$(CARGO) build --release --locked --package mcr
	$(LONG) --test lab merge::table -- --ignored --nocapture

# Long: outputs on demand beside igmpproxy: joins, leaves, and 50 hosts that join and leave 1,000 groups.
.PHONY: demand
demand:
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(LONG) --test lab demand::side_by_side -- --ignored --nocapture

# The pictures of the page in docs/images, taken by headless Chromium.
.PHONY: pictures
pictures:
	dist/bootstrap test
	$(CARGO) build --locked --package mcr
	$(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)') $(CARGO) test --locked --package mcr \
	    --test mcr picture_taken -- --ignored --nocapture

# Coverage-guided, on the stable toolchain. What is found worth keeping goes to target/fuzz/TARGET;
# fuzz/corpus, which the ordinary tests replay, gets the smallest set with the same coverage.
DURATION ?= 600
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
# Without link-time optimisation, which takes longer for so many programs than it saves.
FUZZ := CARGO_PROFILE_RELEASE_LTO=off $(CARGO) fuzz
FUZZ_OPTIONS := --sanitizer none --features libfuzzer

.PHONY: fuzz
fuzz:
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	$(FUZZ) build $(FUZZ_OPTIONS)
	set -e; for target in $(FUZZ_TARGETS); do \
	    mkdir -p target/fuzz/$$target target/fuzz/$$target.least; \
	    $(FUZZ) run $(FUZZ_OPTIONS) $$target target/fuzz/$$target fuzz/corpus/$$target -- \
	        -max_total_time=$(DURATION) -max_len=4096 -timeout=10 -print_final_stats=1; \
	    $(FUZZ) run $(FUZZ_OPTIONS) $$target target/fuzz/$$target.least fuzz/corpus/$$target target/fuzz/$$target -- -merge=1; \
	done

# Long: the crates with unsafe code, and the whole daemon against what is hostile to it, under
# AddressSanitizer. RUSTC_BOOTSTRAP: the stable compiler has the switch but does not offer it. No
# search for leaks: it traces processes, and workers are fenced off from that. Tests that look at the
# daemon's memory are left out: the sanitizer holds back what is freed.
SANITIZED := $(shell uname -m)-unknown-linux-gnu

.PHONY: sanitize
sanitize: export RUSTC_BOOTSTRAP = 1
sanitize: export RUSTFLAGS = -Zsanitizer=address
sanitize: export ASAN_OPTIONS = detect_leaks=0
sanitize: export CARGO_BUILD_TARGET = $(SANITIZED)
sanitize: export CARGO_TARGET_DIR = target/sanitize
sanitize:
	dist/bootstrap test
	$(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)') $(CARGO) test --locked --no-fail-fast \
	    --package sys --package bpf --package dataplane --package traffic
	$(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)') $(CARGO) test --locked --no-fail-fast --package lab \
	    --test lab -- hostile:: hostile_clients:: hitless::

# Long: what becomes of packets while processes die and rules come and go, in full, for the
# reliability table (target/bench/reliability.json).
.PHONY: hitless reliability
hitless reliability:
	$(CARGO) build --release --locked --package mcr
	$(LONG) --test lab hitless::full -- --ignored --nocapture --test-threads 1
	$(LONG) --test lab churn::full -- --ignored --nocapture --test-threads 1

# Long: the world changes, in an order of chance. DURATION in seconds, MCR_TEST_SEED to repeat one.
.PHONY: world
world:
	$(CARGO) build --release --locked --package mcr
	MCR_TEST_SECONDS=$(DURATION) $(LONG) --test lab world:: -- --ignored --nocapture

# Long: faults of every kind, hostile clients and strangers' programs at once, in an order of chance,
# DURATION seconds; MCR_TEST_SEED to repeat one (target/bench/reliability.json).
.PHONY: adversary
adversary: DURATION = 3600
adversary:
	$(CARGO) build --release --locked --package mcr
	MCR_TEST_SECONDS=$(DURATION) $(LONG) --test lab adversary:: -- --ignored --nocapture

# Long: a dozen kernels of Debian's under qemu, without KVM and without root: loading, the packet cases
# of both paths, a burst, a death, the demo. Writes docs/kernels.md. MCR_TEST_KERNELS="6.1 newest" picks
# some; MCR_TEST_SCALE=3 gives a busy machine three times as long. The release binary: in emulation the
# debug build is so slow that workers seem to hang.
.PHONY: kernels
kernels: export MCR_TEST_BINARY = $(abspath $(or $(CARGO_TARGET_DIR),target))/release/mcr
kernels:
	dist/bootstrap kernels
	$(CARGO) build --release --locked --package mcr
	$(CARGO) test --locked --package bpf --test verifier --no-run
	$(CARGO) test --locked --package dataplane --test paths --no-run
	$(CARGO) test --locked --package lab --test kernels -- --ignored --exact all_that_can_be_had --nocapture

# Long: every fault that a fleet must bear, FAULT_ROUNDS rounds of each on both paths, then faults of
# chance for FAULT_SECONDS; MCR_TEST_SEED to repeat them, MCR_TEST_ONLY and MCR_TEST_FAULT to
# play a part of them (target/bench/fleet.md).
FAULT_ROUNDS ?= 10
FAULT_SECONDS ?= 3600
.PHONY: fleet
fleet:
	dist/bootstrap test
	$(CARGO) build --release --locked --package mcr
	MCR_TEST_ROUNDS=$(FAULT_ROUNDS) MCR_TEST_SECONDS=$(FAULT_SECONDS) \
	    $(LONG) --test fleet rounds:: -- --ignored --nocapture --test-threads 1

# Long: a hundred relays with 10,000 rules against a real etcd.
.PHONY: bench-fleet
bench-fleet:
	dist/bootstrap fleet
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) bench fleet

# Long: load, churn and faults for an hour, or DURATION seconds (target/bench/soak.json).
.PHONY: soak
soak: DURATION = 3600
soak:
	$(CARGO) build --release --locked --package mcr
	MCR_TEST_SECONDS=$(DURATION) $(LONG) --test lab soak:: -- --ignored --nocapture

# Long: 100,000 rules on the kernel path, the last of which relays.
.PHONY: many-rules
many-rules:
	dist/bootstrap test
	$(CARGO) build --release --locked --package mcr
	$(LONG) --test lab scale::the_last_of_a_hundred -- --ignored --nocapture

# Long: what a change of one rule among thousands costs the daemon (target/bench/change_cost.json).
.PHONY: change-cost
change-cost:
	$(CARGO) build --release --locked --package mcr
	$(LONG) --test lab change_cost:: -- --ignored --nocapture

.PHONY: bench
bench:
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) bench run --quick
	$(SUDO) $(BINARY) bench report --output target/bench/report.md --plots target/bench/plots

# Every case that a promise stands on, a quarter of an hour; writes BENCHMARKS.md.
.PHONY: bench-promises
bench-promises:
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) bench run --promises --output target/bench/promises.json
	$(SUDO) $(BINARY) bench report target/bench/promises.json

# All ten scenarios, half an hour on a machine with nothing else to do; writes BENCHMARKS.md.
.PHONY: bench-full
bench-full:
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) bench run --output target/bench/full.json
	$(SUDO) $(BINARY) bench report target/bench/full.json

# Binary, units, group, directories, configuration, manual pages, completions: dist/install says where.
.PHONY: install
install: build
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install $(BINARY)

.PHONY: uninstall
uninstall:
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install --uninstall

# A Debian package, installed into a directory, run and removed before it counts as built.
.PHONY: deb
deb: build package-parts
	@$(CARGO) deb --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deb
	$(CARGO) deb --no-build --strip --locked --package mcr --output target/mcr.deb
	$(SUDO) dist/deb/test target/mcr.deb

# An rpm package, likewise.
.PHONY: rpm
rpm: build package-parts
	dist/bootstrap packages
	@$(CARGO) generate-rpm --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-generate-rpm
	strip -o target/package/mcr $(BINARY)
	gzip --no-name --best --keep target/package/man/man*/*.[15]
	$(CARGO) generate-rpm --package crates/mcr --output target/mcr.rpm
	$(SUDO) dist/rpm/test target/mcr.rpm

# What the binary generates for packages.
.PHONY: package-parts
package-parts: build
	rm -rf target/package
	install -d target/package/man target/package/completions
	$(BINARY) man --directory target/package/man
	$(BINARY) completions bash >target/package/completions/mcr
	$(BINARY) completions zsh >target/package/completions/_mcr
	$(BINARY) completions fish >target/package/completions/mcr.fish

# Everything that is given away, built, installed, run and removed; with its checksums.
.PHONY: packages
packages: deb rpm static
	cd target && sha256sum mcr.deb mcr.rpm static/mcr >SHA256SUMS && cat SHA256SUMS
	$(MAKE) lint-dist

# Each part of dist by its own tool; what is not installed is skipped by name.
.PHONY: lint-dist
lint-dist:
	dist/lint

# Without shared libraries, for containers and old hosts: target/static/mcr.
.PHONY: static
static: static-binary
	dist/bootstrap demo
	$(SUDO) target/static/mcr demo --duration 1
	$(SUDO) dist/container-test target/static/mcr

.PHONY: static-binary
static-binary: TARGET := $(shell uname -m)-unknown-linux-gnu
static-binary:
	dist/bootstrap build
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --release --locked --package mcr --target $(TARGET)
	install -D target/$(TARGET)/release/mcr target/static/mcr
	! readelf --program-headers target/static/mcr | grep -q INTERP
	strip target/static/mcr
