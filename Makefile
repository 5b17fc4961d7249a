# Commands for people. `make` alone lists them. Needs Python >= 3.12 somewhere (launch/find_python.sh)
# and a package index; everything else is installed into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Without bytecode every start re-compiles torch, ray and vllm: 80 s instead of 10.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
LOCKS := configs/lock/cpu.txt configs/lock/overrides-cpu.txt
SETUP := $(VENV)/.setup-done
RECIPE ?= cpu_demo
ARGS ?=

.PHONY: help setup doctor prepare policy demo test test-slow bench lint format lock clean clean-all

help: ## this list
	@echo "usage: make TARGET"; echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14 | sed 's/^/  /'
	@echo; echo "  First time: make demo   (ends by itself in about half an hour on two cores)"

setup: $(SETUP) ## install everything into .venv (again only when the locks change)

$(SETUP): $(LOCKS) pyproject.toml launch/find_python.sh
	@if [ ! -x $(PY) ] || ! $(PY) -c '' 2>/dev/null; then \
		python=$$(launch/find_python.sh) || exit 3; \
		echo "[setup] $$($$python --version) at $$python"; \
		rm -rf $(VENV); "$$python" -m venv $(VENV); \
	fi
	@if [ ! -x $(UV) ]; then $(PY) -m pip install --quiet uv; fi
	@echo "[setup] installing $$(wc -l < configs/lock/cpu.txt) locked packages (about 7 GB, a minute or two)"
	@$(UV) pip install --quiet --python $(PY) -r configs/lock/cpu.txt --override configs/lock/overrides-cpu.txt --compile-bytecode
	@$(UV) pip install --quiet --python $(PY) --no-deps -e .
	@touch $@

doctor: $(SETUP) ## what this machine can do, what will be used, what to change
	@$(PY) launch/doctor.py

prepare: $(SETUP) ## build environments and tasks from real projects (once; a few minutes)
	@$(PY) launch/prepare.py $(ARGS)

policy: $(SETUP) prepare ## train the demo's small starting policy (once; a few minutes)
	@$(PY) launch/make_policy.py

demo: $(SETUP) ## the whole thing on this machine: set up, prepare, train, picture at the end
	@echo "[demo] 1/4 this machine"; $(PY) launch/doctor.py --no-checks
	@echo "[demo] 2/4 environments and tasks from real projects"; $(PY) launch/prepare.py
	@echo "[demo] 3/4 a small policy that speaks the tool format a little"; $(PY) launch/make_policy.py
	@echo "[demo] 4/4 reinforcement learning"; $(PY) launch/train.py +recipe=$(RECIPE) $(ARGS)

test: $(SETUP) ## all tests but the slow ones
	@launch/test_tools.sh
	@$(PY) launch/prepare.py
	@$(PY) -m pytest -m "not slow" $(ARGS)

test-slow: $(SETUP) ## the slow tests too
	@launch/test_tools.sh
	@$(PY) launch/prepare.py
	@$(PY) launch/make_policy.py
	@$(PY) -m pytest $(ARGS)

bench: $(SETUP) ## sandboxes against podman, crun, bubblewrap, Docker and the paper's way (root; ~10 min; ARGS=--quick)
	@$(PY) benchmarks/sandbox.py $(ARGS)

lint: $(SETUP) ## ruff, pyright, import rules
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/pyright
	@$(VENV)/bin/lint-imports

format: $(SETUP) ## let ruff format and fix
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

lock: $(SETUP) ## compile the lock files again from pyproject.toml
	@launch/compile_locks.sh

clean: ## remove what dead runs left on this machine, and tool caches
	@if [ -x $(PY) ]; then $(PY) launch/cleanup.py; fi
	@rm -rf .pytest_cache .ruff_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

clean-all: clean ## also remove .venv and .cache (environments, tasks, demo policy); runs/ stays
	@rm -rf $(VENV) .cache
