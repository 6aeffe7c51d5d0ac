# anyring: `make help` lists the targets.

# Where cargo builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# For this machine, or for another processor: CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu, as cargo's own variable.
RELEASE := $(TARGET)/$(if $(CARGO_BUILD_TARGET),$(CARGO_BUILD_TARGET)/)release
OUT := $(TARGET)/$(if $(CARGO_BUILD_TARGET),$(CARGO_BUILD_TARGET)/)out
# The folder with the programs that are tested and the programs that test them (scripts/build.sh).
CHECK := $(TARGET)/check
# One log for each step of `make test` or `make soak`.
LOGS := $(TARGET)/test-logs
SOAK_LOGS := $(TARGET)/soak-logs
STEP = scripts/step.sh $(LOGS)

# `make test`: the checks whose result depends only on the code, in the order in which they run. 20 minutes at most.
STEPS := setup format lint doc commits build-tests prose weight unit loom simulation conformance denied files e2e install-test ci-test
# `make soak`: the other checks. Those of LOADED then run again beside four processes that spin.
SOAK := setup-soak build-tests unit-soak conformance-kernel conformance-engine profiles liburing-tests libaio-tests mutations \
        chaos differential hostile files-soak fio-verify simulation-soak sanitizers e2e-soak findings refused denied-soak calls containers hosts engines aarch64 \
        dist-test dist-soak packages packages-aarch64 embedding
LOADED := unit conformance files e2e $(filter-out setup-soak build-tests chaos files-soak fio-verify denied-soak sanitizers containers hosts engines aarch64 dist-test dist-soak packages packages-aarch64 embedding,$(SOAK))

# Where `make install` puts files; scripts/install.sh explains each variable.
export DESTDIR PREFIX LIBDIR STRIP

.NOTPARALLEL:
.PHONY: help build test soak case oracle demo results postgres-methods bench e2e-kernel install install-strip uninstall dist deb rpm clean \
        $(sort $(STEPS) $(SOAK) $(LOADED))

help:
	@echo "make build           the command anyring and libanyring.so, in $(RELEASE)"
	@echo "make install         into PREFIX (/usr/local), below DESTDIR"
	@echo "make install-strip   the same without debugging symbols"
	@echo "make uninstall       removes what install installed"
	@echo "make demo            fio, qemu-img and tokio-uring where io_uring is denied"
	@echo
	@echo "make case NAME=X     one conformance case on the kernel and on anyring"
	@echo "make test            what must pass before a change lands; 20 minutes"
	@echo "make soak            the other checks, then all again under load; hours"
	@echo "make STEP            one step of these; CONTRIBUTING.md lists them"
	@echo "make oracle          records the kernel's answers, in 10 minutes"
	@echo "make e2e-kernel      the end-to-end tests on the kernel's own io_uring"
	@echo
	@echo "make bench           what the engine's parts cost (criterion)"
	@echo "make results         measures everything into docs/results, in 15 minutes"
	@echo "make postgres-methods  PostgreSQL's io_method settings, in 5 minutes"
	@echo
	@echo "make dist            the files of a release, in $(OUT)"
	@echo "make deb, make rpm   a package of what is built, in $(OUT)"
	@echo "build, install, dist, deb and rpm take CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu"
	@echo
	@echo "make clean           removes what was built, and what setup put into .build"

# Continues after a failed step, so that one run shows all failures. The summary fails if a step failed.
test:
	@rm -rf $(LOGS)
	@-$(MAKE) --no-print-directory --keep-going $(STEPS)
	@scripts/summary.sh $(LOGS) $(STEPS)

soak:
	@rm -rf $(SOAK_LOGS)
	@-$(MAKE) --no-print-directory --keep-going LOGS=$(SOAK_LOGS)/quiet $(SOAK)
	@-scripts/beside.sh 4 $(MAKE) --no-print-directory --keep-going LOGS=$(SOAK_LOGS)/loaded $(LOADED)
	@status=0; \
	scripts/summary.sh $(SOAK_LOGS)/quiet $(SOAK) || status=1; \
	echo; echo "and beside four processes that spin:"; \
	scripts/summary.sh $(SOAK_LOGS)/loaded $(LOADED) || status=1; \
	exit $$status

# Installs what the other steps need, from the package registries.
setup:
	@$(STEP) $@ scripts/setup.sh
setup-soak: setup
	@$(STEP) $@ scripts/setup.sh soak

format: setup
	@$(STEP) $@ scripts/each-crate.sh fmt --check

lint: setup
	@$(STEP) $@ scripts/each-crate.sh clippy --locked --all-targets --quiet -- -D warnings

doc: setup
	@$(STEP) $@ scripts/doc.sh

# Checks the subjects of commits.
commits:
	@$(STEP) $@ scripts/commits.sh

# For users: needs a Rust toolchain with the linker that it calls (cc), and installs nothing.
build:
	@scripts/build.sh $(TARGET)

