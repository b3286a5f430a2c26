"""Shapes that `dhlo bench` measures at: as the user says, or made up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dhlo.commands.run import check_memory
from dhlo.commands.shapes import MOST_ELEMENTS, assignments, complete_shapes, is_size
from dhlo.errors import ContractError
from dhlo.ir.symbols import parse, symbols_of

if TYPE_CHECKING:
    from dhlo._runtime import Value

__all__ = ["Point", "Sizes", "chosen_points", "parse_range", "usual_points"]

Shapes = list[tuple[int, ...]]

MOST_POINTS = 200
_USUAL = 8  # a size of which nothing is known


@dataclass(frozen=True)
class Point:
    """One shape of every tensor input. `size` is the value of the size that is varied, if one is."""

    label: str
    shapes: Shapes
    size: int | None


@dataclass(frozen=True)
class Sizes:
    """What is known of a model's sizes: bounds by name, usual sizes, those of the example that a program was exported with, and
    whether the model takes inputs of given shapes."""

    bounds: Mapping[str, tuple[int | None, int | None]]
    usual: Mapping[str, int]
    example: Mapping[str, int]
    takes: Callable[[Shapes], bool]


def parse_range(text: str) -> tuple[str, list[int]]:
    """`s0=1:512:64` as a name and sizes from 1 to at most 512 in steps of 64 (by default 1), `s0=1:512:x2` by factors.

    Raises ContractError on anything else.
    """
    name, equals, value = text.partition("=")
    low, *rest = value.split(":")
    if not equals or not 1 <= len(rest) <= 2 or not all(map(is_size, (low, rest[0]))):
        raise ContractError(f"'{text}' is not a range: NAME=LOW:HIGH, NAME=LOW:HIGH:STEP or NAME=LOW:HIGH:xFACTOR")
    step = rest[1] if len(rest) == 2 else "1"
    factor = step.startswith("x")
    amount = step.removeprefix("x")
    if not is_size(amount) or int(amount) < (2 if factor else 1) or (factor and int(low) == 0):
        raise ContractError(f"'{text}': a range advances by a positive step, or from 1 on by a factor of at least 2")
    sizes: list[int] = []
    n = int(low)
    while n <= int(rest[0]) and len(sizes) <= MOST_POINTS:
        sizes.append(n)
        n = n * int(amount) if factor else n + int(amount)
    return name, sizes


def _symbol(name: str, values: Sequence[Value]) -> str:
    """The size symbol that `name` means: itself, or `input.dim`."""
    base, dot, dim = name.rpartition(".")
    for v in values:
        if dot and v["name"] == base and is_size(dim) and int(dim) < len(v["dims"]):
            symbol = v["dims"][int(dim)]
            if not parse(symbol).is_Symbol:
                raise ContractError(f"'{name}' is {symbol}, not a size of its own")
            return symbol
    return name


def chosen_points(values: Sequence[Value], shapes: Sequence[str], ranges: Sequence[str]) -> list[Point]:
    """Every shape combined with every size of the ranges. Raises ContractError where they don't fit the model."""
    parsed = [parse_range(r) for r in ranges]
    count = len(shapes or [""]) * math.prod(len(sizes) for _, sizes in parsed)
    if not 1 <= count <= MOST_POINTS:
        raise ContractError(f"{count} shapes; from 1 to {MOST_POINTS} can be measured together")
    out = []
    for text in shapes or [""]:
        fixed = assignments([t for t in text.split(",") if t], values)
        for sizes in itertools.product(*(s for _, s in parsed)):
            varied = {_symbol(n, values): str(size) for (n, _), size in zip(parsed, sizes, strict=True)}
            full = complete_shapes(values, {_symbol(n, values): t for n, t in fixed.items()} | varied)
            dims = [x for v, shape in zip(values, full, strict=True) for x in zip(v["dims"], shape, strict=False)]
            if any(varied.get(d, str(n)) != str(n) for d, n in dims):
                raise ContractError(
                    f"'{text}' fixes a size that --range varies; give the others alone, e.g. {values[0]['name']}.0=2"
                )
            label = [t for t in (text, *(f"{n}={size}" for (n, _), size in zip(parsed, sizes, strict=True))) if t]
            size = sizes[0] if len(parsed) == 1 else None
            _check(values, full)
            out.append(Point(", ".join(label) or "its only shape", full, size))
    return out


def usual_points(values: Sequence[Value], known: Sizes) -> list[Point]:
    """Shapes that nobody has given: the least, the usual and four times those sizes, as far as the model takes them. Raises
    ContractError where it takes none of them."""
    names = list(dict.fromkeys(s for v in values for d in v["dims"] for s in sorted(symbols_of(parse(d)))))
    if not names:
        return chosen_points(values, [], [])
    out: dict[tuple[int, ...], Point] = {}
    usual = {n: known.usual.get(n, known.example.get(n, _USUAL)) for n in names}
    for wanted in (dict.fromkeys(names, 1), usual, {n: 4 * size for n, size in usual.items()}):
        sizes = {n: _within(size, known.bounds.get(n, (0, None))) for n, size in wanted.items()}
        try:
            full = complete_shapes(values, {n: str(size) for n, size in sizes.items()})
            _check(values, full)
        except ContractError:
            continue
        if known.takes(full):
            size = next(iter(sizes.values())) if len(sizes) == 1 else None
            out.setdefault(tuple(sizes.values()), Point(", ".join(f"{n}={x}" for n, x in sizes.items()), full, size))
    if not out:
        raise ContractError("the model takes none of the shapes that were made up; give some by --shape or --range")
    return list(out.values())


def _within(size: int, bounds: tuple[int | None, int | None]) -> int:
    low, high = bounds
    return max(low or 0, min(size, MOST_ELEMENTS - 1 if high is None else high))


def _check(values: Sequence[Value], shapes: Shapes) -> None:
    check_memory([(shape, getattr(torch, v["dtype"])) for v, shape in zip(values, shapes, strict=True)])
