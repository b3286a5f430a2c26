"""Modules from text: what may stand in one, before MLIR's parser sees it; and what passes rely on beyond what each op verifies."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from dhlo.errors import CompileError
from dhlo.ir import mlir
from dhlo.ir.dialect import OPS, is_size, op_class, operand_types, result_types, same
from dhlo.ir.handles import Block, Module
from dhlo.ir.lists import define, width_of
from dhlo.ir.mlir import ir
from dhlo.ir.ops.control import Cond, Group, While, Yield
from dhlo.ir.ops.recurrence import Recurrence
from dhlo.ir.paging import paging_of
from dhlo.ir.types import DTYPES, TensorType, from_mlir
from dhlo.shape_infer.verify import misused_symbol

__all__ = ["MOST_CHARACTERS", "read_module"]

MOST_CHARACTERS = 1 << 28
_DEPTH = 200  # of brackets, and of locations in locations
_DIGITS = 40
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<hex>0x[0-9A-Fa-f]{1,16}\b)|(?P<dims>(?:(?:\d+|\?)x)+)|(?P<arrow>->)
    |(?P<number>\d+(?:\.\d*(?:[eE][+-]?\d+)?)?)|(?P<name>[%@^!#]?[A-Za-z_][\w.$]*|[%^#]\d+)|(?P<mark>[()\[\]{}<>,:=?+-])""",
    re.VERBOSE | re.ASCII,
)
_UPSTREAM = {"builtin.module", "func.func", "func.return"}
_PAIRS = {")": "(", "]": "[", "}": "{", ">": "<"}
_WORDS = {
    "module",
    "func.func",
    "func.return",
    "return",
    "attributes",
    "private",
    "public",
    "tensor",
    "complex",
    "array",
    "loc",
    "unknown",
    "true",
    "false",
    "i32",
    "index",
    "none",
    *DTYPES,
}


def read_module(text: str, name: str) -> Any:
    """The verified module of a text in the current context; `name` is the text's in messages. Raises CompileError, with line and
    column, for what isn't a module of this dialect."""
    _Scan(text, name).run()
    try:
        module = ir.Module.parse(text)
    except mlir.ir.MLIRError as e:
        raise CompileError(str(e).replace('"-":', f"{name}:")) from None
    _Verifier(name).module(module)
    return module


class _Scan:
    """Refuses what MLIR's parser or printer can't stand from strangers: deep nesting, endless numbers, attributes and types that
    repeat others so that their text grows without bound. A module of this dialect has few words, so that all others are refused."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.open: list[tuple[str, bool]] = []  # brackets, and whether they are a location's
        self.inside: dict[str, str] = {}  # by alias of a location, the alias in it

    def fail(self, what: str, at: int) -> NoReturn:
        line = self.text.count("\n", 0, at) + 1
        raise CompileError(f"{self.name}:{line}:{at - self.text.rfind(chr(10), 0, at)}: {what}")

    def run(self) -> None:
        if len(self.text) > MOST_CHARACTERS:
            self.fail(f"a text of more than {MOST_CHARACTERS} characters", 0)
        at, before, alias = 0, "", ""
        while at < len(self.text):
            m = _TOKEN.match(self.text, at)
            if m is None:
                self.fail(f"unexpected {self.text[at]!r}", at)
            kind, token = m.lastgroup, m.group()
            if kind == "name":
                follows = self._follows(m.end())
                if not self.open and token != "loc":  # a definition begins, or something else does
                    alias = token if token[0] == "#" and follows else ""
                self._name(token, at, follows, alias)
            elif kind == "string" and self.text[m.end() : m.end() + 1] == "(" and not any(here for _, here in self.open):
                self._op(token[1:-1], at)
            elif kind == "mark":
                alias = "" if token == "}" else alias
                self._bracket(token, at, before)
            elif kind in ("number", "dims") and max(map(len, re.split(r"\D", token))) > _DIGITS:
                self.fail("a number that is too long", at)
            if kind != "blank":
                before = token
            at = m.end()
        for start in self.inside:
            depth, name = 0, start
            while name in self.inside:
                name, depth = self.inside[name], depth + 1
                if depth > _DEPTH:
                    self.fail(f"the location {start} is nested too deeply", 0)

    def _op(self, name: str, at: int) -> None:
        """An op's name. One for long lists, of which at least the segment sizes are in the text, becomes known to the parser."""
        if name in OPS or name in _UPSTREAM:
            return
        cls, width = op_class(name), width_of(name)[1]
        if cls is None or 3 * width > len(self.text):
            self.fail(f'"{name}" is no op of this dialect', at)
        define(cls, width)

    def _follows(self, at: int) -> bool:
        """Does `=` come next?"""
        rest = re.compile(r"\s*=").match(self.text, at)
        return rest is not None

    def _name(self, token: str, at: int, defined: bool, alias: str) -> None:
        first, located = token[0], any(here for _, here in self.open)
        if first == "#" and token[1].isdigit():  # a result by number: %0#1
            return
        if first == "#" and token != "#dhlo.shape" and not defined:
            if not located:
                self.fail(f"{token}: only locations may be aliases", at)
            if alias:
                self.inside[alias] = token
        elif first == "!" and "." in token or first == "#" and "." in token and token != "#dhlo.shape":
            self.fail(f"unexpected {token!r}", at)
        elif first not in "%@^!#" and token not in _WORDS and not defined:
            self.fail(f"{token!r} has no place in a module of this dialect", at)

    def _bracket(self, token: str, at: int, before: str) -> None:
        if token in "([{<":
            self.open.append((token, before == "loc"))
            if len(self.open) > _DEPTH:
                self.fail("nested too deeply", at)
        elif token in _PAIRS and self.open and self.open[-1][0] == _PAIRS[token]:
            self.open.pop()


