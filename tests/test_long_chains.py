"""Programs whose ops follow each other in long chains compile within Python's own limit of recursion, and run right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dhlo.ir.dialect import build
from dhlo.ir.mlir import ir
from dhlo.ir.ops import compute
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import movement as mv
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.fuse import fuse
from tests.programs import Module, Part, plain, t

LONG = 500


def additions(x: Any, count: int) -> Any:
    """x + x0 + x0 + ..., whose values grow to count * x0."""
    start = x
    for _ in range(count):
        x = build(ew.Add, [x, start]).results[0]
    return x


def pointwise(x: Any) -> list[Any]:
    return [additions(x, LONG)]


def reduced(x: Any) -> list[Any]:
    """A chain before and after a sum of rows."""
    y = additions(x, LONG)
    s = build(compute.Reduce, [y], {"how": "sum", "dims": [1]}).results[0]
    wide = build(mv.Broadcast, [s], {"dims": [0]}, results=[from_mlir(x)]).results[0]
    return [additions(build(ew.Sub, [y, wide]).results[0], LONG // 4), y]


def turned(x: Any) -> list[Any]:
    """Views and arithmetic by turns."""
    for _ in range(150):
        x = build(ew.Neg, [build(mv.Reverse, [x], {"dims": [1]}).results[0]]).results[0]
    return [x]


def joined(x: Any) -> list[Any]:
    """Joins of slices of joins."""
    ty = from_mlir(x)
    for _ in range(60):
        wide = build(mv.Concat, [x, x, x, x, x], {"dim": 1}).results[0]
        x = build(mv.Slice, [wide], {"starts": ["0", "1"], "steps": [1, 1]}, results=[ty]).results[0]
        x = build(ew.Neg, [x]).results[0]
    return [x]


def centred(x: Any, count: int) -> Any:
    """Sums of rows, and what they are taken from, by turns."""
    ty = from_mlir(x)
    for _ in range(count):
        s = build(compute.Reduce, [x], {"how": "sum", "dims": [1]}).results[0]
        x = build(ew.Sub, [x, build(mv.Broadcast, [s], {"dims": [0]}, results=[ty]).results[0]]).results[0]
    return x


@pytest.mark.parametrize("chain", [additions, centred])
def test_fusion_takes_time_in_proportion_to_the_program(chain: Callable[[Any, int], Any]) -> None:
    def calls(count: int) -> int:
        """Of functions, in Python and in C, while a chain of that length is fused."""
        seen = 0

        def see(_frame: object, event: str, _arg: object) -> None:
            nonlocal seen
            seen += event.endswith("call")

        module = Module([Part([(t("f32", "n", "m"), plain)], lambda x: [chain(x, count)])])
        with module.context, ir.Location.unknown():
            sys.setprofile(see)
            try:
                fuse(module.module)
            finally:
                sys.setprofile(None)
        return seen

    calls(10)  # what is kept for types
    assert calls(240) < 5 * calls(60)


@pytest.mark.parametrize("body", [pointwise, reduced, turned, joined])
def test_long_chains(body: Callable[[Any], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(limit: int) -> None:
        raise AssertionError("the limit is the whole process's")

    limit = sys.getrecursionlimit()
    module = Module([Part([(t("f32", "n", "m"), plain)], body)])
    sys.setrecursionlimit(1000)  # Python's own
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "setrecursionlimit", refuse)
            model, _ = module.compile()
    finally:
        sys.setrecursionlimit(limit)
    for n, m in ((1, 1), (3, 17), (5, 40)):
        x = torch.rand(n, m)
        got = model(x)
        for g, w in zip([got] if isinstance(got, torch.Tensor) else got, module.interpret([x]), strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-3)