# Builds the same, and the programs that test it.
build-tests: setup
	@$(STEP) $@ scripts/build.sh $(TARGET) $(addprefix anyring-,conformance conformance-plain differential files hostile)

# Checks the English of documents, help texts and doc comments.
prose: build-tests
	@$(STEP) $@ $(TARGET)/debug/anyring-xtask prose

# Compares the instructions and system calls of each request with the committed counts. WRITE=1 writes the present counts.
weight: build-tests
	@$(STEP) $@ scripts/weight.sh $(CHECK)/libanyring.so $(if $(WRITE),--write,--check)

# Unit and integration tests of all crates, without the end-to-end tests. `unit-soak`: tests that measure or take long.
UNIT := scripts/cargo-test.sh --locked --workspace --exclude anyring-e2e --no-fail-fast
unit: build-tests
	@$(STEP) $@ $(UNIT)
unit-soak: build-tests
	@$(STEP) $@ $(UNIT) -- --ignored

# Model checks of how threads hand work over. The flag rebuilds everything, so the build has a folder of its own.
loom: setup
	@RUSTFLAGS="--cfg loom" $(STEP) $@ cargo test --locked --release --target-dir $(TARGET)/loom -p anyring-engine --test loom

# The conformance cases: each once on anyring; through every door with every set of flags on anyring, and on the kernel.
conformance: build-tests
	@$(STEP) $@ scripts/conformance.sh once $(CHECK)
conformance-engine: build-tests
	@$(STEP) $@ scripts/conformance.sh engine $(CHECK)
conformance-kernel: build-tests
	@$(STEP) $@ scripts/conformance.sh kernel $(CHECK)

# A single conformance case, in seconds: make case NAME=nop::completes_with_zero
case:
	@scripts/conformance.sh case $(TARGET)/debug "$(NAME)"

# ADD=1 adds to the existing record.
oracle: build-tests
	@scripts/conformance.sh oracle $(CHECK)

# Checks that each bug of crates/engine/src/mutation.rs makes its check fail, which passes without the bug.
mutations: build-tests
	@$(STEP) $@ cargo xtask mutations --bin $(CHECK)

# 2,000 random programs with fixed seeds, on the kernel and on anyring.
differential: build-tests
	@$(STEP) $@ $(CHECK)/anyring-differential compare --runs 2000 --jobs 4 --expect tests/differential/differences.txt

# 20,000 hostile programs with fixed seeds, on anyring, and 2,000 of them as guests; a few run with the unit tests.
hostile: build-tests
	@$(STEP) $@ sh -c '$(CHECK)/anyring-hostile run --runs 20000 --jobs 4 && \
	    $(CHECK)/anyring-hostile run --backend guest --runs 2000 --jobs 4'

# Random programs on one file, each byte compared with a model, on each file system that can be had here.
files: build-tests
	@$(STEP) $@ scripts/files.sh $(CHECK) 60
files-soak: build-tests setup-soak
	@$(STEP) $@ scripts/files.sh $(CHECK) 3600 --seed 1000000

# fio's own verification with each pattern, on the same file systems.
fio-verify: build-tests setup-soak
	@$(STEP) $@ scripts/files.sh $(CHECK) fio

# Real programs under chaos, with 100 seeds each, for the table of docs/found.md.
chaos: setup-soak build-tests
	@$(STEP) $@ scripts/chaos.sh $(CHECK) $(TARGET)/e2e

# The engine's tests with AddressSanitizer and ThreadSanitizer.
sanitizers: setup
	@$(STEP) $@ scripts/sanitizers.sh $(TARGET)

# Builds anyring for aarch64, and runs the engine's unit tests and the conformance cases on an emulated machine.
aarch64: setup-soak
	@$(STEP) $@ scripts/aarch64.sh $(TARGET)/aarch64

# The engine on a simulated system: a million steps, and planted bugs; in soak, 10^8 steps. The feature rebuilds the engine, so
# the build has a folder of its own.
simulation: setup
	@$(STEP) $@ scripts/simulation.sh $(TARGET)/simulation 220
simulation-soak: setup
	@$(STEP) $@ scripts/simulation.sh $(TARGET)/simulation 20000

# The conformance cases in environments that lack more than io_uring.
profiles: build-tests
	@$(STEP) $@ scripts/profiles.sh $(CHECK)

# liburing's own test programs, on the kernel and on anyring.
liburing-tests: setup-soak build-tests
	@$(STEP) $@ scripts/liburing-tests.sh run $(CHECK)

# libaio's own harness, likewise.
libaio-tests: setup-soak build-tests
	@$(STEP) $@ scripts/libaio-tests.sh run $(CHECK)

# Real programs: in Docker's profile, and where Linux AIO is refused, too. `e2e-soak`: in every environment.
E2E := scripts/cargo-test.sh --locked -p anyring-e2e --no-fail-fast
e2e: build-tests
	@E2E_IN=docker::user,noaio $(STEP) $@ $(E2E)
e2e-soak: build-tests
	@$(STEP) $@ $(E2E)

