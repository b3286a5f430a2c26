"""Shapes on the command line: `name=2x7`, sizes of symbols, and the inputs that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dhlo.errors import CompileError, ContractError
from dhlo.ir.symbols import evaluate, parse, symbols_of
from dhlo.options import Range

if TYPE_CHECKING:
    from dhlo._runtime import Value

__all__ = ["assignments", "complete_shapes", "is_size", "parse_bounds", "parse_shape"]

Shape = tuple[int, ...]
MOST_ELEMENTS = 1 << 48  # along a dim


def assignments(texts: Sequence[str], inputs: Sequence[Value]) -> dict[str, str]:
    """`name=value` texts as a mapping; a lone value is the only input's. Raises ContractError on anything else."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            if len(inputs) != 1:
                raise ContractError(f"expected NAME=VALUE, got '{text}'; inputs: {_names(inputs)}")
            name, value = inputs[0]["name"], text
        if name in out:
            raise ContractError(f"'{name}' is given twice")
        out[name] = value
    return out


def parse_shape(text: str) -> Shape:
    """`2x7` as (2, 7); `scalar` as (). Raises ContractError on anything else."""
    if text == "scalar":
        return ()
    parts = text.split("x")
    if not all(map(is_size, parts)):
        raise ContractError(f"'{text[:80]}' is not a shape: sizes below 2^48 joined by x, e.g. 2x7, or 'scalar'")
    return tuple(map(int, parts))


def is_size(text: str) -> bool:
    """Is the text a size that a dim can have?"""
    return text.isascii() and text.isdecimal() and len(text) < 16 and int(text) < MOST_ELEMENTS


def parse_bounds(texts: Sequence[str]) -> dict[str, Range]:
    """`batch=1:8:64` as {"batch": Range(1, 8, 64)}, `batch=1:64` without a usual size; what is left out has no bound.

    Raises CompileError on anything else.
    """
    out: dict[str, Range] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        parts = value.split(":")
        if not equals or not name or len(parts) not in (2, 3) or not all(p == "" or is_size(p) for p in parts):
            raise CompileError(f"'{text[:80]}' is not a range: NAME=MIN:MAX or NAME=MIN:OPT:MAX")
        if name in out:
            raise CompileError(f"'{name}' is bounded twice")
        low, *usual, high = (int(p) if p else None for p in parts)
        out[name] = Range(low, usual[0] if usual else None, high)
    return out


def complete_shapes(inputs: Sequence[Value], given: Mapping[str, str], known: Mapping[str, Shape] | None = None) -> list[Shape]:
    """The shape of every input, from shapes of some inputs and sizes of symbols.

    `given` maps an input's name to a shape, or a symbol to a size; `known` has shapes of inputs whose data is at hand.
    Raises ContractError where a name is unknown or an input's shape doesn't follow.
    """
    shapes = dict(known or {})
    symbols: dict[str, int] = {}
    by_name = {v["name"]: v for v in inputs}
    free = {s for v in inputs for d in v["dims"] for s in symbols_of(parse(d))}
    for name, text in given.items():
        if name in by_name:
            shapes[name] = parse_shape(text)
        elif name in free and is_size(text):
            symbols[name] = int(text)
        else:
            raise ContractError(
                f"'{text[:80]}' is no size for '{name}'"
                if name in free
                else f"the model has no input or size '{name}'; inputs: {_names(inputs)}"
                + (f"; sizes: {', '.join(sorted(free))}" if free else "")
            )
    for name, shape in shapes.items():
        for d, size in zip(by_name[name]["dims"], shape, strict=False):
            if parse(d).is_Symbol:
                symbols.setdefault(d, size)
    return [shapes[v["name"]] if v["name"] in shapes else _follow(v, symbols) for v in inputs]


def _follow(value: Value, symbols: Mapping[str, int]) -> Shape:
    dims = [parse(d) for d in value["dims"]]
    missing = sorted(set().union(*map(symbols_of, dims)) - set(symbols))
    if missing:
        raise ContractError(
            f"no shape for '{value['name']}' [{', '.join(value['dims'])}]; give it, or {', '.join(missing)}, "
            f"e.g. {value['name']}={'x'.join(d if d.isdecimal() else '2' for d in value['dims'])} or {missing[0]}=2"
        )
    try:
        shape = tuple(evaluate(d, symbols) for d in dims)
    except (ArithmeticError, TypeError, ValueError) as e:
        raise ContractError(f"no shape for '{value['name']}' [{', '.join(value['dims'])}] follows: {e}") from None
    if not all(0 <= n < MOST_ELEMENTS for n in shape):
        raise ContractError(f"'{value['name']}' would be {'x'.join(map(str, shape))}, which is no shape")
    return shape


def _names(inputs: Sequence[Value]) -> str:
    return ", ".join(v["name"] for v in inputs)
