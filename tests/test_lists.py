"""Ops that take or give many values of types that all differ: branches, loops, groups, functions in C; and their texts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves

import dhlo
from dhlo.errors import CompileError
from dhlo.frontend.registry import LOWERINGS
from dhlo.ir.context import context
from dhlo.ir.dialect import OPS, build, op_class
from dhlo.ir.lists import SHORT, at_width, width_for, width_of
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops.control import Group, Yield
from dhlo.ir.types import TensorType
from dhlo.texts import read_module
from tests.conftest import ROOT

MANY = 60
DTYPES = (torch.float32, torch.int64, torch.bool, torch.float64)


def mixed(x: torch.Tensor, by: float) -> list[torch.Tensor]:
    """Many values of four dtypes and many sizes, no two neighbours of one type."""
    return [(x[:, : k // 4 + 1] * (k + by)).to(DTYPES[k % 4]) for k in range(MANY)]


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: mixed(x, 1.0), lambda x: mixed(x.cos(), -2.0), (x,))


class Loop(torch.nn.Module):
    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> Any:
        def body(i: torch.Tensor, *carried: torch.Tensor) -> Any:
            return i + 1, *(v.logical_not() if v.dtype == torch.bool else v + i.to(v.dtype) for v in carried)

        start = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, *_: i < turns, body, (start, *[v.clone() for v in mixed(x, 0.5)]))


def check(model: Any, module: torch.nn.Module, *args: torch.Tensor) -> None:
    want = tree_leaves(module(*args))
    for g, w in zip(tree_leaves(model(*args)), want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_branch_with_many_results() -> None:
    module = Branch()
    model = dhlo.compile(export(module, (torch.randn(3, 20),), dynamic_shapes=({0: Dim("n")},)))
    for n in (0, 1, 2, 17):
        for sign in (1, -1):
            check(model, module, sign * torch.rand(n, 20))


@pytest.mark.slow
def test_loop_with_many_carried_values() -> None:
    module = Loop()
    model = dhlo.compile(export(module, (torch.randn(3, 20), torch.tensor(2)), dynamic_shapes=({0: Dim("n")}, None)))
    for n, turns in ((1, 0), (2, 1), (5, 3)):
        check(model, module, torch.randn(n, 20), torch.tensor(turns))


# ---------------------------------------------------------------------------------------------------- groups
def copies(count: int) -> str:
    """The text of a group that gives a function's arguments, no two of one type."""
    types = [TensorType.of("f32" if k % 2 else "i64", ["n", k + 1]) for k in range(count)]
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        f = func.FuncOp("main", ([t.mlir() for t in types], [t.mlir() for t in types]))
    block = f.add_entry_block()
    with ir.InsertionPoint(block):
        group = build(Group, [], {"anchor": "loops"}, results=types, regions=1)
        with ir.InsertionPoint(ir.Block.create_at_start(group.operation.regions[0], [])):
            end = build(Yield, list(block.arguments))
        func.ReturnOp(list(group.results))
    assert module.operation.verify()
    assert type(group) is Group and type(end) is Yield
    assert [str(v.type) for v in group.results] == [str(t.mlir()) for t in types]
    return str(module)


@pytest.mark.parametrize("count", [0, 1, SHORT, SHORT + 1, MANY, 500])
def test_group_of_any_length_and_its_text(count: int) -> None:
    with context():
        text = copies(count)
    with context():
        assert str(read_module(text, "f.mlir")) == text
    assert ('"dhlo.group"' in text) == (count <= SHORT)


WIDE = {
    "a width that isn't one": ("dhlo.group_96", "dhlo.group_97", '"dhlo.group_97" is no op of this dialect'),
    "an op without lists": ("dhlo.group_96", "dhlo.exp_96", '"dhlo.exp_96" is no op of this dialect'),
    "more fields than the text has room for": ("dhlo.group_96", "dhlo.group_201326592", "is no op of this dialect"),
    "other segments": ("dhlo.group_96", "dhlo.group_48", "resultSegmentSizes doesn't fit the op"),
    "a result too many": ("resultSegmentSizes = array<i32: 1", "resultSegmentSizes = array<i32: 0", "takes 59 results, not 60"),
    "a yield of other types": ('"dhlo.yield_96"(%arg0, %arg1', '"dhlo.yield_96"(%arg0, %arg0', "expects different type"),
}


