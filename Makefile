# Every target makes the environment it needs; nothing has to be installed beforehand but
# Python 3.11+, a C compiler and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup
NATIVE := cmake/CMakeLists.txt $(wildcard src/tilewright/runtime/native/*.[ch])

.PHONY: help setup test lint unit clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 16

setup: $(SETUP)  ## make .venv with the package installed in place

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(SETUP): pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

test: lint unit  ## lint, then all tests

lint: $(SETUP)  ## ruff, mypy, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

unit: $(SETUP)  ## the tests
	$(BIN)/pytest -n 2 --dist worksteal

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
