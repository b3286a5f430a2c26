"""Writes out the contract: what every call checks of its arguments, and how their sizes give the symbols their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.function import argument_names, argument_type, bodies, filled_sizes, grown_dims, ranges_of, user_names, walk
from dhlo.ir.mlir import ir
from dhlo.ir.ops.control import CONDITION, Assert, Group, Item
from dhlo.ir.ops.host import Assume, Capacity, Check, CheckBuffer, CheckType, Size, Solve
from dhlo.ir.solve import solve_sizes
from dhlo.ir.symbols import FloorDiv, describe, is_static, parse, show, spell, symbol, symbols_of
from dhlo.ir.types import from_mlir

__all__ = ["check_contract"]

At = tuple[int, int]  # number of an argument, dim
_MOST_SIDE = (1 << 31) - 1


def check_contract(module: Any) -> None:
    """Puts the checks of @main's arguments before its first op, and those of numbers that are read where they are read.

    Raises CompileError where no size tells a symbol's value.
    """
    for block in bodies(module)[:1]:
        if any(isinstance(op, CheckType) for op in block.operations):
            continue  # written out before
        contract = _Contract(module, block)
        first = next(iter(block.operations))
        with ir.InsertionPoint(first), ir.Location.unknown():
            contract.arguments()
        contract.first = first
        for op in list(walk(block)):
            if isinstance(op, Item):
                contract.number(op)
            elif isinstance(op, Assert):
                contract.assertion(op)
            contract.images(op)


class _Contract:
    """One function's contract."""

    def __init__(self, module: Any, block: Any) -> None:
        self.block, self.names, self.ranges, self.user_names = block, argument_names(block), ranges_of(module), user_names(module)
        self.types = [argument_type(block, k) for k in range(len(block.arguments))]
        self.bounded: set[sympy.Expr] = set()  # sides of images that are checked with the arguments
        self.first: Any = None  # the op before which arguments are checked
        self.source: dict[str, At] = {}  # symbols that have a value, and where it comes from
        taken = {s for t in self.types for e in t.shape for s in symbols_of(e)}
        self.sizes: dict[At, sympy.Symbol] = {}  # the symbol of each dim's size as given
        for k, t in enumerate(self.types):
            for d in range(t.rank):
                name = f"dim{k}_{d}"
                while name in taken:
                    name += "_"
                self.sizes[k, d] = symbol(name)

    def arguments(self) -> None:
        """Everything about the arguments, in the order in which a call is checked."""
        for k, name in enumerate(self.names):
            build(CheckType, [self.block.arguments[k]], {"input": k, "name_": name})
        dims = [((k, d), e) for k, t in enumerate(self.types) for d, e in enumerate(t.shape)]
        for (k, d), size in self.sizes.items():
            build(Size, [self.block.arguments[k]], {"dim": d, "symbol": size.name})
        for name, i, a, b in solve_sizes([e for _, e in dims]):  # that there is no remainder is checked below
            at = dims[i][0]
            self._define(name, at, self.sizes[at] if a == 1 and b == 0 else FloorDiv(self.sizes[at] - b, a))
        untold = {s for _, e in dims for s in symbols_of(e)} - set(self.source)
        if untold:
            raise CompileError(
                f"sizes {', '.join(sorted(untold))} can't be found from the inputs' shapes",
                hint="give one input a dim of exactly this size",
            )
        for name, at in self.source.items():
            self._range(name, at)
        for at, e in dims:
            if not (e.is_Symbol and self.source.get(e.name) == at):
                self._check("equal", at[0], self._equal_text(at, e), e, self.sizes[at])
        filled = filled_sizes(self.block)
        for k, d in grown_dims(self.block).items():
            self._buffer(k, d, filled[k])

    def _define(self, name: str, at: At, value: sympy.Expr) -> None:
        self.source[name] = at
        build(Solve, [], {"unknown": name, "value": show(value)})

    def _range(self, name: str, at: At) -> None:
        """The range of a symbol that a dim gives: where the dim is a multiple of the symbol and some more, as the dim's range."""
        k, d = at
        lo, hi = self.ranges.get(name, (0, None))
        e, s = self.types[k].shape[d], symbol(name)
        a, b = e.coeff(s, 1), e.coeff(s, 0)
        text = f"'{self.names[k]}' dim {d} ({spell(e, self.user_names)})"
        if e.is_Symbol:  # no size is negative
            self._bounds(k, text, (lo if lo is not None and lo > 0 else None, hi), s)
        elif not (a.is_Integer and a > 0 and b.is_Integer):
            self._bounds(k, f"{self.user_names.get(name, name)}, by {text},", (lo, hi), s)
        else:
            least, most = (None if x is None else int(a * x + b) for x in (lo, hi))
            self._bounds(k, text, (least, most), self.sizes[at])
            low, high = -sympy.oo if lo is None else sympy.Integer(lo), sympy.oo if hi is None else sympy.Integer(hi)
            build(Assume, [], {"of": name, "low": show(low), "high": show(high)})

    def _bounds(self, k: int, text: str, bounds: tuple[int | None, int | None], got: sympy.Symbol) -> None:
        lo, hi = bounds
        if lo is not None:
            self._check("min", k, f"{text} must be at least {lo}", sympy.Integer(lo), got)
        if hi is not None:
            self._check("max", k, f"{text} must be at most {hi}", sympy.Integer(hi), got)

    def _check(self, how: str, k: int, text: str, expected: sympy.Expr, got: sympy.Expr) -> None:
        build(Check, [], {"how": how, "input": k, "text": text, "expected": show(expected), "got": show(got)})

    def _equal_text(self, at: At, e: sympy.Expr) -> str:
        text = f"'{self.names[at[0]]}' dim {at[1]}"
        if is_static(e):
            return f"{text} must be {e}"
        return f"{text} must be {spell(e, self.user_names)}{self._sources(e)}"

    def _sources(self, e: sympy.Basic) -> str:
        """Says which dims the symbols of an expression are."""
        known: Mapping[str, At] = {s: self.source[s] for s in sorted(symbols_of(e)) if s in self.source}
        sizes = {at: spell(self.types[at[0]].shape[at[1]], self.user_names) for at in known.values()}
        parts = [f"{size} = '{self.names[k]}' dim {d}" for (k, d), size in sizes.items()]
        return f", where {', '.join(parts)}" if parts else ""

    def assertion(self, op: Any) -> None:
        """Writes the condition into the message of an assertion that says where."""
        message = attr(op, "message")
        if CONDITION in message:
            condition = parse(attr(op, "condition"))
            text = message.replace(CONDITION, describe(condition, self.user_names)) + self._sources(condition)
            op.operation.attributes["message"] = ir.StringAttr.get(text)

    def _buffer(self, k: int, d: int, filled: sympy.Expr) -> None:
        """The room in a growing argument's buffer, which its strides must be those of."""
        capacity, arg = from_mlir(self.block.arguments[k]).shape[d], self.block.arguments[k]
        build(Capacity, [arg], {"dim": d, "symbol": f"room{k}"})
        build(Solve, [], {"unknown": capacity.name, "value": f"room{k}"})
        text = f"'{self.names[k]}' must be the first part, along dim {d}, of a dense buffer"
        build(CheckBuffer, [arg], {"dim": d, "input": k, "text": text})

    def images(self, op: Any) -> None:
        """Kernels of windows compare rows and columns in 32 bits: larger images are refused, if possible with the arguments."""
        inner = op.regions[0].blocks[0].operations if isinstance(op, Group) else [op]
        windows = [x for x in inner if getattr(x, "kind", None) in (Kind.CONVOLUTION, Kind.WINDOW)]
        sides = {s for x in windows for v in (x.operands[0], x.results[0]) for s in from_mlir(v).shape[2:]} - self.bounded
        for size in sorted(sides, key=str):
            most = self._most(size)
            if most is not None and most <= _MOST_SIDE:
                continue
            known = symbols_of(size) <= set(self.source)
            with ir.InsertionPoint(self.first if known else op.operation), ir.Location.unknown():
                text = f"images have sides of at most {_MOST_SIDE} here, not {spell(size, self.user_names)}"
                self._check("max", -1, text, sympy.Integer(_MOST_SIDE), size)
            self.bounded.update([size] if known else [])

    def _most(self, e: sympy.Expr) -> int | None:
        """A bound of a sum of sizes, where ranges give one at once. The host program leaves out checks that its intervals prove."""
        if is_static(e):
            return int(e)
        if e.is_Symbol:
            return self.ranges.get(e.name, (0, None))[1]
        factor, rest = e.as_coeff_Mul()
        if e.is_Add:
            parts = [self._most(x) for x in e.args]
            return None if None in parts else sum(x for x in parts if x is not None)
        if isinstance(e, FloorDiv) and e.args[1].is_Integer and e.args[1] > 0:
            most = self._most(e.args[0])
            return None if most is None else most // int(e.args[1])
        if e.is_Mul and factor.is_Integer and factor > 0 and not rest.is_Mul:
            most = self._most(rest)
            return None if most is None else int(factor) * most
        return None

    def number(self, op: Any) -> None:
        """The range of the symbol that a number gives, an argument or from elsewhere. Bounds of run-time symbols are assertions,
        and hold from there on."""
        name, v = attr(op, "symbol"), op.operands[0]
        if from_mlir(v).dtype.is_float or name.startswith("u"):
            return
        while (made := defining(v)) is not None and made.kind is Kind.MOVEMENT:
            v = made.operands[0]
        arguments = list(self.block.arguments)
        k = arguments.index(v) if v in arguments else -1
        text = f"'{self.names[k]}'" if k >= 0 else self.user_names.get(name, name)
        with ir.InsertionPoint.after(op.operation), op.location:
            self._bounds(k, text, self.ranges.get(name, (0, None)), symbol(name))