class _Verifier:
    """What passes rely on: functions of one block, made of this dialect's ops over tensors; regions that take and give what their
    op says; symbols that have their value before it is used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fail(self, op: Any, what: str) -> NoReturn:
        place = str(op.location).removeprefix("loc(").removesuffix(")").replace('"-":', f"{self.name}:")
        raise CompileError(f"{place}: {op.name}: {what}" if place != "unknown" else f"{self.name}: {op.name}: {what}")

    def module(self, module: Module) -> None:
        self._ranges(module.operation)
        self._names(module.operation)
        for f in module.body.operations:
            op = f.operation
            if op.name != "func.func" or len(op.regions[0].blocks) != 1:
                self.fail(op, "a module holds functions, each of one block")
            block = op.regions[0].blocks[0]
            self._block(op, block, "func.return")
            self._marks(op, block)
        misuse = misused_symbol(module)
        if misuse is not None:
            self.fail(misuse.op.operation, misuse.text)

    def _types(self, op: Any, values: Any) -> list[TensorType]:
        try:
            return [from_mlir(v) for v in values]
        except ValueError as e:
            self.fail(op, str(e))

    def _is_size(self, op: Any, a: Any) -> bool:
        try:
            return is_size(a)
        except ValueError as e:
            self.fail(op, str(e))

    def _block(self, owner: Any, block: Block, end: str) -> None:
        self._types(owner, block.arguments)
        ops = [op.operation for op in block.operations]
        if not ops or width_of(ops[-1].name)[0] != end:
            self.fail(owner, f"a block ends in {end}")
        for op in ops[:-1]:
            if op_class(op.name) in (None, Yield):
                self.fail(op, "this op has no place here")
            self._types(op, op.results)
            for region in op.regions:
                if len(region.blocks) != 1:
                    self.fail(op, "regions have one block")
                self._block(op, region.blocks[0], "dhlo.yield")
            self._regions(op.opview)

    def _regions(self, op: Any) -> None:
        """Do regions take and give what their op says?"""
        if not isinstance(op, Cond | While | Group | Recurrence):
            return
        operands, results = operand_types(op), result_types(op)
        takes: list[list[TensorType]] = [[]] * len(op.regions)
        gives = [results] * len(op.regions)
        if isinstance(op, While):
            takes, gives = [operands, operands], [[TensorType.of("i1", [])], results]
        elif isinstance(op, Recurrence):
            takes, gives = [op.takes()], [op.gives()]
        for region, want, give in zip(op.regions, takes, gives, strict=True):
            block = region.blocks[0]
            given = operand_types(list(block.operations)[-1])
            if isinstance(op, While) and give is gives[0] and len(given) == 1:
                given = [t.with_shape([]) for t in given if all(s == 1 for s in t.shape)]
            for what, have, expected in (("takes", [from_mlir(a) for a in block.arguments], want), ("gives", given, give)):
                if len(have) != len(expected) or not all(map(same, have, expected)):
                    self.fail(op.operation, f"a region {what} {_list(have)}, not {_list(expected)}")

    def _ranges(self, module: Any) -> None:
        """Are the ranges of symbols pairs of numbers?"""
        if "dhlo.symbols" not in module.attributes:
            return
        ranges = module.attributes["dhlo.symbols"]
        good = isinstance(ranges, ir.DictAttr) and all(
            isinstance(r.attr, ir.ArrayAttr) and len(r.attr) == 2 and all(isinstance(n, ir.IntegerAttr) for n in r.attr)
            for r in ranges
        )
        if not good:
            self.fail(module, "dhlo.symbols gives each symbol a range [low, high]")
        hints = module.attributes["dhlo.hints"] if "dhlo.hints" in module.attributes else ir.DictAttr.get({})
        if not isinstance(hints, ir.DictAttr) or not all(isinstance(n.attr, ir.IntegerAttr) and n.attr.value >= 0 for n in hints):
            self.fail(module, "dhlo.hints gives each symbol a size")

    def _names(self, module: Any) -> None:
        """Are the user's names of symbols texts?"""
        names = module.attributes["dhlo.names"] if "dhlo.names" in module.attributes else ir.DictAttr.get({})
        if not isinstance(names, ir.DictAttr) or not all(isinstance(n.attr, ir.StringAttr) for n in names):
            self.fail(module, "dhlo.names gives each symbol a name")

    def _marks(self, f: Any, block: Block) -> None:
        """Do the marks of results name states, or arguments of the results' types?"""
        results = self._types(f, list(block.operations)[-1].operands)
        arguments = self._types(f, block.arguments)
        self._growth(f, arguments)
        try:
            paging_of(block)
        except (LookupError, TypeError, ValueError) as e:
            self.fail(f, f"dhlo.blocks and dhlo.paged say what arguments a program over pools of blocks has ({e!r})")
        if "res_attrs" not in f.attributes:
            return
        for t, marks in zip(results, map(ir.DictAttr, f.attributes["res_attrs"]), strict=True):
            if "dhlo.state" in marks and not isinstance(marks["dhlo.state"], ir.StringAttr):
                self.fail(f, "dhlo.state names a state")
            if "dhlo.argument" in marks:
                n = marks["dhlo.argument"]
                if not isinstance(n, ir.IntegerAttr) or not 0 <= n.value < len(arguments) or not same(t, arguments[n.value]):
                    self.fail(f, "dhlo.argument gives the number of an argument of the result's type")
            if "dhlo.size_of" in marks and not isinstance(marks["dhlo.size_of"], ir.IntegerAttr):
                self.fail(f, "dhlo.size_of gives the number of an argument")

    def _growth(self, f: Any, arguments: list[TensorType]) -> None:
        """Do the marks of arguments name a dim along which they grow, behind their first, and a size; and are names texts?"""
        for t, marks in zip(
            arguments, map(ir.DictAttr, f.attributes["arg_attrs"] if "arg_attrs" in f.attributes else ()), strict=False
        ):
            if "dhlo.name" in marks and not isinstance(marks["dhlo.name"], ir.StringAttr):
                self.fail(f, "dhlo.name is a text")
            if "dhlo.grow" in marks and not isinstance(marks["dhlo.grow"], ir.IntegerAttr):
                self.fail(f, "dhlo.grow gives the number of a dim")
            if "dhlo.page" in marks and not isinstance(marks["dhlo.page"], ir.IntegerAttr):
                self.fail(f, "dhlo.page gives the number of a block's slots")
            if "dhlo.grows" in marks or "dhlo.filled" in marks:
                d, filled = (marks[n] if n in marks else None for n in ("dhlo.grows", "dhlo.filled"))
                if not isinstance(d, ir.IntegerAttr) or not 0 < d.value < t.rank or not self._is_size(f, filled):
                    self.fail(f, "dhlo.grows gives the number of a dim, and dhlo.filled how much of it is filled")


def _list(types: list[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"
