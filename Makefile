# make test    installs into .venv what the tests need, then runs linters, type checker and tests
# make demo    compiles BERT-base once, runs it at ten shapes beside eager, then from C++
# make clean   removes .venv and everything built
#
# Needs Python 3.11 or newer (PYTHON=...), a C++ compiler and pip; pip brings CMake and Ninja.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(shell find runtime -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.map' -o -name CMakeLists.txt)

.PHONY: install test demo clean

install: $(STAMP)

# torch first and by its exact version, so that nothing else chooses it.
$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE)
	@echo "installing into $(VENV): a few minutes the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip
	$(BIN)/python -m pip install -qq torch==2.13.0
	$(BIN)/python -m pip install -qq --editable '.[test]'
	touch $@

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy -p dhlo
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

demo: $(STAMP)
	$(BIN)/python examples/bert.py --folder build/demo

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis
