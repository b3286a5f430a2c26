"""Recognises groups that differ only in which buffers they touch and what their sizes are called: each kind is lowered once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import sympy

from dhlo.codegen.elementwise.emit import Slot
from dhlo.ir.dialect import Op
from dhlo.ir.handles import Value
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import SYMBOL_NAME, renamed, symbol

__all__ = ["Structure"]

T = TypeVar("T")
_NAMES = ("name_", "symbol", "library", "message")  # attributes that name other things than sizes


class Structure:
    """The shape of a group's body: `key` is equal for groups with the same kernel; `buffers`, `ops` and `symbols` correspond one to
    one."""

    def __init__(self, group: Group) -> None:
        body = list(group.operation.regions[0].blocks[0].operations)
        self.ops = body[:-1]
        self.symbols: dict[str, int] = {}
        local: dict[Value, int] = {}
        outside: dict[Value, int] = {}
        rows: list[object] = [str(group.operation.attributes["anchor"])]

        def add(op: Any) -> None:
            operands: list[object] = []
            for v in op.operands:
                operands.append(local[v] if v in local else (outside.setdefault(v, len(outside)), self._numbered(str(v.type))))
            attrs = tuple(
                (n, str(a) if n in _NAMES else self._numbered(str(a)))
                for n, a in ((n, op.operation.attributes[n]) for n in op.operation.attributes)
            )
            rows.append((op.OPERATION_NAME, attrs, tuple(operands), tuple(self._numbered(str(v.type)) for v in op.results)))
            for region in op.operation.regions:
                arguments = list(region.blocks[0].arguments)
                rows.append(tuple(self._numbered(str(v.type)) for v in arguments))
                local.update((v, len(local) + k) for k, v in enumerate(arguments))
                for inner in region.blocks[0].operations:
                    add(inner)
            for v in op.results:
                local[v] = len(local)

        for op in body:
            add(op)
        self.key = tuple(rows)
        self.buffers = [*outside, *group.results]

    def _numbered(self, text: str) -> str:
        """Symbols by their order of appearance instead of their names; what kind of symbol it is stays."""
        return SYMBOL_NAME.sub(lambda m: f"{m[1]}#{self.symbols.setdefault(m[0], len(self.symbols))}", text)

    def adopt(self, made: T, made_for: Structure, check_of: Callable[[Op], int]) -> T:
        """What was made for another group of the same structure (dataclasses with kernels' arguments and size expressions, in
        tuples or alone), for this one. `check_of` gives the number of an op's index check."""
        names = {symbol(a): symbol(b) for a, b in zip(made_for.symbols, self.symbols, strict=True) if a != b}
        position = {v: n for n, v in enumerate(made_for.buffers)}

        def slot(s: Slot, lookups: dict[int, Op]) -> Slot:
            kind, what = s
            if kind == "pointer":
                return kind, self.buffers[position[what]]
            if kind == "errors":
                n = next(i for i, op in enumerate(made_for.ops) if op.operation == lookups[what].operation)
                return kind, check_of(self.ops[n])
            return kind, renamed(what, names)

        def of(x: Any) -> Any:
            if isinstance(x, tuple):
                return tuple(map(of, x))
            if isinstance(x, sympy.Basic):
                return renamed(x, names)
            if not dataclasses.is_dataclass(x) or isinstance(x, type):
                return x
            fields = {f.name: of(getattr(x, f.name)) for f in dataclasses.fields(x)}
            if "slots" in fields:
                fields["slots"] = [slot(s, fields["lookups"]) for s in fields["slots"]]
            return dataclasses.replace(x, **fields)

        result: T = of(made)
        return result
