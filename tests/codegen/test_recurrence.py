"""Recurrences of packed sequences: what a call refuses, and what shapes of bodies are computed beside each other."""

from __future__ import annotations

import pytest
import torch

from dhlo.errors import ContractError
from dhlo.ir.context import context
from dhlo.ir.dialect import build
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops.recurrence import recurrence
from dhlo.shape_infer.recurrence import independent_dims
from tests.op_cases_recurrence import CASES
from tests.programs import Module, Part, plain, t

_KEEP = [t("f32", "c", 3), t("i32", "b"), t("i32", "b + 1"), t("i32", "b"), t("f32", "n", 3)]


def _running_sum() -> Module:
    from dhlo.ir.ops import elementwise as ew

    def body(s: object, x: object) -> list[object]:
        total = build(ew.Add, [s, x]).results[0]
        return [total, total]

    args = [(x, plain) for x in _KEEP]
    return Module([Part(args, lambda *v: recurrence(v, 1, [t("f32", "n", 3)], body).results)])


def test_what_is_out_of_range_fails_the_call_and_changes_nothing() -> None:
    model, _ = _running_sum().compile()
    states, x = torch.rand(4, 3), torch.rand(5, 3)
    i32 = lambda *n: torch.tensor(n, dtype=torch.int32)
    good = (i32(2, 0), i32(0, 2, 5), i32(9, 3))
    after, known = model(states, *good, x)
    torch.testing.assert_close(known, torch.cat([states[2] + x[:2].cumsum(0), x[2:].cumsum(0)]))
    torch.testing.assert_close(after, torch.stack([known[4], states[1], known[1], states[3]]))
    for cells, starts in (
        (i32(2, 4), good[1]),
        (i32(-1, 0), good[1]),
        (i32(2, -(2**31)), good[1]),
        (good[0], i32(0, 2, 6)),
        (good[0], i32(0, 2, 4)),
        (good[0], i32(1, 2, 5)),
        (good[0], i32(0, 6, 5)),
        (good[0], i32(0, -1, 5)),
        (good[0], i32(0, 2**31 - 1, 5)),
    ):
        with pytest.raises(ContractError, match="dhlo.recurrence"):
            model(states, cells, starts, good[2], x)
        torch.testing.assert_close(model(states, *good, x)[1], known)
    with pytest.raises(ContractError):
        model(states, i32(1), good[1], good[2], x)


def test_dims_that_are_independent() -> None:
    expected = {"selective f32 3": (1, 3), "transposed 5": (1,), "delta 2": (1, 3), "shift f32 4 19 False": (2,), "mixing 11": ()}
    with context():
        module = ir.Module.create()
        for part in CASES["dhlo.recurrence"]:
            name = next((n for n in expected if part.label.startswith(f"recurrence: {n}")), None)
            if name is None:
                continue
            with ir.InsertionPoint(module.body):
                block = func.FuncOp("f", ([x.mlir() for x, _ in part.args], [])).add_entry_block()
            with ir.InsertionPoint(block):
                op = part.body(*block.arguments)[0].owner
            assert independent_dims(op.regions[0]).dims == expected.pop(name), part.label
    assert not expected
