# Everything a visitor or a maintainer types. Needs only make and Python 3.10 or newer with its venv module; what is
# installed goes into .venv, what is downloaded into models, what is built into _docs. A second call finds it there.

PROMPT ?= Once upon a time
MODEL  ?= models/SmolLM2-135M-Instruct.Q4_1.gguf
PORT   ?= 8888

PY  := $(or $(PYTHON),$(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done))
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# the stand-in for Quarto first, then what the environment brings
IN_ENV := PATH="$(CURDIR)/tools:$(CURDIR)/.venv/bin:$$PATH"

.PHONY: help demo test docs bench lab models clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    a real model answers a prompt (PROMPT=..., MODEL=...)"
	@echo "make test    everything CI runs"
	@echo "make docs    the site, in _docs"
	@echo "make bench   tokens per second, beside llama.cpp on the same file"
	@echo "make lab     JupyterLab on the notebooks (PORT=...)"
	@echo "make models  fetch the small real models into models"
	@echo "make clean   remove what was built (not .venv, not models)"

demo: .venv/.run models/SmolLM2-135M-Instruct.Q4_1.gguf
	@$(BIN)/llamaref-completion -m "$(MODEL)" -p "$(PROMPT)" -n 64 --temp 0

test: .venv/.dev models
	@$(IN_ENV) $(BIN)/python tools/ci.py

docs: .venv/.dev
	@$(IN_ENV) $(BIN)/python tools/ci.py docs

bench: .venv/.dev $(MODEL)
	@$(BIN)/llamaref-bench -m "$(MODEL)" --peer $(ARGS)

lab: .venv/.dev
	@$(IN_ENV) $(BIN)/python -m jupyterlab --port $(PORT) --notebook-dir nbs $(ARGS)

models: models/SmolLM2-135M-Instruct.Q4_1.gguf models/gemma-3-270m-q4_k_m.gguf

clean:
	rm -rf _docs _proc build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -exec rm -rf {} +
	rm -f .venv/.run .venv/.dev

models/SmolLM2-135M-Instruct.Q4_1.gguf: | .venv/.python
	@$(BIN)/python tools/fetch_models.py smollm2

models/gemma-3-270m-q4_k_m.gguf: | .venv/.python
	@$(BIN)/python tools/fetch_models.py gemma3

.venv/.run: settings.ini setup.py | .venv/.python
	@echo "installing llamaref and what it needs into .venv"
	@$(PIP) -e .
	@touch $@

.venv/.dev: settings.ini setup.py | .venv/.python
	@echo "installing llamaref with the tools for its notebooks, tests and docs into .venv"
	@$(PIP) -e '.[dev,oracle]'
	@touch $@ .venv/.run

.venv/.python:
	@test -n "$(PY)" || { echo "llamaref needs Python 3.10 or newer; found: $$(python3 --version 2>&1 || true). Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PY) is $$($(PY) --version 2>&1); llamaref needs Python 3.10 or newer" >&2; exit 1; }
	@test -x .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1 || $(PY) -m venv --clear .venv || \
		{ rm -rf .venv; echo "$(PY) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@
