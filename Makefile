# make setup | demo | test | test-models | check | format | docs | bench | conformance
PYTHON := .venv/bin/python

.PHONY: setup demo test test-models check format docs bench conformance

setup:
	@scripts/setup

demo: setup
	.venv/bin/octavo pull smollm2-135m
	.venv/bin/octavo generate smollm2-135m --chat --prompt-file examples/prompts.txt --max-tokens 48 --temperature 0

test: setup
	$(PYTHON) -m pytest

# The big real models: a download of about 2 GB, once, then minutes of comparison with Transformers.
test-models: setup
	$(PYTHON) scripts/test_models.py
	$(PYTHON) -m pytest -m models

check: setup
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m ruff check
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	$(PYTHON) scripts/sizes.py

format: setup
	$(PYTHON) -m ruff format
	$(PYTHON) -m ruff check --fix

# docs/options.md follows from the fields in octavo/config; a test compares the two.
docs: setup
	$(PYTHON) scripts/options_table.py

bench: setup
	$(PYTHON) benchmarks/control_plane.py

# Programs that nobody here wrote, against a running server: make conformance URL=http://127.0.0.1:8000
conformance: setup
	$(PYTHON) scripts/prometheus_check.py $(URL)
