"""One host program for several levels: what their host programs have in common, given what depends on the level in a table.

The host programs of levels are the same arithmetic, checks and launches, with other kernels and other numbers: lanes, tiles, shares
of caches. Where they differ in nothing but constants and addresses, they are one function with one more argument, an array of what
differs; each level keeps a function that fills it. So nothing that a level computes changes, whatever its families wrote. Where
they differ in structure, as where one target's kernels choose among other variants, each level has its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dhlo.codegen.host.program import HOST_PROGRAM, HostProgram
from dhlo.codegen.kernel_ir.builder import I32, I64, PTR, Fn, KernelModule, Linkage, Symbol
from dhlo.codegen.target import Target

__all__ = ["share_host_program"]

_CONSTANT = re.compile(r"\s*(%\w+) = arith\.constant (\S+)(?: : (\S+))?$")
_ADDRESS = re.compile(r"\s*(%\w+) = llvm\.mlir\.addressof @(\S+) : !llvm\.ptr$")
_INDEX = re.compile(r"(llvm\.getelementptr %\w+)\[(-?\d+)\] : \(!llvm\.ptr\) ->")
_NAME = re.compile(r"%\w+")

_Value = int | str
"""What a program has at a place where others may have something else: an i64, or the symbol whose address it is."""


def share_host_program(programs: Sequence[HostProgram]) -> tuple[KernelModule, Target] | None:
    """The host program of all levels in a module of its own, and the target that it is to be compiled for; `programs` then call it.
    None, and nothing is changed, where they differ in more than constants and addresses, or no level's features are a part of all
    others'."""
    targets = [p.module.target for p in programs]
    least = next((t for t in targets if all(set(t.features) <= set(other.features) for other in targets)), None)
    if len(programs) < 2 or least is None:
        return None
    texts = [_Text(p.module.functions[p.fn.name].body) for p in programs]
    table = _Table()
    lines = _merged(texts, table)
    if lines is None:
        return None
    uses = programs[0].module.functions[programs[0].fn.name].uses
    shared = KernelModule(least)
    for name in sorted(uses):
        if (known := programs[0].module.functions.get(name)) is not None and known.linkage is Linkage.DECLARED:
            shared.functions[name] = known
    signature = f"@{HOST_PROGRAM}(%call: {PTR}, %inputs: {PTR}, %level: {PTR}) -> {I32}"
    declaration = f"@{HOST_PROGRAM}({PTR}, {PTR}, {PTR}) -> {I32}"
    body = "\n".join([*table.loads(), *lines])
    shared.functions[HOST_PROGRAM] = Symbol("llvm.func", f"{signature} {{\n{body}\n}}", declaration, Linkage.EXPORTED)
    for n, program in enumerate(programs):
        _call_shared(program, [row[n] for row in table.rows])
    return shared, least


@dataclass(frozen=True)
class _Line:
    """A line as it is written, and with what it means: `shape` tells lines apart that do different things, its values by turns
    are those of `values`."""

    text: str
    shape: str
    values: tuple[_Value, ...]


class _Text:
    """The lines of a host program less its constants, names numbered as they come."""

    def __init__(self, body: str) -> None:
        _, *lines, _ = body.split("\n")
        found = [m for line in lines if (m := _CONSTANT.match(line)) is not None]
        self.constants = {m[1]: int(m[2]) for m in found if m[3] == I64}
        self.plain = [line for line in lines if (m := _CONSTANT.match(line)) is not None and m[3] != I64]
        others = {m[1]: f"{m[2]} : {m[3]}" for m in found if m[3] != I64}
        self._names: dict[str, str] = {}
        self._fixed = others
        self.lines = [self._line(line) for line in lines if _CONSTANT.match(line) is None]

    def _line(self, line: str) -> _Line:
        values: list[_Value] = []
        if (m := _ADDRESS.match(line)) is not None:
            return _Line(line, f"{self._name(m[1])} = address", (m[2],))
        if (m := _INDEX.search(line)) is not None:
            values.append(int(m[2]))

        def known(m: re.Match[str]) -> str:
            if m[0] in self.constants:
                values.append(self.constants[m[0]])
                return "constant"
            return self._fixed.get(m[0]) or self._name(m[0])

        return _Line(line, _NAME.sub(known, _INDEX.sub(r"\1[index] : ->", line)), tuple(values))

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"%{len(self._names)}")