@pytest.mark.parametrize("case", WIDE)
def test_wrong_texts_are_refused(case: str) -> None:
    old, new, message = WIDE[case]
    with context():
        text = copies(MANY)
    assert old in text
    with context(), pytest.raises(CompileError, match=message):
        read_module(text.replace(old, new, 1), "f.mlir")


def test_names() -> None:
    assert [width_for(n) for n in (0, 1, 24, 25, 48, 49, 60, 96, 97)] == [24, 24, 24, 48, 48, 96, 96, 96, 192]
    assert all(width_of(at_width("dhlo.group", w)) == ("dhlo.group", w) for w in (24, 48, 96, 24 << 12))
    for name in ("dhlo.group_24", "dhlo.group_048", "dhlo.group_", "dhlo.group_-48", "dhlo.group_72", "group"):
        assert width_of(name) == (name, SHORT)
    assert op_class("dhlo.group_48") is Group and op_class("dhlo.group_49") is None and op_class("dhlo.exp_48") is None
    assert all(op_class(name) is cls for name, cls in OPS.items())


# ---------------------------------------------------------------------------------------------------- functions in C
INPUTS = 40
SOURCE = r"""
#include "dhlo/abi.h"
int32_t dhlo_test_total(const dhlo_tensor* in, dhlo_tensor* out, const dhlo_number* numbers) {
  float* y = out[0].data;
  for (int64_t i = 0; i < out[0].sizes[0]; ++i) {
    y[i] = 0;
    for (int k = 0; k < numbers[0].i; ++k) {
      const int64_t row = i * (k + 1);
      for (int64_t j = row; j <= row + k; ++j)
        y[i] += (k + 1) * (k % 2 ? ((const float*)in[k].data)[j] : (float)((const int64_t*)in[k].data)[j]);
    }
  }
  return 0;
}
"""


@torch.library.custom_op("dhlo_test::total", mutates_args=())
def total(xs: list[torch.Tensor], count: int) -> torch.Tensor:
    return torch.stack([(k + 1) * x.sum(1).to(torch.float32) for k, x in enumerate(xs)]).sum(0)


total.register_fake(lambda xs, count: xs[1].new_empty(xs[1].shape[0]))


class Total(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.dhlo_test.total([(x[:, : k + 1] * 8).to(DTYPES[1 - k % 2]) for k in range(INPUTS)], INPUTS)
        return y


@pytest.fixture
def library(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "total.c").write_text(SOURCE)
    flags = ["-O1", "-fPIC", "-shared", f"-I{ROOT}/runtime/include", "total.c", "-o", "libtotal.so"]
    subprocess.run(["cc", *flags], cwd=tmp_path, check=True)
    before = dict(LOWERINGS)
    yield str(tmp_path / "libtotal.so")
    LOWERINGS.clear()
    LOWERINGS.update(before)


def test_function_of_many_inputs(library: str, tmp_path: Path) -> None:
    dhlo.register_c_op(torch.ops.dhlo_test.total, "dhlo_test_total", library)
    model = dhlo.compile(export(Total(), (torch.randn(3, INPUTS),), dynamic_shapes=({0: Dim("n")},)))
    for n in (0, 1, 2, 17):
        check(model, Total(), torch.randn(n, INPUTS))
    model.save(tmp_path / "total.so")
    check(dhlo.load(tmp_path / "total.so"), Total(), torch.randn(5, INPUTS))


def test_group_with_many_results_runs() -> None:
    class Many(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            s = x.softmax(-1)
            return [(s * k).sum(-1) if k % 2 else (s + k).amax(-1) for k in range(MANY)]

    model = dhlo.compile(export(Many(), (torch.randn(3, 20),), dynamic_shapes=({0: Dim("n"), 1: Dim("m")},)))
    for n, m in ((1, 1), (2, 17), (33, 5)):
        check(model, Many(), torch.randn(n, m))
