"""What a release promised: its hosts run with today's library, its names are there, its files load or are refused by version."""

import os
import platform
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dhlo import _runtime
from dhlo.codegen.kernel_ir import abi
from dhlo.container import FILE_FORMAT, TRAILER_BYTES
from tests.runtime.abi.freeze import FROZEN, HERE, compile_model

EXPECTED = """\
input x float32 [rows, 4]
output add float32 [rows, 4]
symbol rows 0 to 16
state calls float32 rank 0
run 0 2 4 6
run 1 3 5 7 9 11 13 15
calls 3, runs 3, failed 3
"""


@pytest.fixture(scope="module")
def library(build_native: Callable[..., Path]) -> Path:
    return build_native("dhlo_runtime_shared") / "libdhlo_runtime.so"


@pytest.fixture(scope="module")
def host(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], subprocess.CompletedProcess[str]]:
    """Runs the release's host on a model file."""
    program = tmp_path_factory.mktemp("host") / "host"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_POSIX_C_SOURCE=200809L", f"-I{FROZEN}"]
    subprocess.run(["cc", *flags, HERE / "host.c", library, "-pthread", "-o", program], check=True)

    def run(model: Path) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"LD_LIBRARY_PATH": str(library.parent)}
        return subprocess.run([program, model], capture_output=True, text=True, check=False, env=environment, timeout=60)

    return run


@pytest.mark.slow
def test_names_of_the_release(library: Path) -> None:
    header = re.sub(r"/\*.*?\*/", "", (FROZEN / "dhlo/runtime.h").read_text(), flags=re.S)
    promised = set(re.findall(r"DHLO_API[^;]*?\b(dhlo_\w+)\(", header))
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    assert promised
    assert {f"{name}@@DHLO_1.0" for name in promised} <= {line.split()[-1] for line in listed.splitlines()}


def test_host_of_the_release(host: Callable[[Path], subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """With a model of today's compiler."""
    compile_model(tmp_path / "model.so")
    result = host(tmp_path / "model.so")
    assert result.stdout + result.stderr == EXPECTED
    assert result.returncode == 0


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not all(_runtime.cpu_supports(f) for f in ("avx2", "fma")), reason="for x86-64-v3"
)
def test_model_file_of_the_release(host: Callable[[Path], subprocess.CompletedProcess[str]]) -> None:
    path = FROZEN / "model.dhlo"
    file_format, version = struct.unpack_from("<II", path.read_bytes()[-TRAILER_BYTES:], 8)
    result = host(path)
    if (file_format, version) == (FILE_FORMAT, abi.ABI_VERSION):
        assert result.stdout + result.stderr == EXPECTED
    else:
        assert result.returncode == 1
        assert result.stdout.startswith("version: ")
        assert "compile" in result.stdout
