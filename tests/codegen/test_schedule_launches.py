"""Launches as ops of the planned module: their text (the golden), what is refused, and that the host program makes just these."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo import interp
from dhlo.codegen.families.family import KernelFamily
from dhlo.codegen.families.schedule import schedule_launches
from dhlo.codegen.host.operations import emit_host_program
from dhlo.codegen.target import parse_targets
from dhlo.compiler import Planned, plan_program
from dhlo.errors import InternalError
from dhlo.frontend import import_program
from dhlo.frontend.program import Program
from dhlo.ir import mlir
from dhlo.ir.context import context
from dhlo.ir.dialect import attr, to_attr
from dhlo.ir.function import walk
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.host import Launch
from dhlo.options import Options
from dhlo.pipeline import verify
from dhlo.shape_infer.verify_memory import verify_memory
from tests.goldens import Golden

GOLDEN = Path(__file__).parent / "schedule-launches.golden.mlir"


class Launches(torch.nn.Module):
    """Every kind of argument: memory, also of a view and of the workspace, constants, sizes, a real number, a cell for errors."""

    def __init__(self) -> None:
        super().__init__()
        self.m = torch.nn.Parameter(torch.randn(8, 5))

    def forward(self, x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.index_add(0, i, w)
        return y @ self.m, torch.fft.rfft2(x).abs(), x * x.shape[0] ** 0.5, x[1:].scatter(0, i[:, None].expand(-1, 8), w)


def program() -> Program:
    n, k = Dim("n", min=3, max=4096), Dim("k", max=4096)
    args = torch.randn(9, 8), torch.arange(4), torch.randn(4, 8)
    return import_program(torch.export.export(Launches(), args, dynamic_shapes=({0: n}, {0: k}, {0: k})))


def plan(made: Program) -> Planned:
    return plan_program(made, Options(), lambda _: None, parse_targets("x86-64-v4"))[0]


def ops(planned: Planned, kind: type[Any]) -> list[Any]:
    return [op for op in walk(planned.block) if isinstance(op, kind)]


def test_text(golden: Golden) -> None:
    made = program()
    planned = plan(made)
    with made.context:
        text = str(planned.module)
        assert str(mlir.ir.Module.parse(text)) == text
        verify_memory(planned.module)
    golden(GOLDEN, re.sub(r"_[0-9a-f]{10}\b", "_kernel", text))


def test_results_stay() -> None:
    """For the interpreter, groups compute and launches are nothing; the binary makes the launches."""
    torch.manual_seed(0)
    made = program()
    args = torch.randn(7, 8), torch.tensor([5, 0, 2]), torch.randn(3, 8)
    with made.context:
        want = interp.run(made.module, args, made.weights)
        got = interp.run(plan(made).module, args, made.weights)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_binary_agrees_with_eager() -> None:
    torch.manual_seed(1)
    model = Launches()
    n, k = Dim("n", min=3, max=4096), Dim("k", max=4096)
    args = torch.randn(9, 8), torch.arange(4), torch.randn(4, 8)
    compiled = dhlo.compile(torch.export.export(model, args, dynamic_shapes=({0: n}, {0: k}, {0: k})))
    for size, count in ((3, 0), (3, 1), (4, 2), (17, 9), (64, 31)):
        x, i, w = torch.randn(size, 8), torch.randperm(size - 1)[:count], torch.randn(count, 8)
        for a, b in zip(compiled(x, i, w), model(x, i, w), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_host_program_makes_these_launches() -> None:
    made = program()
    planned = plan(made)
    with made.context:
        groups, launches = ops(planned, Group), ops(planned, Launch)
        host = emit_host_program(planned.low, planned.module, planned.block, planned.groups)
        fixed = [host.launches[first:end] for (first, end), g in zip(host.launches_of, groups, strict=True) if not chooses(g)]
        assert sum(fixed, []) == [attr(op, "kernel") for op in launches] and launches
        for (first, end), g in zip(host.launches_of, groups, strict=True):
            if chooses(g):
                assert end > first and set(host.launches[first:end]) <= set(attr(g, "kernels"))


def chooses(group: Any) -> bool:
    return "kernels" in group.operation.attributes


def test_kernels_must_exist() -> None:
    made = program()
    planned = plan(made)
    with made.context:
        family = next(f for f in planned.groups if isinstance(f, KernelFamily))
        planned.low.module.functions.pop(family.launch.kernel)
        with pytest.raises(InternalError, match=f"launches {family.launch.kernel}, which the module doesn't hold"):
            schedule_launches(planned.low, planned.block, planned.groups)


def test_a_choice_is_between_the_kernels_that_are_listed() -> None:
    made = program()
    planned = plan(made)
    with made.context:
        group = next(g for g in ops(planned, Group) if chooses(g))
        assert any(name.startswith("matmul_f32") for name in attr(group, "kernels"))
        group.operation.attributes["kernels"] = to_attr([])
        with pytest.raises(InternalError, match="which isn't one of its kernels"):
            emit_host_program(planned.low, planned.module, planned.block, planned.groups)


F = torch.nn.functional
r = torch.randn
CHOICES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "products": (lambda x, y: (x @ y, (x * 2) @ (y + 1)), (r(2, 6, 4), r(2, 4, 3))),
    "bf16": (lambda x, y: x @ y, (r(6, 4).bfloat16(), r(4, 3).bfloat16())),
    "weights": (lambda x, w: F.conv2d(x, w, padding=1).relu() + F.conv2d(x, w + 1, padding=1), (r(2, 3, 7, 7), r(3, 3, 3, 3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=3), (r(2, 3, 7, 7), r(3, 1, 3, 3))),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2) * 2, (r(2, 3, 7, 7), r(3, 4, 3, 3))),
    "phase of zeros": (lambda x, w: F.conv_transpose1d(x, w, stride=3), (r(2, 3, 7), r(3, 4, 2))),
    "attention": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k) + F.scaled_dot_product_attention(k, q, q * 2, m),
        (r(2, 2, 5, 8), r(2, 2, 5, 8), r(5, 5)),
    ),
    "pools": (lambda x: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)), (r(2, 3, 9, 9),)),
    "sums": (lambda x: (x.sum(), (x * 2).sum(), x.sin().mean(0)), (r(9, 70),)),
    "recurrent": (
        lambda x, h, w, u, p: torch.lstm(x, (h[..., :3], h), [w, u, w[:, 0], w[:, 0], p], True, 1, 0.0, False, False, False),
        (r(5, 2, 4), r(1, 2, 6), r(24, 4), r(24, 3), r(3, 6)),
    ),
}


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("name", CHOICES)
def test_groups_list_all_that_they_launch(name: str) -> None:
    function, args = CHOICES[name]
    dims = ({0: Dim.AUTO}, *[None] * (len(args) - 1))
    made = import_program(torch.export.export(Function(function), args, dynamic_shapes=(dims,)))
    planned = plan(made)
    with made.context:
        verify_memory(planned.module)
        host = emit_host_program(planned.low, planned.module, planned.block, planned.groups)
        groups = ops(planned, Group)
        assert len(host.launches_of) == len(groups) and any(map(chooses, groups))


WRONG = [
    (r"\{operand = 0 : i64\}", "{operand = 9 : i64}", "there is no operand 9"),
    (r"\{operand = 0 : i64\}", '{operand = "x"}', "arguments must be a list of a kernel's arguments"),
    (r"\{operand = 0 : i64\}", "{pointer = 0 : i64}", "arguments must be a list of a kernel's arguments"),
    (r'\{size = "\w+"\}', '{size = "strange"}', "the symbol strange is used before it is defined"),
    (r'\{real = "[^"]*"\}', '{real = "strange"}', "the symbol strange is used before it is defined"),
    (r'count = "[^"]*", kernel', 'count = "strange", kernel', "the symbol strange is used before it is defined"),
    (r'("dhlo.launch"[^\n]*buffer = )\d+', r"\g<1>77", "buffer 77 has no memory yet"),
    (r'\n *"dhlo.launch"[^\n]*kernel = "pointwise[^\n]*', "", "is an address that nothing launches with"),
    (r"kernels = \[[^]]*\], ", "", "launches nothing"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_wrong_launches_are_found(old: str, new: str, message: str) -> None:
    text = GOLDEN.read_text()
    with context():
        check(text)
        wrong, count = re.subn(old, new, text, count=1)
        assert count
        with pytest.raises((InternalError, mlir.ir.MLIRError), match=message):
            check(wrong)


def check(text: str) -> None:
    module = mlir.ir.Module.parse(text)
    verify(module, "text")
    verify_memory(module)
