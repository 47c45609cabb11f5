# Everything a person types. `make run` and `make test` work on a fresh machine with Python 3.11 or newer.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run test lint bench constraints clean
MAKEFLAGS += --no-print-directory

python := .venv/bin/python
# The quick ones first, the ones on the real engine last; what is missing is left out.
test_order := $(wildcard tests/unit tests/integration tests/browser tests/engine)

help:
	@echo "make run     set everything up and serve the deck on http://127.0.0.1:8700"
	@echo "make test    set everything up and run every check and test"
	@echo "make lint    ruff and mypy alone"
	@echo "make bench   print the benchmark tables"
	@echo "make clean   remove the environment and the caches (the data directory stays)"

# `exec`: signals reach the deck itself, so that Ctrl-C and a TERM to make stop it in order.
run:
	@scripts/setup.sh run
	@exec .venv/bin/tierdeck up

test:
	@scripts/setup.sh test
	@scripts/check.sh $(test_order)

lint:
	@scripts/setup.sh test
	@scripts/check.sh

bench:
	@scripts/setup.sh test
	@exec $(python) -m benchmarks

# Pin what is installed in .venv now, after a change of pyproject.toml.
constraints:
	@scripts/pin.sh

clean:
	rm -rf .venv .setup.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis test-results *.egg-info
	find app engine tests migrations scripts benchmarks -name __pycache__ -prune -exec rm -rf {} +