class _Table:
    """What depends on the level: a row for each place or number, with a value for each level."""

    def __init__(self) -> None:
        self.rows: list[tuple[_Value, ...]] = []
        self._places: dict[tuple[_Value, ...], int] = {}

    def place(self, row: tuple[_Value, ...]) -> int:
        if row not in self._places:
            self._places[row] = len(self.rows)
            self.rows.append(row)
        return self._places[row]

    def loads(self) -> list[str]:
        """Lines that load the numbers; addresses are loaded where they are used."""
        out: list[str] = []
        for i, row in enumerate(self.rows):
            if isinstance(row[0], int):
                out += _load(f"%level_{i}", i, I64)
        return out


def _load(name: str, place: int, ty: str) -> list[str]:
    """Lines that load an entry of the table."""
    at = f"{name}_at" if name.startswith("%level") else f"%level_at_{name[1:]}"
    return [
        f"  {at} = llvm.getelementptr %level[{place}] : ({PTR}) -> {PTR}, {I64}",
        f"  {name} = llvm.load {at} {{alignment = 8 : i64}} : {PTR} -> {ty}",
    ]


def _merged(texts: Sequence[_Text], table: _Table) -> list[str] | None:
    """The lines of the first program with loads from the table where the others have something else; None where they differ in
    more than that."""
    first = texts[0]
    if len({len(t.lines) for t in texts}) > 1:
        return None
    constants = {value: name for name, value in first.constants.items()}
    out = [*first.plain, *(f"  {name} = arith.constant {value} : {I64}" for value, name in constants.items())]
    for same in zip(*(t.lines for t in texts), strict=True):
        if len({line.shape for line in same}) > 1:
            return None
        rows = list(zip(*(line.values for line in same), strict=True))
        if all(len(set(row)) == 1 for row in rows):
            out.append(same[0].text)
            continue
        lines = _with_table(same[0], rows, first, table)
        if lines is None:
            return None
        out += lines
    return out


def _with_table(line: _Line, rows: Sequence[tuple[_Value, ...]], text: _Text, table: _Table) -> list[str] | None:
    """A line whose values differ between levels."""
    if (m := _ADDRESS.match(line.text)) is not None:
        return _load(m[1], table.place(rows[0]), PTR)
    if "llvm.alloca" in line.text:  # the stack's layout is fixed
        return None
    rest, written = list(rows), line.text
    if _INDEX.search(written) is not None:
        row = rest.pop(0)
        if len(set(row)) > 1:
            written = _INDEX.sub(rf"\1[%level_{table.place(row)}] : ({PTR}, {I64}) ->", written)

    def known(m: re.Match[str]) -> str:
        if m[0] not in text.constants:
            return m[0]
        row = rest.pop(0)
        return m[0] if len(set(row)) == 1 else f"%level_{table.place(row)}"

    return [_NAME.sub(known, written)]


def _call_shared(program: HostProgram, values: Sequence[_Value]) -> None:
    """Makes a level's host program fill the table and call the one of all levels."""
    module, name = program.module, program.fn.name
    del module.functions[name]
    module.declare(HOST_PROGRAM, [PTR, PTR, PTR], I32)
    fn = Fn(module, name, [("call", PTR), ("inputs", PTR)], I32, internal=False)
    table = fn.alloca(max(1, len(values)), I64, 8)
    for i, value in enumerate(values):
        x = fn.i64(value) if isinstance(value, int) else fn.address_of(value.removesuffix(f".{module.target.tag}"))
        fn.store(x, fn.gep(table, i, I64), 8)
    fn.ret(fn.call(HOST_PROGRAM, [*fn.args, table], I32))
    fn.done()
