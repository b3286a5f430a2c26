"""What debuggers and profilers see of saved code, and that nothing of the machine that compiled it stays in artifacts."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo.frontend.locations import portable_path
from dhlo.ir.places import Place
from tests.conftest import ROOT

needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 24)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.linear(x), -1)
        return y[at].exp()


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().split("\n")
    return f"test_debug_info.py:{next(k for k, x in enumerate(lines, 1) if text in x and 'line_of' not in x)}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model file without debug information, and one with it."""
    folder = tmp_path_factory.mktemp("models")
    arguments = (torch.randn(4, 16), torch.tensor([0, 1]))
    shapes = ({0: Dim("rows", max=99)}, {0: Dim("n", max=99)})
    module = Model().eval()
    program = torch.export.export(module, arguments, dynamic_shapes=shapes)
    for name, debug_info in (("plain", False), ("debug", True)):
        model = dhlo.compile(program, name="model", debug_info=debug_info)
        torch.testing.assert_close(model(*arguments), module(*arguments), rtol=1e-4, atol=1e-5)
        model.save(folder / f"{name}.so")
        model.save_object(folder / f"{name}.o")
    return folder / "plain.so", folder / "debug.so"


def objdump(*args: object) -> str:
    return subprocess.run(["objdump", *map(str, args)], capture_output=True, text=True, check=True).stdout


def test_no_folders_of_this_machine(files: tuple[Path, Path]) -> None:
    """Model files and objects have places in the user's source, without the way there."""
    folders = {str(ROOT), os.getcwd(), str(Path.home()), tempfile.gettempdir(), str(Path(torch.__file__).parents[1]), sys.prefix}
    for path in (*files, *(f.with_suffix(".o") for f in files)):
        data = path.read_bytes()
        assert b"tests/test_debug_info.py" in data  # the place of the lookup, whose index is checked
        found = [f for f in folders if len(f) > 1 and f.encode() in data]
        assert not found, (path.name, found)


@needs_objdump
def test_symbols_and_lines(files: tuple[Path, Path]) -> None:
    plain, debug = files
    symbols = set(re.findall(r" ([a-z]+)_\w+\.\w+$", objdump("-t", debug), re.MULTILINE))
    assert {"dhlo", "matmul", "reduce", "loops"} <= symbols
    assert "test_debug_info.py" not in objdump("--dwarf=decodedline", plain)
    lines = set(re.findall(r"test_debug_info\.py\s+(\d+)", objdump("--dwarf=decodedline", debug)))
    assert {line_of(x).rpartition(":")[2] for x in ("torch.softmax(self", "y[at].exp()")} <= lines
    # The dump of code has each function's lines: those of the host program are of all its launches.
    (host,) = re.findall(r"<dhlo_run\.[\w.]+>:\n(.*?)\n\n", objdump("-d", "-l", debug), re.DOTALL)
    assert line_of("torch.softmax(self") in host and line_of("y[at].exp()") in host


@needs_objdump
def test_code_is_the_same(files: tuple[Path, Path]) -> None:
    """Debug information changes no instruction."""
    dumps = [objdump("-d", "--no-show-raw-insn", "-j", ".text", f.with_suffix(".o")).split("\n", 3)[3] for f in files]
    assert dumps[0] == dumps[1] and len(dumps[0]) > 10000


def test_portable_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "project" / "package" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "scripts")])
    for path, wanted in (
        ("/home/user/.venv/lib/python3.11/site-packages/transformers/models/bert.py", "transformers/models/bert.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        (str(package / "model.py"), "package/inner/model.py"),
        (str(tmp_path / "scripts" / "train.py"), "train.py"),
        (str(tmp_path / "project" / "loose.py"), "project/loose.py"),
        ("/somewhere/else/model.py", "model.py"),
        ("relative.py", "relative.py"),
    ):
        portable_path.cache_clear()
        assert portable_path(path) == wanted
    assert str(Place("a.py", 3, "m")) == "a.py:3" and str(Place("", 0, "m")) == "m"
