"""Masks that are looked up in constants say what they say by comparing positions, which page-caches and attention know of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch

from dhlo.ir.dialect import attr, build, defining, exprs
from dhlo.ir.function import bodies, requested_pages
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.movement import Broadcast, Full, Iota, Slice, Weight
from dhlo.ir.symbols import show
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.added_masks import hides
from dhlo.passes.cse import erase_dead

__all__ = ["mask_tables"]


def mask_tables(module: Module, weights: Mapping[str, torch.Tensor]) -> None:
    """In programs whose caches shall be pools, part of a constant matrix of bools [..., n, n] that is true up to its diagonal, or
    near it (GPT-Neo), becomes a comparison of rows and columns, and a constant number that hides keys one that passes know."""
    for block in bodies(module):
        if not requested_pages(block):
            continue
        bands = dict[str, int | None]()
        for op in list(block.operations)[:-1]:
            with ir.InsertionPoint(op.operation), op.location:
                made = _number(op, weights) if isinstance(op, Weight) else _part(op, weights, bands)
            if made is not None:
                op.results[0].replace_all_uses_with(made)
        erase_dead(block)


def _number(op: Weight, weights: Mapping[str, torch.Tensor]) -> Any:
    """A constant of one number that hides keys, as it is; None for others."""
    t, x = from_mlir(op.results[0]), weights.get(attr(op, "name_"))
    if x is None or t.rank != 0 or not t.dtype.is_float:
        return None
    y = build(Full, [], {"value": repr(float(x))}, results=[t]).results[0]
    return y if hides(y) else None


def _part(op: Any, weights: Mapping[str, torch.Tensor], bands: dict[str, int | None]) -> Any:
    """Part of a constant that is a band, as a comparison; None for what isn't one, or is there for parts of its own alone."""
    starts = _starts(op) if isinstance(op, Slice) and from_mlir(op.results[0]).dtype.is_bool else None
    if starts is None or all(isinstance(use.owner.operation.opview, Slice) for use in op.results[0].uses):
        return None
    name, (*others, row, column) = starts
    if name not in bands:
        bands[name] = _band(weights[name]) if name in weights else None
    window, t = bands[name], from_mlir(op.results[0])
    if window is None or any(others) or any(s != 1 for s in t.shape[:-2]):
        return None
    rows, columns = _counted(t, t.rank - 2, row), _counted(t, t.rank - 1, column)
    y = build(ew.Le, [columns, rows], results=[t]).results[0]
    if not window:
        return y
    by = build(Full, [], {"value": str(window)}, results=[from_mlir(rows)]).results[0]
    first = build(ew.Sub, [rows, by]).results[0]
    return build(ew.And, [y, build(ew.Gt, [columns, first], results=[t]).results[0]]).results[0]


def _starts(op: Any) -> tuple[str, list[sympy.Expr]] | None:
    """The constant that an op is part of, and where that begins; None if it is none, or has static numbers of rows and columns, or
    leaves some out."""
    if not isinstance(op, Slice) or set(attr(op, "steps")) != {1} or from_mlir(op.results[0]).rank < 2:
        return None
    inner = defining(op.operands[0])
    found = _starts(inner) if isinstance(inner, Slice) else None
    if isinstance(inner, Weight):
        found = attr(inner, "name_"), [sympy.Integer(0)] * from_mlir(op.results[0]).rank
    if found is None:
        return None
    return found[0], [(a + b).expand() for a, b in zip(found[1], exprs(attr(op, "starts")), strict=True)]


def _band(x: torch.Tensor) -> int | None:
    """How many of a row of a matrix [..., n, n] are true, up to the diagonal; 0 if all are; None where others are, too."""
    n = x.shape[-1]
    if x.dtype != torch.bool or x.shape[-2:] != (n, n) or x.numel() != n * n or n == 0:
        return None
    x, all_before = x.reshape(n, n), torch.ones(n, n, dtype=torch.bool).tril()
    window = int(x[-1].sum())
    if window == n:
        return 0 if torch.equal(x, all_before) else None
    return window if window and torch.equal(x, all_before.triu(1 - window)) else None


def _counted(t: TensorType, dim: int, first: sympy.Expr) -> Any:
    """Numbers from `first` on along a dim of t, as i64."""
    line, wide = t.with_shape([t.shape[dim]]).with_dtype("i64"), t.with_dtype("i64")
    x = build(Iota, [], {"dim": 0, "start": "0", "step": "1"}, results=[line]).results[0]
    if first != 0:
        x = build(ew.Add, [x, build(Full, [], {"value": show(first)}, results=[line]).results[0]]).results[0]
    return build(Broadcast, [x], {"dims": [dim]}, results=[wide]).results[0]
