"""Bounds and usual sizes (`Options.shapes`): what they do to the contract and to plans, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

import dhlo
from dhlo import Range
from dhlo.api import import_programs
from dhlo.commands.shapes import parse_bounds
from dhlo.ir.function import hints_of, ranges_of
from dhlo.options import Options


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 24)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.linear(x).softmax(-1)
        torch._check(2 * x.shape[0] <= x.shape[1] + 200)
        return h, h.sum(1) + y


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    batch, seq = Dim("batch"), Dim("seq", max=512)
    return export(Net().eval(), (torch.randn(4, 6, 16), torch.randn(4, 24)), dynamic_shapes=({0: batch, 1: seq}, {0: batch}))


def check(model: dhlo.CompiledModel, program: ExportedProgram, *sizes: tuple[int, int]) -> None:
    eager = program.module(check_guards=False)
    for b, s in sizes:
        x = torch.randn(b, s, 16), torch.randn(b, 24)
        torch.testing.assert_close(model(*x), eager(*x))


def test_bounds_narrow_the_contract(program: ExportedProgram, tmp_path: Path) -> None:
    model = dhlo.compile(program, shapes={"batch": Range(1, 8, 64), "x.1": Range(max=100)})
    assert "  1 <= batch <= 64, usually 8\n  0 <= seq <= 100" in model.signature
    condition = "requires 2*batch <= seq + 200"
    assert condition in dhlo.compile(program).signature and condition not in model.signature  # which proves it
    assert json.loads(model.metadata)["hints"] == {"batch": 8}
    check(model, program, (1, 0), (8, 7), (64, 100))
    model.save(tmp_path / "model.so")
    for m in (model, dhlo.load(tmp_path / "model.so")):
        for b, s, text in (
            (0, 3, r"\(batch\) must be at least 1"),
            (65, 3, r"\(batch\) must be at most 64"),
            (1, 101, r"\(seq\) must be at most 100"),
        ):
            with pytest.raises(dhlo.ContractError, match=text):
                m(torch.randn(b, s, 16), torch.randn(b, 24))


def test_a_range_of_one_size_makes_it_static(program: ExportedProgram) -> None:
    model = dhlo.compile(program, shapes={"y.0": Range(8, max=8)})
    assert "x: float32[8, seq, 16]" in model.signature
    check(model, program, (8, 1), (8, 33))
    with pytest.raises(dhlo.ContractError, match="'y' dim 0 must be 8"):
        model(torch.randn(8, 2, 16), torch.randn(7, 24))


class Both(torch.nn.Module):
    """Buffers of a, of b and of both sizes, with lifetimes that overlap: what lies best above what depends on the sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 512), torch.nn.Linear(512, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.down(self.up(x).relu().cumsum(0))
        g = y.sort()[0].cumsum(0)
        return torch.cat([h.flatten(), g, h.flatten().sort()[0]]).sort()[0].cumsum(0)


def test_usual_sizes_decide_between_arrangements() -> None:
    program = export(Both(), (torch.ones(8, 64), torch.ones(9)), dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))
    plain, (a, b) = dhlo.compile(program), (1, 100000)
    model = dhlo.compile(program, shapes={"a": Range(opt=a), "b": Range(opt=b)})
    plan, other = (m.plan([[a, 64], [b]]) for m in (model, plain))
    assert plan["arena_bytes"] < 0.9 * other["arena_bytes"] and plan["arena_bytes"] < 1.1 * plan["peak_live_bytes"]
    x, y = torch.randn(7, 64), torch.randn(5)
    assert torch.equal(model(x, y), plain(x, y))


@pytest.mark.parametrize(
    "shapes,text",
    [
        ({"nope": Range(1)}, "shapes: 'nope' is no dynamic size .*\n.*sizes are batch, seq; or INPUT.DIM, where inputs are x, y"),
        ({"x.2": Range(16)}, "'x.2' is no dynamic size"),
        ({"x.3": Range(1)}, "'x.3' is no dynamic size"),
        ({"x.-1": Range(1)}, "'x.-1' is no dynamic size"),
        ({"seq": Range(max=513)}, "the program takes 'seq' of 0 to 512, not of 0 to 513"),
        ({"seq": Range(600)}, "the program takes 'seq' of 0 to 512, not of 600 to 512"),
        (
            {"batch": Range(5), "y.0": Range(max=3)},
            r"the bounds of 'batch', 'y.0' contradict .* no value of batch .*5 <= batch <= 3",
        ),
        ({"batch": Range(8, max=8), "y.0": Range(max=3)}, "the bounds of 'batch', 'y.0' contradict .*: batch <= 3 is never true"),
        ({"batch": Range(300), "seq": Range(max=99)}, r"of 'batch', 'seq' contradict .*: 2\*batch <= seq \+ 200 is never true"),
        ({"batch": Range(max=5), "y.0": Range(opt=6)}, "'y.0' is batch, which can't be 6"),
        ({"batch": Range(opt=5), "y.0": Range(opt=6)}, "'y.0' is batch, which can't be 6"),
        ({"batch": 8}, "a dict of sizes, each with its dhlo.Range"),
        ({8: Range()}, "a dict of sizes, each with its dhlo.Range"),
        ("batch", "a dict of sizes, each with its dhlo.Range"),
    ],
)
def test_what_is_refused(program: ExportedProgram, shapes: object, text: str) -> None:
    with pytest.raises(dhlo.CompileError, match=text):
        import_programs({"": program}, Options(shapes=shapes))  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [(3, 2, 1), (2, None, 1), (True,), (-1,), (1.5,), (1 << 62,), ("1",)])
