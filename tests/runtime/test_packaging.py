"""The wheels: what they say of themselves, what is in them, and the compiler's as all that an installation has of dhlo."""

import email
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from dhlo.commands.flags import cmake_dir
from dhlo.errors import DhloError
from tests.conftest import ROOT
from tests.runtime.test_native import runs_with_older_systems

BACKEND: Any = pytest.importorskip("scikit_build_core.build")
BINARY = {"_runtime.abi3.so", *(f"libdhlo_{name}.{kind}" for name in ("runtime", "serve") for kind in ("a", "so.1"))}


@pytest.mark.parametrize(
    ("folder", "name", "needs"), [(".", "dhlo", {"torch", "torch-mlir", "llvmlite"}), ("runtime", "dhlo-runtime", {"numpy"})]
)
def test_metadata(folder: str, name: str, needs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / folder)
    found = tmp_path / BACKEND.prepare_metadata_for_build_wheel(str(tmp_path))
    about = email.message_from_string((found / "METADATA").read_text())
    assert about["Name"] == name and about["Requires-Python"] == ">=3.11" and about["Summary"]
    assert f"# {name}\n" in str(about.get_payload()) and "Typing :: Typed" in about.get_all("Classifier", [])
    required = {re.split(r"[^\w-]", x)[0] for x in about.get_all("Requires-Dist", []) if "extra ==" not in x}
    assert needs <= required and required <= {"torch", "torch-mlir", "llvmlite", "numpy", "sympy", "typer", "rich"}
    assert re.search(r"^Tag: cp311-abi3-linux_\w+$", (found / "WHEEL").read_text(), re.MULTILINE)
    points = (found / "entry_points.txt").read_text() if (found / "entry_points.txt").exists() else ""
    assert ("[torch_dynamo_backends]" in points and "dhlo = dhlo.cli:app" in points) == (name == "dhlo")


def leaves_no_trace(folder: Path) -> None:
    """No file of an installed package names a folder of the machine that it was built on."""
    found = {p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".json")}
    assert {p.name for p in found} >= BINARY
    for path in found:
        for place in (str(ROOT), sys.prefix, str(Path.home() / "."), str(Path.cwd())):
            assert place.encode() not in path.read_bytes(), f"{path} names {place}"


def test_nothing_installed_names_the_machine_that_built_it() -> None:
    try:
        leaves_no_trace(cmake_dir().parents[2])
    except DhloError:
        pytest.skip("needs an installed package")


TRIAL = """
import importlib.metadata, pathlib, sys, torch, dhlo
assert pathlib.Path(dhlo.__file__).is_relative_to(sys.prefix), dhlo.__file__
assert importlib.metadata.version("dhlo") == dhlo.__version__ and "dhlo" in torch._dynamo.list_backends()
f = torch.compile(lambda x: (x * 2).softmax(-1), backend="dhlo", dynamic=True)
with torch.no_grad():
    for rows in (1, 3, 7):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(f(x), (x * 2).softmax(-1))
"""
HOST = """
#include <cstdio>
#include "dhlo/runtime.hpp"
int main(int, char** arguments) {
  const dhlo::Model model = dhlo::Model::load(arguments[1]);
  dhlo::Session session(model);
  float x[6] = {1, -2, 3, -4, 5, -6};
  session.run({dhlo::Tensor::of(x, {2, 3})});
  std::printf("%g\\n", session.output(0).data<float>()[5]);
}
"""


