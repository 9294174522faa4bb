# The targets that people and CI use; `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install judges demo interpreters test test-all fuzz gpu soak lint bench docs dist clean

PY := .venv/bin/python
SPINS := $(addprefix plugins/workloads/vllm/tests/,test_pd.py test_pd_jobs.py test_serve.py)
BESIDE := $(addprefix --ignore=,$(SPINS))
MINUTES := .pytest_cache/minutes.jsonl
PYTEST := $(PY) -m pytest -p tests.minutes --minutes $(MINUTES)
# A process that ends in a test fails the run. pytest-xdist would start another, and wait for ever for the tests of the first.
SPREAD = -n $(PROCESSES) --max-worker-restart 0 --no-loadscope-reorder
BUDGET ?=
PROCESSES ?= 4
FUZZ ?= 2
export OMP_NUM_THREADS ?= 1
export PYTHON
# The command that a remedy repeats.
export ROLEMESH_COMMAND := make $(or $(MAKECMDGOALS),install)
# A test run starts Python some thousand times: it must not compile our modules each time, whatever the shell asks for.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## make .venv with everything pinned; does nothing when nothing changed
	@requirements/install.sh everything

judges: install ## TRL and what it imports, with which `make soak` compares the trainers; apart from everything else
	@$(PY) requirements/judges.py

demo: ## GRPO on a real model: SmolLM2-135M learns to reverse words, in some minutes on two cores
	@requirements/install.sh demo
	$(PY) examples/grpo/prepare.py
	.venv/bin/rolemesh run examples/grpo/job.yaml

# In more processes than a small machine has cores, since most of the time is waiting. Engines that hand a KV cache over
# spin while they wait, so nothing runs beside them. At the end it says where the minutes went; with BUDGET=MINUTES it fails if they were more.
define suite
rm -f $(MINUTES); failed=0; \
$(PYTEST) -m '$(1)' $(SPREAD) $(BESIDE) || failed=1; \
$(PYTEST) -m '$(1)' $(SPINS) || failed=1; \
$(PY) -m tests.minutes $(MINUTES) $(if $(BUDGET),--budget $(BUDGET)) || failed=1; \
exit $$failed
endef

test: install ## each behaviour once: 10 to 20 minutes on two cores
	$(call suite,not more and not soak)

test-all: install ## what repeats a behaviour at length, besides `make test`: 15 to 30 minutes
	$(call suite,more and not soak)

# Finds go to tests/fuzz/corpus, from which `make test` reads them.
fuzz: install ## changed inputs for each decoder of bytes from outside: 2 minutes, or FUZZ=MINUTES
	$(PY) -m tests.fuzz --minutes $(FUZZ)

gpu: install ## the tests that need an NVIDIA GPU
	$(PY) -m pytest -m gpu tests/gpu -n $(PROCESSES)

# What looks at a job for many minutes measures it, so nothing runs beside it either.
# TRL changes transformers when it is imported, so what is compared with it runs in a process of its own.
soak: judges ## what both leave out: more seeds, sizes and engines, and jobs of many minutes; two hours
	rm -f $(MINUTES); failed=0; \
	$(PYTEST) -m soak tests/soak || failed=1; \
	$(PYTEST) -m soak tests/judges || failed=1; \
	$(PYTEST) -m soak $(SPREAD) $(BESIDE) --ignore=tests/soak --ignore=tests/judges || failed=1; \
	$(PYTEST) -m soak $(SPINS) || failed=1; \
	$(PYTEST) -m hypothesis --hypothesis-profile=drawn $(SPREAD) $(BESIDE) || failed=1; \
	$(PY) -m tests.minutes $(MINUTES) $(if $(BUDGET),--budget $(BUDGET)) || failed=1; \
	exit $$failed

interpreters: ## the quick tests and a step of GRPO with every Python from 3.11 on that is here, in environments of their own
	@requirements/interpreters.sh

lint: install ## ruff, mypy --strict on kernel, engine and simulation, which room may import which, how large they may be, texts and lists
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) -m tests.structure
	$(PY) -m tests.house
	$(PY) -m tests.texts
	$(PY) -m tests.surface --check
	$(PY) -m tests.language

bench: install ## the benchmarks; their table on the console, JSON in benchmarks/results/
	$(PY) -m benchmarks

docs: install ## check the documents against the code, and build the site in site/
	$(PY) -m tests.texts
	$(PY) -m tests.surface --check
	$(PY) -m pytest -m 'not soak' tests/test_docs.py tests/test_documents.py tests/test_tutorial.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

dist: install ## wheel and sdist of the kernel and of every plugin, in dist/
	@$(PY) requirements/dist.py dist

clean: ## remove .venv, caches and build outputs; keeps runs/ and the prepared model in .cache/
	rm -rf .venv dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find core plugins examples tests -name __pycache__ -prune -exec rm -rf {} +
	find core plugins examples \( -name '*.egg-info' -o -path 'examples/*/build' \) -prune -exec rm -rf {} +
