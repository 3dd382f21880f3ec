# The one list of commands; CI runs these recipes too (.ci/run).
#
#   make demo        the main job on real magnetic-resonance images   (KILL=1: a worker dies in mid-run)
#   make test        all tests, Rust then Python
#   make test-peers  our verdicts on certificates, our cache and our replay beside those of other programs, couplings under MPIs   (PEERS=present: those there are)
#   make soak        the whole system in virtual time, fresh seeds        (SECONDS=60)
#   make crash-runs  runs with a journal, crashed in virtual time at each write   (CRASHES=100000)
#   make soak-runs   managers of runs with a journal, killed with SIGKILL         (KILLS=200)
#   make soak-workers   real workers, killed, stopped, told to end and edited, for an hour   (MINUTES=60)
#   make soak-links  links with everything at once, cut, stopped and reloaded   (MINUTES=60)
#   make soak-coupling  programs that hand arrays to each other, killed, stopped and leaving   (MINUTES=60)
#   make lint        formats, clippy, ruff, mypy, the extension's stubs, licences, what nobody uses, spelling, sentences
#   make fuzz        everything that reads foreign bytes             (SECONDS=60 for each reader, TARGET=policy: one)
#   make attack-data what strangers' answers may do, in a watched process (GENERATED=1000000 MUTATED=10000000 SEED=1)
#   make bench       us and the peers in turn, on this machine         (PART=noop: one part)
#   make bench-key-cache       lookups in a second, ours and libCacheSim's
#   make bench-replay          messages in a second, our replay and SimGrid's
#   make bench-keys            keys ready, cached and made again; the whole of make bench does it too
#   make bench-answers   answers as data beside pickles, and our decoder beside msgpack and cbor2   (PART=codecs: one part)
#   make bench-futures         futures in a second, ours and the standard library's
#   make bench-journal        runs with a journal beside runs without
#   make bench-identity        grid proxies at our doors and at mod_gridsite's     (PART=cost: one part)
#   make bench-numeric   BLAS in tasks and a large constant, ours and joblib's   (BENCH_ARGUMENTS="--rounds 9")
#   make bench-contracts  losses, contracts, stragglers and pipelines, ours and the peers'   (PART=kill: one part)
#   make bench-patterns  sums, word counts, arrays and divide-and-conquer, ours and the peers'   (PART=sum: one part)
#   make bench-links      links and their peers: streams, round trips, gateways    (PART=stream: one part)
#   make bench-redist     an array between two programs, ours and the peers        (PART=same_host: one part)
#   make bench-launch     processes by one request, beside the standard library's, srun and mpiexec
#   make paper-nexus     the figures of a paper on a library of secure links, with ours beside
#   make paper-muskel     the figures of a paper on security in a skeletal system   (PART=figure_3: one of them)
#   make paper-redistribution   the figures of a paper on redistribution, and of a coupled climate   (PART=climate: one part)
#   make paper-grid-services   the tables of a paper on grid services in Erlang, and its overload
#   make tracer    what traces the messages of MPI programs, in tracer/   (MPICC=/path/to/mpicc)
#   make wheel       one abi3 wheel in dist/, for machines without Rust (glibc 2.28 or newer), and a check of it
#   make docs        the Rust documentation, warnings are errors
#
# Everything Python lives in .venv, everything Rust in cargo's target directory. Nothing else is touched.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The crates that the extension module is made of; a change in one of them rebuilds it.
RUST_SOURCES := $(shell find crates -type f \( -name '*.rs' -o -name Cargo.toml \)) Cargo.toml Cargo.lock pyproject.toml
# `exoskel-py` is an extension module: it has no libpython to link a Rust test binary with, so pytest tests it.
TESTED_CRATES := --workspace --exclude exoskel-py
CARGO_DENY_VERSION := 0.20.2
CARGO_DENY := target/tools/bin/cargo-deny
CARGO_MACHETE_VERSION := 0.9.2
CARGO_MACHETE := target/tools/bin/cargo-machete
CARGO_FUZZ_VERSION := 0.13.2
CARGO_FUZZ := target/tools/bin/cargo-fuzz
# From PyPI, where it is a compiler of C and a linker with the C libraries of many systems.
ZIG_VERSION := 0.17.1
ZIG := target/tools/zig/ziglang/zig
# Of benches, without the endings of what is asked for and what is pinned.
PEER_LISTS := benches/peers benches/links/peers benches/redist/peers
# What programs in C and Fortran take from the package, `exoskel config` names it.
NATIVE := python/exoskel/native
HEADERS := crates/c/include/exoskel.h crates/c/include/exoskel.f90
# The head of a Python program that reads what pyproject.toml asks for.
ASK := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); project = p["project"];
SECONDS ?= 60
MINUTES ?= 60
CRASHES ?= 100000
KILLS ?= 200
GENERATED ?= 1000000
MUTATED ?= 10000000
SEED ?= 1
TARGET ?= $(notdir $(basename $(wildcard fuzz/fuzz_targets/*.rs)))
KILL ?=
PART ?=
PEERS ?=
BENCH_ARGUMENTS ?=

# One interpreter for every cargo command, so that none of them rebuilds what another has built.
export PYO3_PYTHON := $(abspath $(BIN)/python)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-rust test-python test-peers attack-data soak soak-workers crash-runs soak-runs soak-links soak-coupling lint lint-rust lint-python lint-text fuzz bench bench-numeric bench-patterns bench-contracts bench-key-cache bench-replay bench-keys bench-answers bench-futures bench-journal bench-identity bench-links bench-redist bench-launch paper-grid-services paper-muskel paper-nexus paper-redistribution tracer wheel docs format lock clean

help:
	@sed -n '3,36s/^# *//p' Makefile

# --- the environment -------------------------------------------------------------------------------

# What the package, its build and the examples need, of the versions in requirements.lock: a demo doesn't wait for what tests need.
$(VENV)/.running: requirements.lock
	@command -v cargo >/dev/null || { echo "cargo not found: install Rust 1.88 or later (https://rustup.rs)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "$(PYTHON) is older than 3.11: run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c '$(ASK) print("\n".join([*p["build-system"]["requires"], *project["dependencies"], *project["optional-dependencies"]["examples"]]))' > $@.txt
	@$(BIN)/python -m pip install --quiet --requirement $@.txt --constraint requirements.lock
	@touch $@

$(VENV)/.locked: $(VENV)/.running
	@$(BIN)/python -m pip install --quiet --requirement requirements.lock
	@touch $@

# Editable: an edited Python file is live at once, an edited Rust file rebuilds the module.
$(VENV)/.built: $(VENV)/.running $(RUST_SOURCES) $(HEADERS)
	@echo "building the extension module (the first time takes a few minutes)"
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --locked > $(VENV)/build.log 2>&1 \
	    || { cat $(VENV)/build.log; exit 1; }
	@cargo rustc --quiet --release --locked --package exoskel-c --crate-type cdylib
	@$(call place_library,target/release/libexoskel.so)
	@touch $@

# `install` makes new files: programs that run keep the library that they have.
place_library = install -D --mode=644 --target-directory=$(NATIVE)/include $(HEADERS) && install -D --target-directory=$(NATIVE)/lib $(1)

# --- what people run -------------------------------------------------------------------------------

demo: $(VENV)/.built
	@$(BIN)/python examples/mr_images.py $(if $(filter-out 0,$(KILL)),--kill)

test: test-rust test-python

# Not the examples, which lint compiles, nor documentation, where tests/test_tidy.py allows none that would have to run.
test-rust: $(VENV)/.locked
	@cargo test --locked --quiet $(TESTED_CRATES) --lib --tests

test-python: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m tests.cpython_tests
	@$(BIN)/python -m pytest

# Peers are Debian's packages, which root gets installed, and wheels from PyPI. Where they can't be: fails, or with PEERS=present names them and goes on.
test-peers: $(VENV)/.built $(VENV)/.locked
	@cargo build --locked --quiet --package exoskel-identity --example judge --package exoskel-keycache --example key_sequence --example replay
	@$(BIN)/python -m tests.peers.compare $(if $(PEERS),--$(PEERS))

# Each failure is printed with the answer that caused it.
attack-data: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m tests.data_attack --generated $(GENERATED) --mutated $(MUTATED) --seconds 86400 --seed $(SEED)

# A failing seed is printed with the command that plays it again.
soak: $(VENV)/.locked
	@cargo run --locked --quiet --release --package exoskel-sim --example system -- --seconds $(SECONDS)

# As above: each crash is at another write of a run, and the run goes on from what the disks have kept.
crash-runs: $(VENV)/.locked
	@cargo run --locked --quiet --release --package exoskel-sim --example deliveries -- --crashes $(CRASHES)

# The sink of each run is compared with the one of a run that nobody has killed.
soak-runs: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m tests.soak_runs --kills $(KILLS)

# What goes wrong is drawn from a seed that stands in the last lines; what comes of it depends on the machine.
soak-workers: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m tests.soak --minutes $(MINUTES)

# As above. It says of each number that is not as it should be what both ends have counted.
soak-links: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m tests.soak_links --minutes $(MINUTES)

# As above, of arrays that coupled programs hand to each other.
soak-coupling: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m tests.soak_coupling --minutes $(MINUTES)

bench: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.engines.run $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)
	@$(if $(PART),,$(MAKE) --no-print-directory bench-keys)

bench-numeric: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.numeric.run $(BENCH_ARGUMENTS)

bench-patterns: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.patterns.run $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

bench-contracts: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.contracts.run $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

bench-keys: $(VENV)/.locked
	@$(BIN)/python -m benches.study.keys $(BENCH_ARGUMENTS)

bench-key-cache: $(VENV)/.locked
	@cargo build --locked --quiet --release --package exoskel-keycache --example key_sequence
	@$(BIN)/python -m benches.study.key_cache $(BENCH_ARGUMENTS)

bench-replay: $(VENV)/.locked
	@cargo build --locked --quiet --release --package exoskel-keycache --example replay
	@$(BIN)/python -m benches.study.replay $(BENCH_ARGUMENTS)

bench-answers: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m pip install --quiet --target target/codecs --upgrade --requirement benches/engines/codecs.lock
	@$(BIN)/python -m benches.engines.answers $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

bench-futures: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.engines.futures $(BENCH_ARGUMENTS)

bench-journal: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.engines.journal $(BENCH_ARGUMENTS)

bench-identity: $(VENV)/.locked
	@$(BIN)/python -m benches.site.identity $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

# Each peer that can't be had here costs its own rows, which name it.
bench-links: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.links.run $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

bench-redist: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.redist.run $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

bench-launch: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.launch.run $(PART) $(BENCH_ARGUMENTS)

paper-nexus: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.links.nexus $(BENCH_ARGUMENTS)

# Root is needed: hosts are network namespaces.
paper-redistribution: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.redist.paper $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

# Root is needed: hosts are network namespaces.
paper-muskel: $(VENV)/.built $(VENV)/.locked
	@$(BIN)/python -m benches.muskel.paper $(foreach part,$(PART),--part $(part)) $(BENCH_ARGUMENTS)

paper-grid-services: $(VENV)/.locked
	@$(BIN)/python -m benches.site.grid_services $(if $(PART),--part $(PART)) $(BENCH_ARGUMENTS)

wheel: MACHINE := $(shell uname --machine)
wheel: UNWINDER := $(shell $(CC) -print-file-name=libgcc_s.so.1)
# zig links against an old glibc and brings its own headers of C: the wheel runs on systems that are older than this one.
# The system's unwinder, not one of the compiler's own: what ends a thread goes through the frames of both.
wheel: $(VENV)/.locked $(ZIG)
	@rm -f dist/*.whl
	@MATURIN=$(abspath $(BIN)/maturin) ZIG_TARGET=$(MACHINE)-linux-gnu.2.28 CARGO_ZIGBUILD_ZIG_PATH=$(abspath $(ZIG)) \
	    CARGO_TARGET_$(shell echo $(MACHINE) | tr a-z A-Z)_UNKNOWN_LINUX_GNU_LINKER=$(abspath packaging/zig_linker) \
	    cargo rustc --quiet --profile wheel --locked --target $(MACHINE)-unknown-linux-gnu --target-dir target/wheel --package exoskel-c --crate-type cdylib \
	    -- -C strip=symbols -C link-arg=$(UNWINDER)
	@$(call place_library,target/wheel/$(MACHINE)-unknown-linux-gnu/wheel/libexoskel.so)
	@VIRTUAL_ENV=$(abspath $(VENV)) CARGO_ZIGBUILD_ZIG_PATH=$(abspath $(ZIG)) \
	    $(BIN)/maturin build --profile wheel --locked --zig --compatibility manylinux_2_28 --compression-level 9 --target-dir target/wheel --out dist \
	    -- -C link-arg=$(UNWINDER)
	@$(BIN)/python packaging/check_wheel.py dist/*.whl

$(ZIG): | $(VENV)/.running
	@$(VENV)/bin/python -m pip install --quiet --target target/tools/zig --upgrade ziglang==$(ZIG_VERSION)
	@test -x $@ && touch $@

docs: $(VENV)/.locked
	@RUSTDOCFLAGS="--deny warnings" cargo doc --locked --workspace --no-deps --document-private-items

# What a run finds on its way goes to target/fuzz; the kept corpus is only read. libFuzzer's coverage works with the
# stable compiler as long as no sanitizer is asked for, and the readers have no unsafe code that one could watch.
fuzz: $(CARGO_FUZZ)
	@for target in $(TARGET); do \
	    mkdir -p target/fuzz/found/$$target; \
	    echo "$$target for $(SECONDS) s"; \
	    $(CARGO_FUZZ) run --sanitizer none --target-dir target/fuzz $$target target/fuzz/found/$$target fuzz/corpus/$$target -- \
	        -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 -verbosity=0; \
	done

# For the MPI library of the compiler wrapper in the path; MPICC=/path/to/mpicc for another one.
tracer:
	@$(MAKE) --no-print-directory -C tracer libexoskel_tracer.so

# --- lint ------------------------------------------------------------------------------------------

lint: lint-rust lint-python lint-text

lint-rust: $(VENV)/.locked $(CARGO_DENY) $(CARGO_MACHETE)
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --quiet --workspace --all-targets -- --deny warnings
	cargo check --locked --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
	$(CARGO_DENY) --log-level error check bans licenses sources
	$(CARGO_MACHETE) --with-metadata crates

# Its own target directory, kept: a compile of a minute, once. Not optimised: it runs for a second.
$(CARGO_DENY): VERSION := $(CARGO_DENY_VERSION)
$(CARGO_MACHETE): VERSION := $(CARGO_MACHETE_VERSION)
$(CARGO_FUZZ): VERSION := $(CARGO_FUZZ_VERSION)
$(CARGO_DENY) $(CARGO_MACHETE) $(CARGO_FUZZ):
	CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=target/tools/build-$(@F) \
	    cargo install $(@F) --version $(VERSION) --locked --debug --quiet --root target/tools
	@rm -rf target/tools/build-$(@F)

lint-python: $(VENV)/.built $(VENV)/.locked
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest exoskel._core
	$(BIN)/vulture

lint-text: $(VENV)/.built $(VENV)/.locked
	$(BIN)/codespell
	$(BIN)/python -m tests.wording
	$(BIN)/python -m pytest --quiet tests/test_tidy.py -k words_that_the_glossary_retired

format:
	@cargo fmt --all
	@cargo fmt --manifest-path fuzz/Cargo.toml
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix-only

# --- upkeep ----------------------------------------------------------------------------------------

# Pins what a fresh environment resolves to today: what pyproject.toml asks for, and the peers of the bench. With the oldest
# Python that we support: a newer one would pin versions that it can't have, and leave out what only it needs.
lock:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	    || { echo "got $$($(PYTHON) --version), expected 3.11: run make lock PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv --clear target/lock
	@$(PYTHON) -c '$(ASK) print("\n".join(project["dependencies"] + project["optional-dependencies"]["examples"] + p["dependency-groups"]["check"]))' > target/lock/asked.txt
	@target/lock/bin/python -m pip install --quiet --requirement target/lock/asked.txt
	@target/lock/bin/python -m pip check --quiet
	@{ head -1 requirements.lock; target/lock/bin/python -m pip freeze; } > target/lock/new && mv target/lock/new requirements.lock
	@for peers in $(PEER_LISTS); do \
	    $(PYTHON) -m venv --clear target/lock; \
	    target/lock/bin/python -m pip install --quiet --requirement $$peers.in; \
	    target/lock/bin/python -m pip check --quiet; \
	    { head -1 $$peers.lock; target/lock/bin/python -m pip freeze; } > target/lock/new && mv target/lock/new $$peers.lock; \
	done
	@rm -rf target/lock

clean:
	@rm -rf $(VENV) .venv-peers target dist
