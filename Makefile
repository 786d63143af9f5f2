# make demo      relay real multicast in namespaces of its own
# make test      everything that CI runs
# make install   PREFIX=/usr/local, DESTDIR=
#
# As root or as a user who may use sudo. The first line of each purpose installs what is missing.

PREFIX ?= /usr/local
DESTDIR ?=

CARGO ?= cargo
BINARY := target/release/mcr
# Tests and the demo need root; a user builds as himself and runs them through sudo.
ROOT := $(if $(filter-out 0,$(shell id -u)),sudo -E env "PATH=$$PATH" "HOME=$$HOME")

.PHONY: demo
demo:
	dist/bootstrap demo
	$(CARGO) build --release --locked --package mcr
	$(ROOT) $(BINARY) demo

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
	    $(CARGO) deny --locked --offline check licenses bans sources; \
	else \
	    echo "skipped: cargo deny check: cargo-deny is not installed (cargo install --locked cargo-deny)"; \
	fi

.PHONY: doc
doc:
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items --quiet

# All tests, those that need root included. The binary first: the lab runs it.
.PHONY: check
check:
	$(CARGO) build --locked --package mcr
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='$(ROOT)' \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='$(ROOT)' \
	$(CARGO) test --locked --workspace

.PHONY: bench
bench:
	dist/bootstrap bench
	$(CARGO) build --release --locked --package mcr
	$(ROOT) $(BINARY) bench report

.PHONY: install
install: build
	install -D --mode=0755 $(BINARY) "$(DESTDIR)$(PREFIX)/bin/mcr"
	install -d "$(DESTDIR)$(PREFIX)/share/man/man1"
	$(BINARY) man --directory "$(DESTDIR)$(PREFIX)/share/man/man1"
	install -d "$(DESTDIR)$(PREFIX)/share/bash-completion/completions"
	$(BINARY) completions bash >"$(DESTDIR)$(PREFIX)/share/bash-completion/completions/mcr"
	install -d "$(DESTDIR)$(PREFIX)/share/zsh/site-functions"
	$(BINARY) completions zsh >"$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_mcr"
	install -d "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d"
	$(BINARY) completions fish >"$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/mcr.fish"