@pytest.mark.slow
def test_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name = BACKEND.build_wheel(str(tmp_path), {"build-dir": str(tmp_path / "build")})
    assert name.startswith("dhlo-0.1.0-cp311-abi3-")
    names = zipfile.ZipFile(tmp_path / name).namelist()
    assert {n.split("/")[0] for n in names} == {"dhlo", "dhlo-0.1.0.dist-info"}
    for package in ("frontend", "shape_infer", "codegen", "runtime"):
        found = (p.relative_to(ROOT).as_posix() for p in (ROOT / package).rglob("*.py"))
        sources = {p for p in found if not p.startswith("runtime/package/")}  # a wheel of its own
        assert {f"dhlo/{source}" for source in sources} <= set(names)
    native = {n for n in names if n.endswith((".so", ".so.1", ".a", ".h", ".hpp", ".pyi", ".cmake", ".pc"))}
    assert native == {
        "dhlo/_runtime.abi3.so",
        "dhlo/_runtime.pyi",
        "dhlo/include/dhlo/abi.h",
        "dhlo/include/dhlo/runtime.h",
        "dhlo/include/dhlo/runtime.hpp",
        "dhlo/include/dhlo/serve.h",
        "dhlo/include/dhlo/serve.hpp",
        "dhlo/include/dhlo/store.h",
        "dhlo/lib/cmake/dhlo/dhlo-targets-release.cmake",
        "dhlo/lib/cmake/dhlo/dhlo-targets.cmake",
        "dhlo/lib/cmake/dhlo/dhloConfig.cmake",
        "dhlo/lib/cmake/dhlo/dhloConfigVersion.cmake",
        "dhlo/lib/libdhlo_runtime.a",
        "dhlo/lib/libdhlo_runtime.so",
        "dhlo/lib/libdhlo_runtime.so.1",
        "dhlo/lib/libdhlo_serve.a",
        "dhlo/lib/libdhlo_serve.so",
        "dhlo/lib/libdhlo_serve.so.1",
        "dhlo/lib/pkgconfig/dhlo-serve-static.pc",
        "dhlo/lib/pkgconfig/dhlo-serve.pc",
        "dhlo/lib/pkgconfig/dhlo-static.pc",
        "dhlo/lib/pkgconfig/dhlo.pc",
    }
    assert not [n for n in names if n.endswith((".cpp", "CMakeLists.txt", ".toml", ".md")) or "test" in n.lower()]
    tried_alone(tmp_path / name, tmp_path)
    for binary in ("_runtime.abi3.so", "lib/libdhlo_runtime.so.1", "lib/libdhlo_serve.so.1"):
        runs_with_older_systems(next(tmp_path.glob(f"venv/lib/*/site-packages/dhlo/{binary}")))


def tried_alone(wheel: Path, folder: Path) -> None:
    """An environment that has of dhlo what is in the wheel: the command line, torch.compile's backend, a C++ host."""
    venv.create(folder / "venv", with_pip=False)
    (site,) = (folder / "venv/lib").glob("python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    leaves_no_trace(site / "dhlo")
    (site / "others.pth").write_text(str(Path(torch.__file__).parents[1]))  # PyTorch and what else it needs
    python, work = folder / "venv/bin/python", folder / "work"
    work.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DHLO"))}

    def sh(*command: object) -> str:
        result = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, cwd=work, env=environment, timeout=300
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def run(*words: object) -> str:
        return sh(python, "-c", "from dhlo.cli import app; app()", *words)

    sh(python, "-c", TRIAL)
    rows = ({0: torch.export.Dim("rows", min=0, max=99)},)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),), dynamic_shapes=rows), work / "m.pt2")
    assert "0.1.0" in run("--version")
    run("compile", "m.pt2", "-o", "m.so")
    assert "float32" in run("run", "m.so", "--shape", "input=7x3")
    assert Path(run("--cmake-dir").strip()).is_relative_to(site)
    (work / "host.cpp").write_text(HOST)
    sh("c++", "-std=c++17", "host.cpp", *run("flags").split(), "-o", "host")
    assert sh(work / "host", work / "m.so") == "0\n"
    flags = re.findall(r"-I\S+", run("flags"))
    libraries = site / "dhlo/lib"
    assert (libraries / "libdhlo_runtime.so").stat().st_size < 100  # for linkers: wheels hold no links
    for linker in ("bfd", "gold", "lld"):
        if shutil.which(f"ld.{linker}"):
            link = [f"-fuse-ld={linker}", f"-L{libraries}", "-ldhlo_runtime", f"-Wl,-rpath,{libraries}"]
            sh("c++", "-std=c++17", "host.cpp", *flags, *link, "-o", "shared")
            assert "libdhlo_runtime.so.1" in sh("ldd", work / "shared") and sh(work / "shared", work / "m.so") == "0\n"
