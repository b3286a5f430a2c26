"""Builds what the runtime's tests run: a hand-written toy model and, through CMake, the C++ executables."""

import fcntl
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dhlo.model_file import write_model_file

ROOT = Path(__file__).resolve().parents[2]
TOY_METADATA = '{"toy": true}'
TOY_CONSTANTS = struct.pack("<4fq", 1, 2, 3, 4, 0)

BuildToy = Callable[..., Path]
BuildNative = Callable[..., Path]


@pytest.fixture(scope="session")
def build_elf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles toy_model.c with the given preprocessor definitions to a shared object without trailer."""
    directory = tmp_path_factory.mktemp("toys")
    built: dict[tuple[str, ...], Path] = {}

    def build(*defines: str) -> Path:
        if defines not in built:
            path = directory / f"toy{len(built)}.elf"
            source = ROOT / "tests/runtime/toy_model.c"
            flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'runtime/include'}"]
            subprocess.run(["cc", *flags, *(f"-D{d}" for d in defines), str(source), "-o", str(path)], check=True)
            built[defines] = path
        return built[defines]

    return build


@pytest.fixture(scope="session")
def build_toy(build_elf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> BuildToy:
    """Makes a toy model file; `add_one=True` selects the small variant."""
    directory = tmp_path_factory.mktemp("models")
    count = 0

    def build(*defines: str, add_one: bool = False) -> Path:
        nonlocal count
        count += 1
        path = directory / f"toy{count}.so"
        elf = build_elf(*defines, *(["TOY_ADD_ONE"] if add_one else []))
        features = next((d.split("=")[1].strip('"') for d in defines if d.startswith("TOY_CPU_FEATURES=")), "")
        write_model_file(path, elf.read_bytes(), [] if add_one else [TOY_CONSTANTS], TOY_METADATA, features)
        return path

    return build


@pytest.fixture(scope="session")
def build_native() -> BuildNative:
    """Builds a CMake target with tests and examples on, optionally with sanitizers; returns the build's runtime folder.

    The build folder is kept between runs, so that only changes are compiled.
    """

    def build(target: str, sanitize: str = "") -> Path:
        local = Path(sys.executable).parent / "cmake"
        cmake = str(local) if local.exists() else shutil.which("cmake")
        assert cmake is not None, "tests of the C++ runtime need cmake"
        folder = ROOT / "build" / f"tests-{sanitize.split(',')[0] or 'plain'}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            options = ["-DDHLO_BUILD_PYTHON=OFF", "-DDHLO_BUILD_TESTS=ON", "-DDHLO_BUILD_EXAMPLES=ON"]
            configure = [cmake, "-S", str(ROOT), "-B", str(folder), *options, f"-DDHLO_SANITIZE={sanitize}"]
            for command in (configure, [cmake, "--build", str(folder), "--target", target, "-j", "2"]):
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                assert result.returncode == 0, result.stdout + result.stderr
        return folder / "runtime"

    return build
