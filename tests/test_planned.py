"""The planned module: what the host program is made of, its memory verified, and the list of all stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export import Dim
from typer.testing import CliRunner

from dhlo.cli import app
from dhlo.codegen.target import parse_targets
from dhlo.commands.compile import Emit, compile_file
from dhlo.commands.options import Build
from dhlo.compiler import compile_program, plan_program
from dhlo.errors import InternalError
from dhlo.exported import read_program
from dhlo.frontend import import_program
from dhlo.ir import mlir
from dhlo.ir.context import context
from dhlo.options import Options
from dhlo.pipeline import STAGES
from dhlo.shape_infer.verify_memory import verify_memory
from tests import test_pipeline

GOLDEN = Path(__file__).parent / "passes" / "assign-buffers.golden.mlir"


class Loop(torch.nn.Module):
    """A loop whose values have two buffers each, and sizes that depend on data."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, y = torch._higher_order_ops.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2 + x), (torch.tensor(0), x))
        found = (y > 1).nonzero().squeeze(1)
        return y + 1, x[found] * 2, *torch.unique(x, return_inverse=True, return_counts=True)


MODELS = {
    **test_pipeline.MODELS,
    "loop": (Loop, lambda n, _: (torch.randn(n),), ({0: Dim("n", max=4096)},)),
}


@pytest.mark.parametrize("name", MODELS)
def test_memory_of_planned_modules(name: str) -> None:
    cls, inputs, dims = MODELS[name]
    with torch.no_grad():
        program = import_program(torch.export.export(cls().eval(), inputs(3, 5), dynamic_shapes=dims))
    options = Options()
    plan_program(program, options, lambda _: None, parse_targets(options.target))
    with program.context:
        verify_memory(program.module)
        assert str(mlir.ir.Module.parse(str(program.module))) == str(program.module)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("below = [[], [0]]", "below = [[], []]", "overlap where"),
        ("order = [0, 1]", "order = [0, 7]", "leaves out buffers of its segment"),
        ('"dhlo.arena"() {segment = 3 : i64} : () -> ()', "", "buffer 2 has no memory yet"),
        ("memory = [{buffer = 0 : i64}]", "memory = [{buffer = 9 : i64}]", "buffer 9 has no memory yet"),
        ("memory = [{buffer = 0 : i64}]", "memory = [{}]", "which has no memory"),
        ("last = 4 : i64", "last = 2 : i64", "is in use from 2 to 2"),
    ],
)
def test_wrong_memory_is_found(old: str, new: str, message: str) -> None:
    text = GOLDEN.read_text()
    with context():
        verify_memory(mlir.ir.Module.parse(text))
        assert old in text
        with pytest.raises(InternalError, match=message):
            verify_memory(mlir.ir.Module.parse(text.replace(old, new, 1)))


def test_what_is_printed_is_what_is_compiled(tmp_path: Path) -> None:
    cls, inputs, dims = MODELS["chosen"]
    torch.manual_seed(0)
    exported = torch.export.export(cls().eval(), inputs(3, 5), dynamic_shapes=dims)
    torch.export.save(exported, tmp_path / "m.pt2")
    printed = compile_file([str(tmp_path / "m.pt2")], tmp_path / "m.mlir", Emit.PLANNED, Build()).read_text()
    assert printed.rstrip() == compile_program(import_program(read_program(tmp_path / "m.pt2")), Options()).planned.rstrip()
    for what in (
        *("check_type", "solve", "check", "plan", "stage", "alloc", "arrange", "arena", "count_nonzero", "fill_nonzero"),
        *("address", "launch"),
    ):
        assert f'"dhlo.{what}"' in printed
    assert 'family = "loops"' in printed


def test_every_stage_is_listed_in_order() -> None:
    names = [s.name for s in STAGES]
    assert len(set(names)) == len(names) and all(s.summary for s in STAGES)
    assert names[0] == "import" and names[-1] == "link"
    order = ["grow", "separate-state", "fuse", "check-contract", "stage-inputs", "lower-groups", "assign-buffers"]
    order += ["schedule-launches", "host-program"]
    assert [n for n in names if n in order] == order
    out = CliRunner().invoke(app, ["opt", "--list"]).output
    assert [line.split()[0] for line in out.splitlines()] == names
