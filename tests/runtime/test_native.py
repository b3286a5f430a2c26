"""The runtime without Python: C++ tests (plain and under sanitizers), the libraries' surface, and the host examples."""

import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

BuildNative = Callable[..., Path]


def run(*command: object) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_cpp(build_native: BuildNative, build_toy: Callable[..., Path]) -> None:
    """Built with -Wall -Wextra -Werror; counts heap allocations in steady state, and lets each fail in turn."""
    assert run(build_native("runtime_tests") / "runtime_tests", build_toy()) == "all passed, allocations counted\n"


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_cpp_under_sanitizers(build_native: BuildNative, build_toy: Callable[..., Path], sanitize: str) -> None:
    assert run(build_native("runtime_tests", sanitize) / "runtime_tests", build_toy()) == "all passed\n"


@pytest.mark.parametrize(
    ("name", "folder", "headers"),
    [("runtime", "", ["include/dhlo/runtime.h"]), ("serve", "serve", ["serve/include/dhlo/serve.h", "serve/include/dhlo/store.h"])],
)
def test_shared_libraries_export_and_need_little(build_native: BuildNative, name: str, folder: str, headers: list[str]) -> None:
    library = build_native(f"dhlo_{name}_shared") / folder / f"libdhlo_{name}.so"
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    names = {symbol.partition("@@")[0] for symbol in symbols if "@@" in symbol}
    assert {symbol for symbol in symbols if "@@" not in symbol} == {"DHLO_1.0"}  # the version itself
    text = "".join((Path(__file__).parents[2] / "runtime" / header).read_text() for header in headers)
    header = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    assert names == set(re.findall(r"DHLO_API[^;]*?\b(dhlo_\w+)\(", header))
    assert f"Library soname: [libdhlo_{name}.so.1]" in run("readelf", "-d", library)
    needed = {line.split("[")[1].split(".so")[0] for line in run("readelf", "-d", library).splitlines() if "NEEDED" in line}
    assert ("libdhlo_runtime" in needed) == (name == "serve")
    assert needed - {"libdhlo_runtime"} <= {"libstdc++", "libgcc_s", "libc", "libm", "libdl", "libpthread", "ld-linux-x86-64"}
    runs_with_older_systems(library)


def runs_with_older_systems(library: Path) -> None:
    """What Debian 12 builds needs glibc 2.34 and the C++ library of GCC 11 at most, as auditwheel's manylinux_2_34 allows."""
    if tuple(map(int, platform.libc_ver()[1].split("."))) > (2, 36):
        return  # built with a later C library
    symbols = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
    for name, latest in (("GLIBC", (2, 34)), ("GLIBCXX", (3, 4, 29)), ("CXXABI", (1, 3, 13))):
        versions = {tuple(map(int, v.split("."))) for v in re.findall(rf"\({name}_([\d.]+)\)", symbols)}
        assert versions and max(versions) <= latest, (library, name, max(versions))


def test_c_host(build_native: BuildNative, build_toy: Callable[..., Path]) -> None:
    host = build_native("host_c") / "host_c"
    assert run(host, build_toy(add_one=True), 3) == "1\n1\n1\n"
    bad = subprocess.run([host, "/nonexistent.so", "3"], capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert "error: model file '/nonexistent.so': cannot be opened" in bad.stderr


def test_cpp_host(build_native: BuildNative, build_toy: Callable[..., Path], tmp_path: Path) -> None:
    host = build_native("host_cpp") / "host_cpp"
    libraries = run("ldd", host)
    assert not any(word in libraries for word in ("python", "torch", "LLVM"))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, 4), dtype=np.float32) for rows in (1, 7, 500)]
    shapes = []
    for i, x in enumerate(arrays):
        x.tofile(tmp_path / f"x{i}.bin")
        np.array(0).tofile(tmp_path / "mode.bin")
        shapes.append(f"{x.shape[0]}x4={tmp_path}/x{i}.bin,scalar={tmp_path}/mode.bin")
    output = run(host, build_toy(), "--out", tmp_path, *shapes)
    assert "output 0 y float32 [500, 4]" in output
    for i, x in enumerate(arrays):
        y = np.fromfile(tmp_path / f"{i}_0.bin", dtype=np.float32).reshape(-1, 4)
        assert np.array_equal(y, 2 * x + np.array([1, 2, 3, 4], dtype=np.float32))
        assert np.array_equal(np.fromfile(tmp_path / f"{i}_1.bin", dtype=np.float32), x[x > 0])
    bad = subprocess.run([host, build_toy(), "3x5,scalar"], capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert "expected 4, got 5" in bad.stderr
