# Every command a contributor needs. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=
# Tests often wait, for a process or for the disk: one more than there are cores keeps these busy.
TESTERS := $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
# The Postgres of the tests makes and drops thousands of databases: in memory, where there is enough of it.
MEMORY := $(shell test -w /dev/shm && test $$(df -k /dev/shm | awk 'END { print $$4 }') -gt 8000000 && echo TMPDIR=/dev/shm)
PYTEST := $(MEMORY) $(BIN)/pytest -q -n $(TESTERS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check soak bench sync docs clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything the other commands need

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "flowfabric needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## start the embedded Postgres, run an agent, kill its worker, print what happens
	FLOWFABRIC_URL= $(BIN)/python examples/agent.py
	$(BIN)/python examples/demo.py

test: $(READY) ## run the tests (ARGS="-k lanes" narrows them)
	$(PYTEST) $(ARGS)

check: $(READY) ## format, lint, types, import contracts, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(PYTEST) $(ARGS)

soak: $(READY) ## the tests at their full counts (up to ninety minutes)
	FLOWFABRIC_SOAK=1 $(PYTEST) $(ARGS)

bench: $(READY) ## the benchmarks: ratios in one run on this machine
	$(BIN)/python -m benchmarks $(ARGS)

sync: $(READY) ## rewrite the sync classes from the async ones
	$(BIN)/python -m tools.sync_classes

docs: $(READY) ## rewrite the generated parts of the docs
	$(BIN)/python -m docs.generate

clean: ## remove everything that the commands created
	rm -rf $(VENV) .flowfabric .mypy_cache .ruff_cache .import_linter_cache .hypothesis
