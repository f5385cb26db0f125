# make demo: train on this machine, DEMO="steps=20" for fewer steps · make check: read the code, about a minute
# make docs: the documentation as a site, in site/ · make picture: record the pictures of README and docs again
# make test-quick: lint, types and the quick tests, 2 min · make test: check, then the tests, 17 min
# make test-all: as test, with further variants and long proofs, 40 min
.DEFAULT_GOAL := help
.PHONY: help demo docs picture check check-types check-style components test test-quick test-all dev format clean
SHELL := /bin/bash
# many images set it; then pytest and every orch that a test starts compile the same files again
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# the pinned pip and setuptools replace those that Python installs
PIP := $(BIN)/pip --disable-pip-version-check install -qq --constraint constraints.txt
# three per core of a small machine: half of the time a test waits; with two or four per core, the tests take longer
WORKERS ?= 6
SHELL_FILES := $(wildcard scripts/*.sh) .ci/run

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile | sed 's/ · /\n/g'

# A stamp is newer than setup.cfg and constraints.txt if the environment was installed from them.
.venv/.created: scripts/make-venv.sh
	scripts/make-venv.sh .venv
	$(PIP) --upgrade pip setuptools
	touch $@

.venv/.trainer: .venv/.created setup.cfg pyproject.toml constraints.txt
	$(PIP) --no-build-isolation --editable '.[trainer]'
	touch $@

.venv/.dev: .venv/.created setup.cfg pyproject.toml constraints.txt
	$(PIP) --no-compile --no-build-isolation --editable '.[dev,docs]'
	# on all cores; models of transformers that are not used, and tests, are left out; some files are for other Pythons
	$(BIN)/python -m compileall -qq -j 0 -x '/transformers/models/(?!auto/|gpt2/|__init__)|/tests?/' .venv/lib || true
	touch $@ .venv/.trainer .venv/.docs

.venv/.docs: .venv/.created setup.cfg constraints.txt
	$(PIP) --no-build-isolation --editable '.[docs]'
	touch $@

# A T20's software, for the tests that call tests/grounds/t20.py; empty without a Python 3.8.
.venv-t20/.ready: scripts/make-t20-venv.sh scripts/t20-requirements.txt
	mkdir -p .venv-t20
	scripts/make-t20-venv.sh .venv-t20
	touch $@

demo: .venv/.trainer
	$(BIN)/orch ssh-launch --inventory inventories/local.yaml --follow $(DEMO)

docs: .venv/.docs
	$(BIN)/zensical build --clean --strict

picture: .venv/.trainer
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/record_terminal.py docs/images/first-run.svg "orch ssh-launch -i local steps=20"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/record_run.py docs/images

dev: .venv/.dev

# mypy takes longer than all the others
check: .venv/.dev
	$(MAKE) --jobs=2 --output-sync --no-print-directory check-types check-style

check-types:
	$(BIN)/mypy --num-workers 2

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- orchestrator/node orchestrator/portable trainer examples
	$(BIN)/vermin --quiet --no-tips --violations --target=3.10- orchestrator
	$(BIN)/codespell
	$(BIN)/python scripts/audit.py
	if command -v shellcheck >/dev/null; then shellcheck $(SHELL_FILES); else test -z "$$CI"; fi

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Only tests that make test leaves out need a browser.
components:
	scripts/install-test-components.sh $(if $(TESTS),,chromium)

# The other tests start Pythons (agents, orch, ranks, programs on nodes and under Slurm), or train for seconds.
test-quick: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/python -m pytest --numprocesses 2 -m "not (processes or trains or extended)"

# Debian's packages are installed in parallel with pip's; check needs shellcheck from them.
test:
	$(MAKE) test-all TESTS='-m "not extended"'

test-all:
	$(MAKE) --jobs=3 components dev .venv-t20/.ready
	$(MAKE) check
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --durations=25 $(TESTS)

# make bench: compare with other launchers and trainers, more than an hour; BENCH="--update docs/benchmarks.md" saves the figures
.PHONY: bench
BENCH_PIP := .venv-bench/bin/pip --disable-pip-version-check install -qq --constraint .venv-bench/constraints.txt
.venv-bench/.ready: scripts/make-venv.sh setup.cfg pyproject.toml constraints.txt bench/constraints.txt
	scripts/make-venv.sh .venv-bench
	# torchx requires an older urllib3 than the tests: bench/constraints.txt overrides constraints.txt
	awk -F= 'NR == FNR { own[$$1] } NR == FNR || !($$1 in own)' bench/constraints.txt constraints.txt >.venv-bench/constraints.txt
	$(BENCH_PIP) --upgrade pip setuptools
	$(BENCH_PIP) --no-build-isolation --editable . numpy pytest torch typer
	$(BENCH_PIP) --no-build-isolation deepspeed torchrunx torchx transformers accelerate nvidia-resiliency-ext  # deepspeed's build imports torch
	touch $@

bench: .venv-bench/.ready
	.venv-bench/bin/python -m bench $(BENCH)

# make floors: tests with the oldest versions that setup.cfg allows; PYTHON=python3.10 takes the oldest Python too
.PHONY: floors
FLOORS := .venv-floors$(addprefix -,$(notdir $(PYTHON)))
FLOORS_PIP := $(FLOORS)/bin/pip --disable-pip-version-check install -qq --constraint $(FLOORS)/constraints.txt
# without torch, so without the trainer; the tests' own tools are the newest that this Python can run
FLOORS_TESTS := $(addprefix tests/,cli code connections endpoint golden inventory launchers logs plan portable/names records security ssh transports usecases verdict) \
  tests/slurm/test_submit.py $(wildcard tests/test_*.py)
$(FLOORS)/.ready: scripts/make-venv.sh setup.cfg
	scripts/make-venv.sh $(FLOORS)
	sed -n '/^install_requires/,/^\[/ s/^ *\([A-Za-z0-9.]*\)>=\([0-9.]*\).*/\1==\2/p' setup.cfg >$(FLOORS)/constraints.txt
	$(FLOORS_PIP) --upgrade pip setuptools
	$(FLOORS_PIP) --no-build-isolation --editable . hypothesis packaging 'pytest<9.2' pytest-randomly pytest-timeout pytest-xdist
	touch $@

floors: $(FLOORS)/.ready
	cat $(FLOORS)/constraints.txt
	$(FLOORS)/bin/python -m pytest --numprocesses $(WORKERS) $(FLOORS_TESTS)

# make release-check: build a release in dist/, install and run it, list what is left to a person; see docs/releasing.md
.PHONY: release-check
release-check: .venv/.dev
	scripts/release-check.sh

# make audit: compare the pinned versions with the published advisories (part of check)
.PHONY: audit
audit: .venv/.dev
	$(BIN)/python scripts/audit.py

clean:
	rm -rf .venv .venv-bench .venv-floors* .venv-t20 build dist site .cache *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
