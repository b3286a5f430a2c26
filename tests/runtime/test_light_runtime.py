"""The package dhlo-runtime: model files with numpy alone."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo import _runtime
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def light() -> Iterator[ModuleType]:
    """The package's Python, with the extension of this installation."""
    sys.path.insert(0, str(ROOT / "runtime/package"))
    sys.modules["dhlo_runtime._runtime"] = _runtime
    yield importlib.import_module("dhlo_runtime")
    sys.path.remove(str(ROOT / "runtime/package"))
    for name in ("dhlo_runtime", "dhlo_runtime._runtime"):
        del sys.modules[name]


class Counting(torch.nn.Module):
    """Results of several dtypes, one of them none of numpy's, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls += 1
        y = x * scale
        return y, y.to(torch.bfloat16), y > 0, self.calls + 0


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("light")
    rows = {0: Dim("rows", min=0, max=100_000)}
    for name, model, args, dims in (
        ("counting", Counting(), (torch.randn(2, 6), torch.tensor(2.0)), (rows, None)),
        ("plain", Plain(), (torch.randn(2, 6),), (rows,)),
    ):
        dhlo.compile(torch.export.export(model, args, dynamic_shapes=dims), name=name, cache="").save(folder / f"{name}.so")
    return {name: folder / f"{name}.so" for name in ("counting", "plain")}


def test_arrays_in_and_out(light: ModuleType, files: dict[str, Path]) -> None:
    model = light.load(files["plain"])
    assert "x: float32[rows, 6]" in repr(model) and model.entries == [""]
    for rows in (0, 1, 7, 20_000):
        x = np.random.default_rng(rows).standard_normal((rows, 6), np.float32)
        for given in (x, torch.from_numpy(x), np.asfortranarray(x), x[::-1][::-1]):
            (y,) = model(given)
            assert isinstance(y, np.ndarray) and y.flags.writeable and y.dtype == np.float32
            np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-5, atol=1e-6)
    kept = [model(x=np.full((9, 6), n, np.float32))[0] for n in range(20)]  # each has memory of its own
    assert all(np.allclose(y, 1 / 6) for y in kept)
    assert model.plan([5, 6])["outputs"] == [("float32", (5, 6))]


def test_state_sessions_and_dtypes_that_numpy_lacks(light: ModuleType, files: dict[str, Path]) -> None:
    model = light.load(files["counting"])
    x = np.ones((3, 6), np.float32)
    with pytest.raises(light.SessionError, match="keeps state"):
        model(x, 2.0)
    session = model.session()
    names = [v["name"] for v in model.inputs]
    y, half, positive, calls = session(x, np.float32(2) * np.ones((), np.float32))
    assert positive.dtype == np.bool_ and positive.all() and calls.tolist() == [1]
    assert half.dtype == "bfloat16" and torch.equal(torch.from_dlpack(half).float(), torch.from_numpy(y))
    with pytest.raises(BufferError, match="taken already"):
        torch.from_dlpack(half)
    (state,) = model.metadata["states"]
    assert session.read_state(state).tolist() == [1]
    twin, saved = session.copy(), session.snapshot()
    session(**dict(zip(names, (x, np.zeros((), np.float32)), strict=True)))
    assert (session.read_state(state), twin.read_state(state)) == ([2], [1])
    twin.write_state(state, np.array([7]))
    session.restore(saved)
    assert (session.read_state(state), twin.read_state(state)) == ([1], [7])
    session.reset()
    assert session.read_state(state) == [0] and session.counters["runs"] == 2
    with pytest.raises(KeyError, match="no state"):
        session.read_state("none")
    for wrong in (np.array([1.0]), np.array([1, 2])):
        with pytest.raises(light.ContractError, match="expected int64"):
            session.write_state(state, wrong)


def test_errors(light: ModuleType, files: dict[str, Path], tmp_path: Path) -> None:
    model = light.load(files["plain"])
    x = np.ones((3, 6), np.float32)
    for args, named, message in (
        ((x.astype(np.float64),), {}, "must be float32"), ((x, x), {}, "expected 1 input"), (("a",), {}, "expected a tensor"),
        ((), {"y": x}, "expected the arguments x by name, got y"), ((x,), {"x": x}, "none"), ((x[:, :5],), {}, "must be 6"),
    ):  # fmt: skip
        with pytest.raises(light.ContractError, match=message):
            model(*args, **named)
    assert model(x)[0].shape == (3, 6)
    (tmp_path / "damaged.so").write_bytes(files["plain"].read_bytes()[:-1])
    for path in (tmp_path / "none.so", tmp_path / "damaged.so"):
        with pytest.raises(light.ModelFileError) as raised:
            light.load(path)
        assert raised.value.status in ("input/output", "format")
    for options in ({"verify": "never"}, {"memory": "paged"}, {"memory": 1}):
        with pytest.raises(ValueError, match="expected .*, got"):
            light.load(files["plain"], **options)
    with pytest.raises(light.ModelFileError, match="authorize"):
        light.load(files["plain"], authorize=lambda digest: False)
    with pytest.raises(KeyError, match="no entry"):
        model["none"]
    with pytest.raises(MemoryError):
        model.session(max_bytes=1000)(np.ones((1000, 6), np.float32))


def test_stopping(light: ModuleType, files: dict[str, Path]) -> None:
    session = light.load(files["plain"], verify="always", memory="copied").session()
    x = np.ones((3, 6), np.float32)
    assert np.allclose(session.run((), {"x": x}, timeout=1e12)[0], 1 / 6)
    with pytest.raises(light.DeadlineError) as late:
        session.run((x,), timeout=1e-9)
    assert isinstance(late.value, TimeoutError) and late.value.status == "deadline"
    session.cancel()  # nothing is running
    assert np.allclose(session(x)[0], 1 / 6)
    for timeout in (0, -1, float("nan"), "1", 1j):
        with pytest.raises(ValueError, match="timeout"):
            session.run((x,), timeout=timeout)


def test_entries_share_state(light: ModuleType, tmp_path: Path) -> None:
    x = torch.ones(2)
    entries = {"first": torch.export.export(Counting(), (x, x)), "second": torch.export.export(Counting(), (x, x))}
    dhlo.compile(entries).save(tmp_path / "two.so")
    model = light.load(tmp_path / "two.so")
    session, array = model.session(), np.ones(2, np.float32)
    assert [int(s(array, array)[3][0]) for s in (session, session["second"], session["first"], session)] == [1, 2, 3, 4]
    with pytest.raises(KeyError, match="no entry"):
        session["third"]


def test_threads(light: ModuleType, files: dict[str, Path]) -> None:
    model, failures = light.load(files["plain"], num_threads=1), []

    def work(n: int) -> None:
        for rows in range(1, 50):
            x = np.full((rows, 6), n, np.float32)
            if not np.allclose(model(x)[0], 1 / 6):
                failures.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_versions_agree() -> None:
    light, whole = (tomllib.loads((ROOT / p).read_text())["project"] for p in ("runtime/pyproject.toml", "pyproject.toml"))
    assert light["version"] == whole["version"] == dhlo.__version__
    assert light["dependencies"] == ["numpy>=2.1"] and light["requires-python"] == whole["requires-python"]


BARE = """
import sys
import numpy as np
import dhlo_runtime
model = dhlo_runtime.load(sys.argv[1])
x = np.random.default_rng(0).standard_normal((300, 6), np.float32)
e = np.exp(x)
np.testing.assert_allclose(model(x)[0], e / e.sum(-1, keepdims=True), rtol=1e-5)
print(*sorted(name for name in ("torch", "llvmlite", "sympy", "dhlo") if name in sys.modules))
"""


@pytest.mark.slow
def test_wheel_in_a_bare_environment(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel and numpy, isolated, without a PATH; with auditwheel, its policy, too."""
    backend: Any = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT / "runtime")
    wheel = tmp_path / backend.build_wheel(str(tmp_path), {"build-dir": str(tmp_path / "build")})
    names = [n for n in zipfile.ZipFile(wheel).namelist() if "dist-info" not in n]
    assert sorted(names) == [f"dhlo_runtime/{n}" for n in ("__init__.py", "_runtime.abi3.so", "py.typed")]
    assert wheel.stat().st_size < 400 << 10
    venv.create(tmp_path / "bare", with_pip=False)
    (site,) = (tmp_path / "bare/lib").glob("python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    numpy = Path(np.__file__).parent
    for folder in (numpy, numpy.parent / "numpy.libs"):
        if folder.exists():
            shutil.copytree(folder, site / folder.name)
    command = [str(tmp_path / "bare/bin/python"), "-I", "-c", BARE, str(files["plain"])]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/nonexistent"}, cwd="/")
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr
    if auditwheel := shutil.which("auditwheel"):
        shown = subprocess.run([auditwheel, "show", str(wheel)], capture_output=True, text=True, check=True, env=dict(os.environ))
        assert re.search(r'"manylinux_2_\d+_(x86_64|aarch64)"', shown.stdout.replace("\n", " "))
