"""Operators that take graphs: each runs as the exported program says, or is refused with its source line and what to do."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
import torch
import torch._higher_order_ops
from torch._higher_order_ops.out_dtype import out_dtype
from torch.export import Dim, export

import dhlo
from dhlo.frontend.decompose import Decompositions
from dhlo.frontend.importer import unknown_ops
from dhlo.frontend.registry import HIGHER_ORDER, INLINED, REFUSED


class Counting(torch.nn.Module):
    """A region that writes to a buffer and to a tensor of the code around it, through a view that outlives the region."""

    def __init__(self, region: Any) -> None:
        super().__init__()
        self.linear, self.region = torch.nn.Linear(3, 3), region
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x):
        y = x * 2
        with self.region():
            self.steps.add_(1)
            y.add_(self.steps)
            z = y[:1]
        z.mul_(3)
        return self.linear(y) + self.steps


class Hints(torch.nn.Module):
    def forward(self, x):
        return torch._higher_order_ops.hints_wrap.hints_wrapper(lambda x: x.sin() + 1, (x,), {}, hints={"a": True})


class Checkpoint(torch.nn.Module):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(lambda x: x.relu() @ x.T, x, use_reentrant=False)


def agrees(module: torch.nn.Module, **how: Any) -> None:
    exported = export(module.eval(), (torch.ones(3, 3),), dynamic_shapes=({0: Dim.AUTO},), **how)
    model, theirs = dhlo.compile(exported), exported.module()
    for rows in (3, 5, 2):
        x = torch.randn(rows, 3)
        with torch.no_grad():
            torch.testing.assert_close(model(x), theirs(x))


@pytest.mark.parametrize(
    ("region", "strict"), [(torch.no_grad, False), (torch.no_grad, True), (lambda: torch.autocast("cpu", enabled=False), False)]
)
def test_what_a_region_writes_is_written(region: Any, strict: bool) -> None:
    agrees(Counting(region), strict=strict)


@pytest.mark.parametrize("module", [Hints, Checkpoint])
def test_wrappers_that_run_a_graph_in_place(module: Any) -> None:
    agrees(module())


class Fn(torch.nn.Module):
    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def bytes_to_ints(x: torch.Tensor) -> torch.Tensor:
    i = (100 * x).to(torch.int8)
    return out_dtype(torch.ops.aten.mm.default, torch.int32, i, i.t())


def shorter(x: torch.Tensor) -> torch.Tensor:
    return out_dtype(torch.ops.aten.mul.Tensor, torch.bfloat16, x, x)


@pytest.mark.parametrize("f", [bytes_to_ints, shorter])
def test_results_of_other_dtypes_than_arguments(f: Any) -> None:
    agrees(Fn(f))


def test_refused_with_source_line_and_what_to_do() -> None:
    def shown(x: torch.Tensor) -> torch.Tensor:
        torch._higher_order_ops.print("{}", x)
        return x + 1

    exported = export(Fn(shown), (torch.ones(4, 3),))
    with pytest.raises(dhlo.UnsupportedError, match=r"print \(take side effects out.*\)\n  at .*test_wrappers.py:\d+"):
        dhlo.compile(exported)


def test_every_operator_over_graphs_is_decided() -> None:
    """Those of this PyTorch that aren't compiled are refused, whatever their arguments."""
    for module in pkgutil.iter_modules(torch._higher_order_ops.__path__):
        importlib.import_module(f"torch._higher_order_ops.{module.name}")
    known = {str(op) for op in (*HIGHER_ORDER, *INLINED)}
    operators = torch._ops._higher_order_ops
    assert {"wrap_with_autocast", "cond", "flex_attention"} <= set(operators)
    assert not known & set(REFUSED)
    for name, op in operators.items():
        graph = torch.fx.Graph()
        graph.output(graph.call_function(op, (None,) * 9))  # of some, torch names certain arguments in the code that it writes
        if name not in known:
            problems = list(unknown_ops(torch.fx.GraphModule(torch.nn.Module(), graph), Decompositions()))
            assert len(problems) == 1 and name in problems[0][0]