e2e-kernel: build-tests
	@E2E_ON=kernel $(STEP) $@ $(E2E)

# Follows the findings of `anyring trace` in ten programs, on the kernel and on anyring, for the table of docs/trace.md.
findings: setup-soak build-tests
	@$(STEP) $@ scripts/findings.py $(CHECK)

# Checks that programs behave as docs/refused.md says where io_uring is refused. Tests the programs that are quick to install.
refused: setup-soak build-tests
	@$(STEP) $@ scripts/refused.py $(CHECK)

# Each of those calls refused, by EPERM, ENOSYS and a filter that kills: served, or refused in one line before the program starts. Each
# once; in soak, all of them for three programs.
denied: build-tests
	@$(STEP) $@ scripts/denied.py $(CHECK) --sample
denied-soak: build-tests
	@$(STEP) $@ scripts/denied.py $(CHECK)

# The system calls that a filter must permit: packaging/seccomp/anyring.json.
calls: setup-soak build-tests
	@$(STEP) $@ scripts/calls.py $(CHECK)

demo:
	@scripts/setup.sh demo
	@scripts/build.sh $(TARGET)
	@scripts/demo.sh $(TARGET)

bench: setup
	@cargo bench --locked -p anyring-lab --bench engine

# At most 15 minutes. The files in docs/results are replaced once everything is measured. Documents show the SVG charts.
# LAB=--quick only tests this step; its figures mean nothing.
results: setup
	@scripts/build.sh $(TARGET)
	@rm -rf $(TARGET)/results
	@$(TARGET)/release/anyring lab --minutes 13 $(LAB) --out $(TARGET)/results
	@rm -rf docs/results $(TARGET)/results/*.png
	@cp -r $(TARGET)/results docs/results

# Makes the comparison of docs/postgresql.md. METHODS="--major 19" takes another version. Run it on an idle machine.
postgres-methods: setup
	@scripts/build.sh $(TARGET)
	@scripts/postgres-methods.py $(TARGET)/release $(METHODS)

# The files that an installation consists of. If they are missing, `make install` builds them first, without `make setup`.
install:
	@[ -e $(RELEASE)/dist/man1/anyring.1 ] || scripts/build.sh $(TARGET)
	@scripts/install.sh install $(RELEASE)

install-strip:
	@$(MAKE) --no-print-directory install STRIP=1

uninstall:
	@scripts/install.sh uninstall $(RELEASE)

# Checks that the installed files work from any place, and that `make uninstall` removes them.
install-test: build-tests
	@$(STEP) $@ tests/packaging/test-install.sh $(TARGET)

# The files of a release. They have the same bytes wherever they are built.
dist:
	@scripts/dist.sh $(TARGET) $(OUT)

# Checks that they have: `dist-test` packs one build twice, `dist-soak` builds twice.
dist-test: build-tests
	@$(STEP) $@ tests/packaging/test-dist.sh $(TARGET)
dist-soak: build-tests
	@FULL=1 $(STEP) $@ tests/packaging/test-dist.sh $(TARGET)

# Tests the crate `anyring`, and that it could be published.
embedding: setup-soak build-tests
	@$(STEP) $@ scripts/embedding.sh $(TARGET)

# Runs the steps of action.yml and packaging/ci as a CI runner does.
ci-test: build-tests
	@$(STEP) $@ tests/packaging/test-ci.sh $(TARGET)

deb:
	@[ -e $(RELEASE)/dist/man1/anyring.1 ] || scripts/build.sh $(TARGET)
	@scripts/deb.sh $(RELEASE) $(OUT)

rpm:
	@[ -e $(RELEASE)/dist/man1/anyring.1 ] || scripts/build.sh $(TARGET)
	@scripts/rpm.sh $(RELEASE) $(OUT)

# Checks the packages with lintian and rpm, and installs them in Debian 11, 12 and 13.
packages: setup-soak build-tests
	@$(STEP) $@ tests/packaging/test-packages.sh $(TARGET)

# The files for aarch64, made here, and installed on an emulated machine.
packages-aarch64: setup-soak build-tests
	@$(STEP) $@ tests/packaging/test-aarch64.sh $(TARGET)

# Runs the steps of packaging/Dockerfile and kubernetes.yaml in chroots; with FULL=1 the build step, too.
containers: setup-soak build-tests
	@$(STEP) $@ tests/containers/test-in-chroot.sh $(TARGET)

# Doctor, programs and the conformance cases on other kernels, in QEMU; WRITE=1 also writes the table of docs/hosts.md.
hosts: setup-soak build-tests
	@$(STEP) $@ scripts/hosts.sh $(CHECK) $(if $(WRITE),--write)

# Images, programs and cases in Docker, podman and gVisor; WRITE=1 also writes the table of docs/containers.md.
engines: setup-soak build-tests
	@WRITE=$(WRITE) $(STEP) $@ scripts/engines.sh $(TARGET)

clean:
	cargo clean
	rm -rf .build
