"""The wheel: one top-level package, the extension for the stable ABI, and what an ahead-of-time user links."""

import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT)
    name = backend.build_wheel(str(tmp_path), {"build-dir": str(tmp_path / "build")})
    assert name.startswith("dhlo-0.1.0-cp311-abi3-")
    names = zipfile.ZipFile(tmp_path / name).namelist()
    assert {n.split("/")[0] for n in names} == {"dhlo", "dhlo-0.1.0.dist-info"}
    for package in ("frontend", "shape_infer", "codegen", "runtime"):
        found = (p.relative_to(ROOT).as_posix() for p in (ROOT / package).rglob("*.py"))
        sources = {p for p in found if not p.startswith("runtime/package/")}  # a wheel of its own
        assert {f"dhlo/{source}" for source in sources} <= set(names)
    native = {n for n in names if n.endswith((".so", ".a", ".h", ".hpp", ".pyi", ".cmake", ".pc"))}
    assert native == {
        "dhlo/_runtime.abi3.so",
        "dhlo/_runtime.pyi",
        "dhlo/include/dhlo/abi.h",
        "dhlo/include/dhlo/runtime.h",
        "dhlo/include/dhlo/runtime.hpp",
        "dhlo/lib/cmake/dhlo/dhlo-targets-release.cmake",
        "dhlo/lib/cmake/dhlo/dhlo-targets.cmake",
        "dhlo/lib/cmake/dhlo/dhloConfig.cmake",
        "dhlo/lib/cmake/dhlo/dhloConfigVersion.cmake",
        "dhlo/lib/libdhlo_runtime.a",
        "dhlo/lib/libdhlo_runtime.so",
        "dhlo/lib/pkgconfig/dhlo-static.pc",
        "dhlo/lib/pkgconfig/dhlo.pc",
    }
    assert not [n for n in names if n.endswith((".cpp", "CMakeLists.txt"))]
