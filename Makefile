# What a person calls; make help lists it. As root or as a user who may use sudo. The first line of
# each purpose installs what is missing.

PREFIX ?= /usr/local
DESTDIR ?=

CARGO ?= cargo
TRIPLE := $(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU
BINARY := $(or $(CARGO_TARGET_DIR),target)/release/mcr
# Demo, bench and tests need root; a user builds as himself and runs them through sudo.
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)
RUNNER := $(if $(SUDO),sudo -E env PATH=$(PATH) HOME=$(HOME))
AS_ROOT = $(if $(RUNNER),CARGO_TARGET_$(TRIPLE)_RUNNER='$(RUNNER)')

.PHONY: demo
demo: ## relays real multicast in namespaces of its own
	dist/bootstrap demo
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) demo

.PHONY: demo-fleet
demo-fleet: ## relays that take over from each other
	dist/bootstrap fleet
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) demo --fleet

# The long ones are in dist/long.mk.
.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## the release binary, target/release/mcr
	dist/bootstrap build
	$(CARGO) build --release --locked --package mcr

.PHONY: test
test: ## everything that CI runs: format, lints, licences, documentation, all tests
	dist/bootstrap test
	$(MAKE) lint deny doc check

.PHONY: lint
lint: ## format and clippy
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

# Those that need root included. The lab runs the binary that this very build makes, so that no test
# process has to ask cargo for one.
.PHONY: check
check: export MCR_TEST_BINARY = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/mcr
check: ## all tests, or those of some crates (CRATES="packet rules")
	RUNNER='$(RUNNER)' dist/check $(CRATES)
	$(if $(CRATES),,$(AS_ROOT) $(CARGO) test --locked --workspace --doc --quiet)

# The code measured: lines for each crate, circles of files, what is too long or without a sentence.
.PHONY: figures
figures: ## lines, circles, long functions and files of the code itself
	python3 -B dist/figures

# The pictures of the page in docs/images, taken by headless Chromium.
.PHONY: pictures
pictures: ## the page's pictures in docs/images, taken by Chromium
	dist/bootstrap test
	$(CARGO) build --locked --package mcr
	$(AS_ROOT) $(CARGO) test --locked --package mcr \
	    --test mcr picture_taken -- --ignored --nocapture

# Coverage-guided, on the stable toolchain. What is found worth keeping goes to target/fuzz/TARGET;
# fuzz/corpus, which the ordinary tests replay, gets the smallest set with the same coverage.
DURATION ?= 600
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
# Without link-time optimisation, which takes longer for so many programs than it saves.
FUZZ := CARGO_PROFILE_RELEASE_LTO=off $(CARGO) fuzz
FUZZ_OPTIONS := --sanitizer none --features libfuzzer

.PHONY: fuzz
fuzz: ## every fuzz target (DURATION=600, seconds for each)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	$(FUZZ) build $(FUZZ_OPTIONS)
	set -e; for target in $(FUZZ_TARGETS); do \
	    mkdir -p target/fuzz/$$target target/fuzz/$$target.least; \
	    $(FUZZ) run $(FUZZ_OPTIONS) $$target target/fuzz/$$target fuzz/corpus/$$target -- \
	        -max_total_time=$(DURATION) -max_len=4096 -timeout=10 -print_final_stats=1; \
	    $(FUZZ) run $(FUZZ_OPTIONS) $$target target/fuzz/$$target.least fuzz/corpus/$$target target/fuzz/$$target -- -merge=1; \
	done

include dist/long.mk

.PHONY: bench
bench: ## the quick scenarios beside their peers (target/bench/report.md)
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) bench run --quick
	$(SUDO) $(BINARY) bench report --output target/bench/report.md --plots target/bench/plots

.PHONY: bench-promises
bench-promises: ## what promises stand on, 25 minutes; writes BENCHMARKS.md
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) bench run --promises --output target/bench/promises.json
	$(SUDO) $(BINARY) bench report target/bench/promises.json

.PHONY: bench-full
bench-full: ## all scenarios, 40 minutes on an idle machine; writes BENCHMARKS.md
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(SUDO) $(BINARY) bench run --output target/bench/full.json
	$(SUDO) $(BINARY) bench report target/bench/full.json

# Binary, units, group, directories, configuration, manual pages, completions: dist/install says where.
.PHONY: install
install: ## PREFIX=/usr/local, DESTDIR=; make uninstall takes it away
install: build
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install $(BINARY)

.PHONY: uninstall
uninstall:
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install --uninstall

# A Debian package, installed into a directory, run and removed before it counts as built.
.PHONY: deb
deb: ## a Debian package, target/mcr.deb, tested
deb: build package-parts
	@$(CARGO) deb --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deb
	$(CARGO) deb --no-build --strip --locked --package mcr --output target/mcr.deb
	$(SUDO) dist/deb/test target/mcr.deb

# An rpm package, likewise.
.PHONY: rpm
rpm: ## an rpm package, target/mcr.rpm, tested
rpm: build package-parts
	dist/bootstrap packages
	@$(CARGO) generate-rpm --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-generate-rpm
	strip -o target/package/mcr $(BINARY)
	gzip --no-name --best --keep target/package/man/man*/*.[15]
	$(CARGO) generate-rpm --package relay/mcr --output target/mcr.rpm
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
packages: ## deb, rpm and static binary with checksums, and lint-dist
packages: deb rpm static
	cd target && sha256sum mcr.deb mcr.rpm static/mcr >SHA256SUMS && cat SHA256SUMS
	$(MAKE) lint-dist

# Each part of dist by its own tool; what is not installed is skipped by name.
.PHONY: lint-dist
lint-dist: ## each part of dist by its own tool
	dist/lint

# Without shared libraries, for containers and old hosts: target/static/mcr.
.PHONY: static
static: ## one file without shared libraries, target/static/mcr
static: static-binary
	dist/bootstrap demo
	$(SUDO) target/static/mcr demo --duration 1
	$(SUDO) dist/container-test target/static/mcr

.PHONY: static-binary
static-binary: TARGET := $(shell uname -m)-unknown-linux-gnu
static-binary:
	dist/bootstrap build
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --release --locked --package mcr --target $(TARGET)
	install -D $(or $(CARGO_TARGET_DIR),target)/$(TARGET)/release/mcr target/static/mcr
	! readelf --program-headers target/static/mcr | grep -q INTERP
	strip target/static/mcr
