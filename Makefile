# make setup | demo | test | test-emulated | sanitize | test-models | check | format | docs | bench | conformance | soak
PYTHON := .venv/bin/python
NATIVE_TESTS := tests/device/ops tests/device/attention tests/device/layers

.PHONY: setup demo test test-emulated sanitize test-models check format docs bench conformance soak

setup:
	@scripts/setup

demo: setup
	.venv/bin/octavo pull smollm2-135m
	.venv/bin/octavo generate smollm2-135m --chat --prompt-file examples/prompts.txt --max-tokens 48 --temperature 0

test: setup
	$(PYTHON) -m pytest

# The kernels for AVX-512 and AMX on any x86-64 CPU with AVX2, over SIMDe (Debian: libsimde-dev): minutes to build.
test-emulated: setup
	@scripts/native_build emulated -DOCTAVO_EMULATE_AVX512=ON
	$(PYTHON) -m pytest $(NATIVE_TESTS) --native-library $$(ls build/emulated/_native*.so)

# The same tests with every memory access and conversion of the native module checked; kernels that this CPU lacks are
# emulated where there is SIMDe. Python and torch are not instrumented, so leaks are not looked for.
sanitize: LACKS_AMX := $(if $(shell grep -m 1 amx_int8 /proc/cpuinfo),,yes)
sanitize: setup
	@scripts/native_build sanitize -DOCTAVO_SANITIZE=ON \
	    -DOCTAVO_EMULATE_AVX512=$(if $(and $(LACKS_AMX),$(wildcard /usr/include/simde)),ON,OFF)
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    $(PYTHON) -m pytest --capture=no $(NATIVE_TESTS) --native-library $$(ls build/sanitize/_native*.so)

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

# docs/options.md follows from the fields in octavo/config, docs/features.md from a table of the tests; tests compare them.
docs: setup
	$(PYTHON) scripts/options_table.py
	$(PYTHON) scripts/feature_pairs.py

bench: setup
	$(PYTHON) benchmarks/control_plane.py

# Programs that nobody here wrote (vllm bench serve, lm-eval, Prometheus), against a server: one of its own, or that at
# URL=http://127.0.0.1:8000. Their environments are made on first use, below WORK_DIR (default: ~/.cache/octavo/peers).
conformance: setup
	$(PYTHON) -m scripts.conformance $(if $(URL),--url $(URL)) $(if $(WORK_DIR),--work-dir $(WORK_DIR))

# 20 minutes of mixed load with aborts: memory, descriptors and free blocks stay flat (make soak MINUTES=2: shorter).
MINUTES := 20
soak: setup
	$(PYTHON) benchmarks/soak.py --minutes $(MINUTES)
