# make demo    from nothing to two answers with their speeds
# make test    everything that CI runs
# make check   lint and types only
# make kernels  compile the device kernels to the PTX that the package ships; needs nvcc (KERNELS=--check compares only)
# make sanitize   the native core's tests under AddressSanitizer and UBSan, in a virtual environment of their own

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := .demo
PROMPT := Summarize in three sentences: The harbour of the old town was built in 1421 by order of the council. \
The harbour of the old town was enlarged in 1530 by order of the council, because the ships of the merchants had become larger. \
The harbour of the old town is used by fishermen today.

.PHONY: demo test check lint types kernels sanitize clean

demo: $(VENV)/.demo-installed
	@$(BIN)/python scripts/fetch_demo.py $(DEMO) > /dev/null
	@test -f $(DEMO)/smol/manifest.json || $(BIN)/sssd export $(DEMO)/SmolLM2-135M-Instruct.Q4_1.gguf --out $(DEMO)/smol
	@echo "--- without speculation"
	@$(BIN)/sssd generate --engine $(DEMO)/smol --chat --max-tokens 96 --no-spec --stats "$(PROMPT)"
	@echo "--- with speculation (the same answer, faster)"
	@$(BIN)/sssd generate --engine $(DEMO)/smol --chat --max-tokens 96 --stats "$(PROMPT)"

test: check $(DEMO)/SmolLM2-135M-Instruct.Q4_1.gguf
	$(BIN)/python -m pytest

check: $(VENV)/.dev-installed lint types

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-installed
	$(BIN)/mypy

kernels:
	$(PYTHON) scripts/make_kernels.py $(KERNELS)

sanitize:
	$(PYTHON) -m venv build/sanitize-venv
	build/sanitize-venv/bin/python -m pip install --quiet --disable-pip-version-check \
	    -e '.[cpu,datastore,export]' pytest pytest-timeout hypothesis \
	    -C build-dir=build/sanitize -C cmake.define.SSSD_SANITIZE=ON -C cmake.build-type=RelWithDebInfo
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0 build/sanitize-venv/bin/python -m pytest tests/unit/test_core_*.py

$(DEMO)/SmolLM2-135M-Instruct.Q4_1.gguf: $(VENV)/.dev-installed
	$(BIN)/python scripts/fetch_demo.py $(DEMO)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-installed: $(BIN)/python pyproject.toml CMakeLists.txt $(wildcard csrc/*)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cpu,export]'
	@touch $@

$(VENV)/.dev-installed: $(BIN)/python pyproject.toml CMakeLists.txt $(wildcard csrc/*)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.demo-installed

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
