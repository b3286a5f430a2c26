"""Bounds of sizes that the user gives (`Options.shapes`), as conditions of the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from dhlo.errors import CompileError
from dhlo.frontend.dims import Dims
from dhlo.frontend.guards import dim_names
from dhlo.ir.symbols import as_expr, describe, symbol
from dhlo.options import Range

__all__ = ["bounded_sizes", "conditions_of", "hints_of"]

Sizes = dict[str, sympy.Expr]


def bounded_sizes(names: Sequence[str], values: Sequence[Any], shapes: Mapping[str, Range]) -> Sizes:
    """The sizes of a program's inputs that keys of `shapes` mean, for those that it has: `names` and examples are the inputs'."""
    return {key: e for key in shapes if (e := _size(key, names, values)) is not None}


def _size(key: str, names: Sequence[str], values: Sequence[Any]) -> sympy.Expr | None:
    """A dim by its name or its symbol, a number by the input's name, or a dim as INPUT.DIM."""
    named = {name: e for e, name in dim_names(list(names), list(values)).items()}
    if key in named:
        return named[key]
    inputs = dict(zip(names, values, strict=True))
    if isinstance(inputs.get(key), torch.SymInt):
        return as_expr(inputs[key])
    base, _, dim = key.rpartition(".")
    value = inputs.get(base)
    if isinstance(value, torch.Tensor) and dim.isascii() and dim.isdecimal() and len(dim) < 4 and int(dim) < value.dim():
        return as_expr(value.shape[int(dim)])
    sizes = [as_expr(n) for v in values if isinstance(v, torch.Tensor) for n in v.shape]
    known = {s.name for e in sizes for s in e.free_symbols}
    return symbol(key) if key in known else None


def conditions_of(sizes: Mapping[str, sympy.Expr], shapes: Mapping[str, Range], dims: Dims) -> list[Any]:
    """The bounds as relations. Raises CompileError where the program doesn't take all that they allow."""
    out: list[Any] = []
    for key, e in sizes.items():
        size, wanted = dims.expr(e), shapes[key]
        low, high = dims.bounds(size)
        if (wanted.min is not None and wanted.min < low) or any(n is not None and n > high for n in (wanted.min, wanted.max)):
            takes = str(size) if size.is_number else f"{low} to {high}" if high.is_Integer else f"{low} or more"
            asked = f"{low if wanted.min is None else wanted.min} to {high if wanted.max is None else wanted.max}"
            raise CompileError(f"shapes: the program takes '{key}' of {takes}, not of {asked}", hint="export it with wider bounds")
        if wanted.min is not None and wanted.min == wanted.max:
            out.append(sympy.Eq(e, wanted.min))
            continue
        out += [e >= wanted.min] if wanted.min is not None else []
        out += [e <= wanted.max] if wanted.max is not None else []
    return [c for c in out if c != sympy.true]


def hints_of(sizes: Mapping[str, sympy.Expr], shapes: Mapping[str, Range], dims: Dims, names: Mapping[str, str]) -> dict[str, int]:
    """Usual values of symbols, by their own names; `names` are the user's. Raises CompileError where a size can't be what is said
    to be usual."""
    hints: dict[str, int] = {}
    for key, e in sizes.items():
        size, usual = dims.expr(e), shapes[key].opt
        if usual is None or size == usual:
            continue
        free = sorted(size.free_symbols, key=str)
        factor = size.coeff(free[0], 1) if len(free) == 1 else sympy.Integer(0)
        rest = sympy.expand(size - factor * free[0]) if free else size
        value = (usual - rest) / factor if factor != 0 and not rest.free_symbols else sympy.nan
        low, high = dims.bounds(free[0]) if free else (0, 0)
        if not value.is_Integer or not low <= value <= high or hints.get(free[0].name, value) != value:
            raise CompileError(f"shapes: '{key}' is {describe(size, names)}, which can't be {usual}")
        hints[free[0].name] = int(value)
    return hints
