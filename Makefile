# Two commands for everybody: `make demo` and `make test`. Both make their own virtual environment in .venv first and are
# quick the second time. A fresh machine needs Python >= 3.11 (with venv) and make, nothing else.

.POSIX:
.SUFFIXES:
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
# -qq: a warning about a mirror is not worth a screen; errors are still shown.
PIP := $(RUN) pip --disable-pip-version-check -qq
# Beside the default rules: async generators only as context managers, no endless loop without a checkpoint.
ASYNC_RULES := ASYNC,ASYNC900,ASYNC913
# 109: `timeout` is part of the public interface. 114: only helps 113 to know functions that nurseries start.
# 910 to 912 (a checkpoint on every path of every function): that is a promise of public functions, and tests assert it.
ASYNC_NOT := ASYNC109,ASYNC114,ASYNC910,ASYNC911,ASYNC912
# These measure how soon processes end, which nothing else may run beside; the rest is run two files at a time.
ALONE := tests/bench tests/crash tests/supervisor tests/workers
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# The first interpreter that is new enough and can make virtual environments. Override: make PYTHON=/path/to/python test
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c '$(FITS)' >/dev/null 2>&1 && { command -v "$$p"; break; }; done)

.PHONY: help demo test lint types layers tests gate changelog format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.ztrio ## run the main job: real tools, a real server and client, real kills
	@$(BIN)/ztrio demo

test: $(VENV)/.ztrio-dev ## everything a change must pass: lint, types and layers at once, then gate and tests
	@$(MAKE) -s -j 3 lint types layers
	@$(MAKE) -s gate tests

lint: $(VENV)/.ztrio-dev ## ruff, its formatter, and flake8-async
	@$(RUN) ruff check --quiet .
	@$(RUN) ruff format --quiet --check . || { echo "not formatted; run: make format"; exit 1; }
	@find ztrio adapters benchmarks examples -name '*.py' -exec $(BIN)/flake8-async --enable=$(ASYNC_RULES) --disable=$(ASYNC_NOT) {} +
	@echo "lint    passed"

types: $(VENV)/.ztrio-dev ## mypy --strict
	@$(RUN) mypy --no-error-summary
	@echo "types   passed"

layers: $(VENV)/.ztrio-dev ## who may import whom
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }
	@echo "layers  passed"

tests: $(VENV)/.ztrio-dev ## the test suite with coverage (ARGS="tests/x -k y" runs a part, without)
ifdef ARGS
	@$(RUN) pytest -q $(ARGS)
else
	@$(RUN) coverage erase
	@$(RUN) coverage run -m pytest -q -n 2 --dist loadfile $(ALONE:%=--ignore=%)
	@$(RUN) coverage run -m pytest -q $(ALONE)
	@$(RUN) coverage combine --quiet
	@$(RUN) coverage report
endif

gate: $(VENV)/.ztrio-dev ## a brief benchmark: nothing is left running, nobody hangs, ratios hold
	@out=$$($(BIN)/python benchmarks/check.py --quiet 2>&1) || { echo "$$out"; exit 1; }
	@echo "gate    passed"

format: $(VENV)/.ztrio-dev ## apply the formatter and ruff's safe fixes
	@$(RUN) ruff check --quiet --fix-only .
	@$(RUN) ruff format .

changelog: $(VENV)/.ztrio-dev ## what the next release would say
	@$(RUN) towncrier build --draft --version next 2>/dev/null

clean: ## remove the environment, caches and build products
	@rm -rf $(VENV) .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache \
		htmlcov build dist
	@find ztrio adapters benchmarks tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The stamps are written last, so an interrupted installation is taken up again.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "ztrio needs Python >= 3.11 with the venv module, and none was found on PATH."; \
		echo "Install one (Debian, Ubuntu: python3 and python3-venv), or name it: make PYTHON=/path/to/python3 test"; exit 1; }
	@"$(PYTHON)" -c '$(FITS)' 2>/dev/null || { echo "$(PYTHON) is not Python >= 3.11 with the venv module;" \
		"name another: make PYTHON=/path/to/python3 test"; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv --clear $(VENV)

$(VENV)/.ztrio: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.ztrio-dev: pyproject.toml | $(BIN)/python
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.ztrio $@
