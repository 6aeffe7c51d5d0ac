# anyring: `make help` says what there is to make.

# Where cargo builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# One log for each step of `make test`.
LOGS := $(TARGET)/test-logs
STEP := scripts/step.sh $(LOGS)

# In the order in which they run.
STEPS := setup format lint doc patches build unit loom conformance-kernel conformance-engine conformance-table profiles \
         liburing-tests libaio-tests planted differential e2e install-test containers

# Where `make install` puts things; see scripts/install.sh for what each means.
export DESTDIR PREFIX LIBDIR STRIP

.NOTPARALLEL:
.PHONY: help build test demo results bench e2e-kernel conformance-renew undone install install-strip uninstall clean $(STEPS)

help:
	@echo "make build       the command anyring and libanyring.so, in $(TARGET)/release"
	@echo "make test        everything: $(STEPS)"
	@echo "make STEP        one of these steps alone"
	@echo "make undone      that the tests of the decisions fail without them; some 20 minutes"
	@echo "make conformance-renew  writes CONFORMANCE.md anew; a minute"
	@echo "make e2e-kernel  the end-to-end tests on the kernel's own io_uring, to check the tests"
	@echo "make results     measures everything into docs/results, in 15 minutes; the machine should do nothing else"
	@echo "make bench       what the engine's parts cost, in a process without doors (criterion)"
	@echo "make demo        fio, qemu-img and tokio-uring where io_uring is denied, and our rate beside the kernel's"
	@echo "make install     into PREFIX (/usr/local), below DESTDIR; builds only what was not built; install-strip: smaller"
	@echo "make uninstall   takes that away again"
	@echo "make clean       removes what was built and what setup installed here"

# Goes on after a failed step, so that one run shows everything; the summary fails if anything did.
test:
	@rm -rf $(LOGS)
	@-$(MAKE) --no-print-directory --keep-going $(STEPS)
	@scripts/summary.sh $(LOGS) $(STEPS)

# What the other steps need, from the package registries.
setup:
	@$(STEP) $@ scripts/setup.sh

format: setup
	@$(STEP) $@ scripts/each-crate.sh fmt --check

lint: setup
	@$(STEP) $@ scripts/each-crate.sh clippy --locked --all-targets --quiet -- -D warnings

doc: setup
	@$(STEP) $@ scripts/doc.sh

# That the patches of `make undone` and `make planted` still apply; one second.
patches:
	@$(STEP) $@ scripts/check-patches.sh crates/inject/tests/undone differential/planted

build: setup
	@$(STEP) $@ scripts/build.sh $(TARGET) anyring-conformance anyring-differential

# Unit and integration tests of all crates but the end-to-end ones.
unit: build
	@$(STEP) $@ scripts/cargo-test.sh --locked --workspace --exclude anyring-e2e --no-fail-fast

# Model checks of how threads hand things to each other. The flag rebuilds everything, so in a folder of its own.
loom: setup
	@RUSTFLAGS="--cfg loom" $(STEP) $@ cargo test --locked --release --target-dir $(TARGET)/loom -p anyring-engine --test loom

conformance-kernel: build
	@$(STEP) $@ scripts/conformance.sh kernel $(TARGET)/release

conformance-engine: build
	@$(STEP) $@ scripts/conformance.sh engine $(TARGET)/release

# That CONFORMANCE.md is what the two runs above say, and that nothing in it is missing.
conformance-table: build
	@$(STEP) $@ scripts/conformance.sh table $(TARGET)/release

conformance-renew: build
	@scripts/conformance.sh renew $(TARGET)/release

# That random programs find the bugs of differential/planted, each planted in a build of its own.
planted: build
	@$(STEP) $@ scripts/planted.sh $(TARGET)/release

# Random programs, of 2,000 fixed seeds, on the kernel and on ours.
differential: build
	@$(STEP) $@ $(TARGET)/release/anyring-differential compare --expect differential/differences.txt

profiles: build
	@$(STEP) $@ scripts/profiles.sh $(TARGET)/release

# liburing's own test programs, on the kernel and on ours.
liburing-tests: build
	@$(STEP) $@ scripts/liburing-tests.sh run $(TARGET)/release

# libaio's own harness, likewise.
libaio-tests: build
	@$(STEP) $@ scripts/libaio-tests.sh run $(TARGET)/release

e2e: build
	@$(STEP) $@ scripts/cargo-test.sh --locked -p anyring-e2e --no-fail-fast

# Not a step of `make test`: it builds once for each patch.
undone:
	@$(STEP) $@ scripts/undone.sh

e2e-kernel: build
	@E2E_ON=kernel $(STEP) $@ scripts/cargo-test.sh --locked -p anyring-e2e --no-fail-fast

demo: setup
	@scripts/build.sh $(TARGET)
	@scripts/demo.sh $(TARGET)

bench: setup
	@cargo bench --locked -p anyring-lab --bench engine

# At most 15 minutes. What is in docs/results is replaced once all is measured; documents show the charts as SVG.
# LAB=--quick tries it out, with figures that are worth nothing.
results: setup
	@scripts/build.sh $(TARGET)
	@rm -rf $(TARGET)/results
	@$(TARGET)/release/anyring lab --minutes 13 $(LAB) --out $(TARGET)/results
	@rm -rf docs/results $(TARGET)/results/*.png
	@cp -r $(TARGET)/results docs/results

# Whatever an installed program is made of; without it `make install` builds first, without `make setup`.
install:
	@[ -e $(TARGET)/release/dist/man1/anyring.1 ] || scripts/build.sh $(TARGET)
	@scripts/install.sh install $(TARGET)/release

install-strip:
	@$(MAKE) --no-print-directory install STRIP=1

uninstall:
	@scripts/install.sh uninstall $(TARGET)/release

# What `make install` installs runs from any place and goes away again.
install-test: build
	@$(STEP) $@ packaging/test-install.sh $(TARGET)

# packaging/Dockerfile and kubernetes.yaml, step by step in a chroot; with FULL=1 the build, too.
containers: build
	@$(STEP) $@ packaging/test-in-chroot.sh $(TARGET)

clean:
	cargo clean
	rm -rf .build
