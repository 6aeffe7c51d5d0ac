# anyring: `make help` says what there is to make.

# Where cargo builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# One log for each step of `make test`.
LOGS := $(TARGET)/test-logs
STEP := scripts/step.sh $(LOGS)

# In the order in which they run.
STEPS := setup format lint doc build unit conformance-kernel conformance-engine e2e

.NOTPARALLEL:
.PHONY: help build test demo e2e-kernel clean $(STEPS)

help:
	@echo "make build       the command anyring and libanyring.so, in $(TARGET)/release"
	@echo "make test        everything: $(STEPS)"
	@echo "make STEP        one of these steps alone"
	@echo "make e2e-kernel  the end-to-end tests on the kernel's own io_uring, to check the tests"
	@echo "make demo        fio, qemu-img and tokio-uring where io_uring is denied, and our rate beside the kernel's"
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
	@RUSTDOCFLAGS="-D warnings" $(STEP) $@ cargo doc --locked --workspace --no-deps --quiet

build: setup
	@$(STEP) $@ cargo build --locked --release -p anyring-cli -p anyring-inject -p anyring-lab -p anyring-conformance

# Unit and integration tests of all crates but the end-to-end ones.
unit: build
	@$(STEP) $@ cargo test --locked --workspace --exclude anyring-e2e --no-fail-fast

conformance-kernel: build
	@$(STEP) $@ scripts/conformance.sh kernel $(TARGET)/release

conformance-engine: build
	@$(STEP) $@ scripts/conformance.sh engine $(TARGET)/release

e2e: build
	@$(STEP) $@ cargo test --locked -p anyring-e2e --no-fail-fast

e2e-kernel: build
	@E2E_ON=kernel $(STEP) $@ cargo test --locked -p anyring-e2e --no-fail-fast

demo: build
	@scripts/demo.sh $(TARGET)

clean:
	cargo clean
	rm -rf .build
