# Everything is made here: the environment in .venv, the rest in build/.
PYTHON ?= python3
BIN := .venv/bin
ENGINE := build/engine/vllm-0.32.0
MODEL := build/models/tiny
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

.PHONY: help venv engine lint quick test test-engine test-rest soak demo clean
.DELETE_ON_ERROR:

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

venv: .venv/.ready ## The development environment
.venv/.ready: pyproject.toml $(wildcard native/*.[ch] native/CMakeLists.txt)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --group dev --editable .
	@touch $@

engine: $(MODEL)/cfac-model-ready ## A real vLLM (CPU build) and a tiny model: minutes, 4 GB
$(ENGINE)/cfac-engine-ready: examples/vllm/setup_engine.py .venv/.ready
	$(BIN)/python $< --dir $(ENGINE)
	@touch $@
$(MODEL)/cfac-model-ready: examples/vllm/make_model.py $(ENGINE)/cfac-engine-ready
	$(OFFLINE) $(ENGINE)/bin/python $< $(MODEL)
	@touch $@

lint: venv ## Style, types, import directions, module sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/check_tree.py

quick: lint ## Lint, and the tests that need no vLLM
	$(BIN)/pytest -m "not soak and not engine"

test: lint engine ## Lint, and all tests but the soak
	@$(MAKE) --no-print-directory -j2 -k test-engine test-rest

# Side by side: an engine's start seldom uses more than one core.
test-engine:
	$(BIN)/pytest -m "engine and not soak"
test-rest:
	@$(BIN)/pytest -m "not engine and not soak" >build/test-rest.log 2>&1; \
	code=$$?; echo; cat build/test-rest.log; exit $$code

soak: engine ## The long tests (SOAK=tests/engine/...: these), into soak/summary.json
	$(BIN)/pytest -m "soak or hypothesis" --hypothesis-profile=random --summary=soak/summary.json $(SOAK)

demo: engine ## Patch a real vLLM, start it beside the stock one, compare
	$(BIN)/python examples/vllm/demo.py --engine $(ENGINE) --model $(MODEL) $(DEMO)

clean: ## Remove all that was made, .venv and engine included
	rm -rf build dist .venv .hypothesis .import_linter_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