def test_no_range(bad: tuple[object, ...]) -> None:
    with pytest.raises(dhlo.CompileError, match="min <= opt <= max"):
        Range(*bad)  # type: ignore[arg-type]


def test_derived_dims_and_entries() -> None:
    """A range of 4 * quarter is one of the dim; entries take what they have, and the names of numbers are sizes, too."""

    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x.reshape(-1, 4) * n

    rows = export(Rows(), (torch.ones(8, 2), 3), dynamic_shapes=({0: 4 * Dim("quarter")}, Dim.DYNAMIC))
    other = export(torch.nn.ReLU(), (torch.ones(8),), dynamic_shapes=({0: Dim("len")},))
    shapes = {"x.0": Range(5, 12, 17), "n": Range(2, max=9), "len": Range(max=7)}
    programs = import_programs({"rows": rows, "other": other}, Options(shapes=shapes))
    for name, ranges, hints in (("rows", [(2, 4), (2, 9)], [3]), ("other", [(0, 7)], [])):
        with programs[name].context:
            module = programs[name].module
            assert sorted(ranges_of(module).values()) == ranges and list(hints_of(module).values()) == hints
    with pytest.raises(dhlo.CompileError, match=r"'x.0' is 4\*s\d+, which can't be 13"):
        import_programs({"": rows}, Options(shapes={"x.0": Range(opt=13)}))


def test_names_of_dims_in_files(program: ExportedProgram, tmp_path: Path) -> None:
    dhlo.save_program(program, path := tmp_path / "named.pt2")
    torch.export.save(program, plain := tmp_path / "plain.pt2")
    assert torch.export.load(path).graph_signature == torch.export.load(plain).graph_signature
    shapes = {"seq": Range(max=5)}
    model = dhlo.compile(path, shapes=shapes)
    assert "x: float32[batch, seq, 16]" in model.signature and "0 <= seq <= 5" in model.signature
    with pytest.raises(dhlo.CompileError, match=r"sizes are s\d+, s\d+; or INPUT.DIM"):
        dhlo.compile(plain, shapes=shapes)
    assert re.search(r"0 <= s\d+ <= 5", dhlo.compile(plain, shapes={"x.1": Range(max=5)}).signature)


def test_a_size_without_a_name_is_called_as_its_bounds_are() -> None:
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    unnamed = export(Net().eval(), (torch.randn(4, 6, 16), torch.randn(4, 24)), dynamic_shapes=shapes)
    with pytest.raises(dhlo.CompileError, match=r"no value of y.0 .*5 <= y.0 <= 3"):
        import_programs({"": unnamed}, Options(shapes={"x.0": Range(5), "y.0": Range(max=3)}))


def test_a_program_is_saved_whole_or_not_at_all(program: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's writer would end the process."""
    (path := tmp_path / "kept.pt2").write_bytes(b"before")
    write, left = os.write, [500]

    def full(fd: int, data: memoryview) -> int:
        left[0] -= 1
        if left[0] < 480:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        dhlo.save_program(program, path)
    monkeypatch.undo()
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="its folder doesn't exist"):
        dhlo.save_program(program, tmp_path / "none" / "p.pt2")


def test_bounds_on_the_command_line() -> None:
    assert parse_bounds(["batch=1:8:64", "x.1=:9", "n=3:"]) == {"batch": Range(1, 8, 64), "x.1": Range(max=9), "n": Range(3)}
    for bad in ("batch", "=1:2", "batch=1", "batch=1:2:3:4", "batch=a:b", "batch=-1:3", "batch=1:99999999999999999"):
        with pytest.raises(dhlo.CompileError, match="is not a range: NAME=MIN:MAX"):
            parse_bounds([bad])
    with pytest.raises(dhlo.CompileError, match="min <= opt <= max"):
        parse_bounds(["batch=9:8:64"])
    with pytest.raises(dhlo.CompileError, match="bounded twice"):
        parse_bounds(["batch=1:2", "batch=1:2"])
