"""Kernels of ops that stand alone: running combinations, ordering, writing by index; against reference semantics and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dhlo.dialect import build
from dhlo.ops.compute import ArgReduce, Scan
from tests.programs import Draw, Module, Part, anything, plain, t, within

SIZES = [(1, 1), (0, 3), (2, 1), (1, 2), (3, 15), (16, 17), (17, 64), (31, 5), (2, 1031)]
ALL = ("f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "ui8", "i1")
SHAPES = ((["n", "m"], 1), (["n", "m"], 0), (["m", "n", 3], 1))
TOL = {"f32": 1e-5, "f64": 1e-12, "f16": 2e-3, "bf16": 1e-2}


def check(parts: Sequence[Part], sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """Compiles all parts as one module and calls it at many sizes, against the interpreter and eager."""
    module = Module(parts)
    model, _ = module.compile()
    for seed, (n, m) in enumerate(sizes):
        module.check(model, {"n": n, "m": m}, seed)


def few(d: Any, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Many equal values, and both zeros and NaN."""
    x = within(-3 if d.name not in ("ui8", "i1") else 0, 3 if not d.is_bool else 1)(d, shape, g)
    if d.is_float:
        x = x.round()
        x = torch.where(torch.rand(shape, generator=g) < 0.02, torch.full_like(x, float("nan")), x)
        x = torch.where((torch.rand(shape, generator=g) < 0.5) & (x == 0), -x, x)
    return x


def op(cls: Any, attrs: dict[str, Any], shape: Sequence[object], dtype: str, draw: Draw,
       eager: Callable[..., Sequence[torch.Tensor]] | None = None, tol: Any = None, atol: float = 0.0) -> Part:
    def body(x: Any) -> list[Any]:
        return list(build(cls, [x], attrs).results)

    return Part([(t(dtype, *shape), draw)], body, eager, tol, atol, label=f"{cls.OPERATION_NAME} {attrs} {dtype} {list(shape)}")


@pytest.mark.parametrize("how", ["sum", "prod", "max", "min"])
def test_scan(how: str) -> None:
    parts = []
    for d in ALL:
        if d == "i1" and how in ("sum", "prod"):
            continue
        floats = d in ("f32", "f64", "f16", "bf16")
        draw = plain if how == "sum" else within(0.9, 1.1) if how == "prod" and floats else anything if how != "prod" else within(0, 2)
        for shape, dim in SHAPES if d in ("f32", "i64") else SHAPES[:2]:
            parts.append(op(Scan, {"how": how, "dim": dim}, shape, d, draw, tol=TOL if how in ("sum", "prod") else None, atol=1e-10))
    check(parts)


@pytest.mark.parametrize("how", ["max", "min"])
def test_argreduce(how: str) -> None:
    parts = []
    for d in ALL:
        if d == "i1":
            continue
        for shape, dim in SHAPES if d in ("f32", "i64") else SHAPES[:2]:
            for draw in (anything, few):
                parts.append(op(ArgReduce, {"how": how, "dim": dim}, shape, d, draw))
    check(parts, [s for s in SIZES if 0 not in s])
