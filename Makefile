# make run        start everything on this machine
# make demo       a lab to look around in: made-up people, a month of history, nodes on which nothing really runs
# make check      before every commit: lint, pure tests, the core of each app; a minute and a half
# make test       every real part once, in containers, on several machines, in a browser; twelve minutes
# make test-all   all tests, on both databases, with new random examples; FROM=browser continues there
# make lint       ruff, mypy, import contracts          make bench    ratios to their floors
# make docs       the documentation as a site: docs/_build/html, which the portal serves at /help/
# make docs-links whether the links to other sites still work; needs the internet
# make clean      remove the virtual environment and caches
# make sbom       the bill of materials of a release, in CycloneDX: packages and vendored files with hashes and licences
# make diagrams   draw the diagrams of the documentation that have changed; needs Node.js and Chromium
# make lock       after an edit of requirements*.txt: lock all packages with hashes; UPGRADE=yes takes newer transitive ones
#
# INSTALL=no makes tests install nothing and start no Docker Engine (docs/development/testing.md).
# make test-gpu           what only a machine with CUDA devices can show; make test does it there, too
# make test-faults        break a lab of several machines in every way, for three hours (docs/development/fault-tests.md)
# make soak               leave the portal away for an hour while jobs write (docs/development/fault-tests.md)
# make mutation           which of 200 seeded faults the tests catch, an hour (docs/development/seeded-faults.md)
# make mutants FILE=...   every fault that mutmut can make in one pure module
# make bench-policies DATA=FOLDER   all policies on measured workloads, side by side (docs/policies/measurements.md)
# make bench-live   half an hour of jobs in real containers, beside the simulator (docs/policies/measurements.md)
# make bench-training   the training library's costs and gains, two hours (docs/training/measurements.md)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HELP := docs/_build/built
DOCS := $(shell find docs -type f -not -path "docs/_build/*" -not -name "*.pyc")
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
TOO_OLD = echo "Schedulearn needs Python 3.11 or newer, and $(PYTHON) is not. Name one: make run PYTHON=python3.12"; \
	echo "  Debian 12, Ubuntu 24.04 or newer: sudo apt-get install python3 python3-venv"

# A python that can start checks what else is needed, before anything is installed.
PREREQUISITES = python=$(BIN)/python; test -x $$python || python="$(PYTHON)"; \
	$$python -c '$(NEW_ENOUGH)' 2>/dev/null || { $(TOO_OLD); exit 1; }; $$python portal/ops/prerequisites.py $(VENV) $(1)

WITH_HELP = $(MAKE) -s --no-print-directory docs || echo "The documentation could not be built, so /help/ is empty; the portal works without it."

.PHONY: run demo docs docs-links check test test-all test-gpu test-faults soak mutation mutants sbom lint bench bench-policies bench-live bench-training lock diagrams clean

run:
	@$(call PREREQUISITES,run)
	@$(MAKE) -s --no-print-directory $(VENV)/installed
	@$(WITH_HELP)
	@exec $(BIN)/python manage.py up

demo:
	@$(if $(findstring --remove,$(OPTIONS)),true,$(call PREREQUISITES,demo))
	@$(MAKE) -s --no-print-directory $(VENV)/installed
	@$(if $(findstring --remove,$(OPTIONS)),true,$(WITH_HELP))
	@exec $(BIN)/python manage.py demo $(OPTIONS)

docs: $(HELP)

$(HELP): $(DOCS) CONTRIBUTING.md SECURITY.md pyproject.toml | $(VENV)/installed
	@echo "Building the documentation"
	@rm -rf docs/_build/html $@
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html
	@touch $@

docs-links: $(VENV)/installed
	@$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/links

check: $(VENV)/installed-dev
	@$(BIN)/python -m tests.run check

test: $(VENV)/installed-dev
	@$(BIN)/python -m tests.run test

test-all: $(VENV)/installed-dev
	@$(BIN)/python -m tests.run all $(if $(FROM),--from $(FROM)) $(if $(SEED),--seed $(SEED))

test-gpu: $(VENV)/installed-dev
	@$(BIN)/python -m tests.run gpu

test-faults: $(VENV)/installed-dev
	@$(BIN)/python -m tests.cluster $(FAULTS)

soak: $(VENV)/installed-dev
	@$(BIN)/python -m tests.cluster away --away 60 $(FAULTS)

mutation: $(VENV)/installed-dev
	@test -e var/mutation/cov-portal || $(BIN)/python -m tests.mutation measure
	@$(BIN)/python -m tests.mutation run $(OPTIONS)

mutants: $(VENV)/installed-dev
	@test -n "$(FILE)" || { echo "Name a module: make mutants FILE=scheduling/check.py"; exit 1; }
	@$(BIN)/python -m tests.mutation breadth "$(FILE)" $(TESTS)

sbom: $(VENV)/installed-dev
	@$(BIN)/python -m portal.ops.sbom

lint: $(VENV)/installed-dev
	@$(BIN)/python -m tests.run lint

bench: $(VENV)/installed-dev
	@$(BIN)/python -m tests.bench

bench-policies: $(VENV)/installed-dev
	@test -n "$(DATA)" || { echo "Say where the workloads are: make bench-policies DATA=FOLDER"; exit 1; }
	@$(BIN)/python -m tests.bench.policies --data "$(DATA)"

bench-live: $(VENV)/installed-dev
	@$(BIN)/python -m tests.bench.live

bench-training: $(VENV)/installed-dev
	@$(BIN)/python -m tests.bench.learning $(OPTIONS)

$(VENV)/bin/python:
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { $(TOO_OLD); exit 1; }
	@echo "Making a virtual environment in $(VENV)"
	@new=$$(test -e $(VENV) || echo yes); $(PYTHON) -m venv $(VENV) || { test -z "$$new" || rm -rf $(VENV); echo "The virtual environment $(VENV) could not be made; the reason is above."; echo "  If Python's venv module is missing, Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }

$(VENV)/installed: requirements-docs.lock | $(VENV)/bin/python
	@echo "Installing the portal's packages into $(VENV); pip's output is in $(VENV)/install.log"
	@$(BIN)/python -m runners.environments.installing $(VENV)/install.log requirements-docs.lock
	@touch $@

$(VENV)/installed-dev: requirements-dev.lock | $(VENV)/bin/python
	@echo "Installing the portal's and the tests' packages into $(VENV); pip's output is in $(VENV)/install.log"
	@$(BIN)/python -m runners.environments.installing $(VENV)/install.log requirements-dev.lock
	@touch $(VENV)/installed $@

lock: $(VENV)/installed
	@$(BIN)/python -m portal.ops.locks $(if $(UPGRADE),--upgrade)

diagrams: $(VENV)/installed
	@$(BIN)/python docs/diagrams/draw.py

clean:
	rm -rf $(VENV) docs/_build .mypy_cache .ruff_cache .hypothesis staticfiles
