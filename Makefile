# Every target makes the environment it needs; nothing has to be installed beforehand but
# Python 3.11+, a C compiler and make.

PYTHON ?= python3
EXTRAS ?= dev
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup
INSTALL ?= $(BIN)/pip install --quiet
C := src/tilewright/runtime/native
NATIVE := cmake/CMakeLists.txt $(wildcard $(C)/*.[ch] $(C)/accel/*.[ch])

# Tests start hundreds of processes: without byte code each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test lint unit browser hosts test-gpu assemble-gpu bench-gpu docs wheel fuzz bench
.PHONY: results conformance sanitize test-accel peers clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 16

setup: $(SETUP)  ## make .venv with the package installed in place

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(SETUP): pyproject.toml $(NATIVE) | $(BIN)/python
	$(INSTALL) --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(VENV)/.demo  ## draw a line of text, and let a trained model that was just compiled read it
	$(BIN)/python -m tilewright demo --report demo.html

$(VENV)/.demo: $(SETUP)
	$(INSTALL) --editable '.[demo]'
	@touch $@

# Nothing that may import peers runs while they are installed.
PEERS := $(filter peers,$(MAKECMDGOALS))

# In an order that keeps jobs busy: the tests are the longest.
test: lint sanitize unit hosts browser  ## lint, then all tests

lint: $(SETUP) $(PEERS)  ## ruff, clang-format, mypy, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(wildcard $(C)/*.[ch] $(C)/accel/*.[ch] tests/native/*.c bench/native/*.c)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Every worker would rewrite the assertions of all files; what fails runs again with them, and tells
# the values that it compared.
unit: $(SETUP) $(PEERS)  ## the tests, without those of pages
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore tests/browser --assert=plain --durations=15 \
		|| { $(BIN)/pytest --last-failed --last-failed-no-failures=none; false; }

browser: $(SETUP) $(PEERS) $(filter docs,$(MAKECMDGOALS))  ## pages in a browser: reports, and the site if it is there
	$(BIN)/pytest tests/browser

hosts: $(SETUP) $(PEERS)  ## some tests on this machine pretended to lack what it has
	$(BIN)/python tests/hosts.py

# The version of ONNX Runtime is the one whose interface tilewright.ort has (INTERFACE there).
peers: $(SETUP)  ## linkers for WebAssembly and Arm, libraries to compare with, NVIDIA's assembler; tests skip what is not there
	$(INSTALL) ziglang onnxruntime==1.31.1 torch==2.13.0 \
		|| echo "no peers: tests against them will be skipped"
	$(INSTALL) nvidia-cuda-nvcc-cu12==12.9.86 \
		|| echo "no ptxas: kernels for GPUs will not be assembled"

docs: $(VENV)/.docs $(PEERS)  ## the documentation as a site, into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

$(VENV)/.docs: $(SETUP)
	$(INSTALL) --editable '.[docs]'
	@touch $@

wheel: $(SETUP)  ## one abi3 manylinux wheel, into dist/, tried in an environment of its own
	$(BIN)/python tools/wheel.py

BENCHES := schedule runtime transcendental gemm gpu conv zoo compile ablation

bench: $(VENV)/.bench  ## the figures of bench/RESULTS.md, against peers; wants an idle machine; RECORD=1 keeps them
	@short=; for name in $(BENCHES); do \
	$(BIN)/python bench/$$name.py $(if $(RECORD),--record) || short="$$short $$name"; done; \
	test -z "$$short" || { echo "short or failed:$$short"; exit 1; }

results: $(SETUP)  ## bench/RESULTS.md and the chart of README.md, from bench/RESULTS.json
	$(BIN)/python tools/results.py

$(VENV)/.bench: $(SETUP)
	$(INSTALL) --editable '.[bench]'
	@touch $@

conformance: $(SETUP)  ## all of ONNX's own backend tests, and whether the operator table says the same
	$(BIN)/python bench/conformance.py --table

# Where nothing can be installed: needs pytest, numpy, ml_dtypes, llvmlite and cuda-bindings, and the
# C runtime built beforehand (make setup).
test-gpu:  ## the tests that need an NVIDIA GPU, with the system's Python
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu tests/targets

assemble-gpu: $(VENV)/.bench  ## every kernel of the models for GPUs by NVIDIA's assembler; needs no GPU
	$(INSTALL) --editable '.[ptxas]'
	$(BIN)/python bench/gpu_assemble.py

bench-gpu:  ## GEMM, attention, convolutions and whole models on an NVIDIA GPU, with the system's Python and torch
	@short=; for each in gpu_gemm gpu_memory gpu_attention gpu_conv gpu_models \
	"gpu_models --precision f16" "gpu_models --precision f16 --batch 32" "gpu_check --jobs 4" gpu_compile; do \
	set -- $$each; name=$$1; shift; \
	PYTHONPATH=src $(PYTHON) bench/$$name.py "$$@" || short="$$short $$name"; done; \
	test -z "$$short" || { echo "short or failed:$$short"; exit 1; }

fuzz: $(VENV)/.bench assemble-gpu  ## random programs and schedules, random models and layers against ONNX Runtime, by default and random plans, damaged files, AVX2 code under qemu, all combinations of parameters, all kernels for GPUs assembled
	$(BIN)/python tests/fuzz/run.py --programs 5000 --jobs 2
	$(BIN)/python tests/fuzz/onnx_graphs.py --graphs 1000 --jobs 2
	$(BIN)/python tests/fuzz/onnx_graphs.py --kind large --graphs 500 --jobs 2
	$(BIN)/python tests/fuzz/onnx_graphs.py --kind large --how planned --graphs 500 --jobs 2
	$(BIN)/python tests/fuzz/onnx_graphs.py --kind varied --graphs 1000 --jobs 2
	$(BIN)/python tests/fuzz/onnx_files.py --files 10000 --jobs 2
	$(BIN)/pytest -m fuzz --ignore tests/browser

test-accel: $(VENV)/.accel  ## the accelerator: simulators, RTL by Verilator, random streams
	$(BIN)/pytest -n 2 tests/unit/accel $(wildcard tests/props/test_accel_*.py tests/diff/test_accel_*.py) \
		tests/targets/test_rtl.py
	$(BIN)/python tests/fuzz/accel.py --streams 400 --operators 80 --jobs 2
	$(BIN)/python tests/fuzz/accel.py --streams 200 --operators 20 --faults 200 --rtl --only "1x4x4 bus 64"

$(VENV)/.accel: $(SETUP)
	$(INSTALL) --editable '.[accel]'
	@touch $@

# The C runtime without Python, under the sanitizers. Threads after a fork are what one test is about.
RUNTIME := $(filter-out $(wildcard $(C)/python_*),$(wildcard $(C)/*.c))
SANITIZED := build/sanitize/thread build/sanitize/address,undefined

sanitize: $(SANITIZED)  ## the C runtime's tests under the thread, address and undefined sanitizers
	TSAN_OPTIONS=die_after_fork=0 build/sanitize/thread
	build/sanitize/address,undefined

$(SANITIZED): build/sanitize/%: tests/native/runtime_test.c $(NATIVE)
	@mkdir -p $(@D)
	$(CC) -std=c11 -O1 -g -Wall -Wextra -Werror -fsanitize=$* -fno-sanitize-recover=all -pthread \
		-I $(C) $< $(RUNTIME) -o $@ -ldl

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
