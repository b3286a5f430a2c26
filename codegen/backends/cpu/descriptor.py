"""The `dhlo_model_v1` descriptor as LLVM IR text, appended to the translated module."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dhlo.codegen.families.kernel import Checks
from dhlo.codegen.kernel_ir import abi
from dhlo.ir.adapters import Adapters
from dhlo.ir.paging import Paging
from dhlo.ir.symbols import is_static, spell
from dhlo.ir.types import TensorType

__all__ = ["Code", "Collective", "Descriptor", "Entry", "State"]

_NO_MIN, _NO_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class Code:
    """An entry as code for one target: `run` is its host program's symbol, `launches` the kernels' names by launch site."""

    run: str
    launches: Sequence[str]
    num_segments: int


@dataclass(frozen=True)
class State:
    """A state's place in the block of states, that of its initial content among the constants, and its type."""

    name: str
    offset: int
    bytes: int
    init_offset: int
    dtype: int  # code
    sizes: Sequence[int]


@dataclass(frozen=True)
class Entry:
    """What the runtime is told of a program; see runtime/include/dhlo/abi.h."""

    name: str
    metadata: dict[str, Any]
    code: Sequence[Code]  # by level
    inputs: Sequence[tuple[str, TensorType]]
    outputs: Sequence[tuple[str, TensorType]]
    checks: Checks
    updated: Sequence[tuple[int, int]] = ()  # arguments that a run writes to, and the dim that grows or -1
    names: Mapping[str, str] = field(default_factory=dict)  # the user's names of symbols
    symbols: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)  # by the user's names: their ranges
    paging: Paging | None = None
    process_groups: Mapping[str, int] = field(default_factory=dict)  # and how many processes each must have; 0: any number
    collectives: Sequence[Collective] = ()


@dataclass(frozen=True)
class Collective:
    """What the processes of a group do together. `kind` and `reduction` are names in abi.py; `reduction` may be "", `root` -1."""

    kind: str
    group: str
    dtype: int  # code
    reduction: str
    root: int
    place: str


@dataclass
class Descriptor:
    """What the runtime is told of a model; see runtime/include/dhlo/abi.h."""

    name: str
    producer: str
    levels: list[tuple[str, str]]  # names and features, comma-separated
    entries: Sequence[Entry]
    constants_bytes: int
    states: Sequence[State] = ()
    state_bytes: int = 0
    _lines: list[str] = field(default_factory=list)

    def text(self, module: str) -> str:
        """Definitions of the descriptor and all that it points to, to be added to the text of an LLVM module; what that doesn't
        define lies in other parts."""
        runs = [code.run for entry in self.entries for code in entry.code]
        defined = set(re.findall(r"^define [^@]*@([\w.]+)\(", module, re.MULTILINE))
        declared = set(re.findall(r"^declare [^@]*@([\w.]+)\(", module, re.MULTILINE))
        self._lines = [f"declare i32 @{run}(ptr, ptr)" for run in runs if run not in defined | declared]
        levels = self._array(
            "levels", "{ ptr, ptr }", [f"{{ ptr {self._string(n)}, ptr {self._string(f)} }}" for n, f in self.levels]
        )
        rows = [self._entry(f"e{n}." if n else "", entry) for n, entry in enumerate(self.entries)]
        entries = self._array("entries", rows[0].partition("} {")[0] + "}", rows)
        states = self._array("states", "{ ptr, i64, i64, i64, i64, i64, ptr }", list(map(self._state, range(len(self.states)))))
        model = self._struct(
            f"i64 {abi.ABI_MAGIC}",
            f"i32 {abi.ABI_VERSION}",
            f"i32 {abi.MODEL_BYTES}",
            f"ptr {self._string(self.name)}",
            f"ptr {self._string(self.producer)}",
            f"i64 {len(self.levels)}",
            f"ptr {levels}",
            f"i64 {len(self.entries)}",
            f"ptr {entries}",
            f"i64 {len(self.states)}",
            f"ptr {states}",
            f"i64 {self.state_bytes}",
            f"i64 {self.constants_bytes}",
        )
        self._lines.append(f"@{abi.ABI_SYMBOL} = constant {model}, align 8")
        return "\n".join(self._lines) + "\n"

    def _state(self, number: int) -> str:
        s = self.states[number]
        sizes = self._array(f"state{number}.sizes", "i64", [f"i64 {n}" for n in s.sizes])
        numbers = ", ".join(f"i64 {n}" for n in (s.offset, s.bytes, s.init_offset, s.dtype, len(s.sizes)))
        return f"{{ ptr {self._string(s.name)}, {numbers}, ptr {sizes} }}"

    def _entry(self, prefix: str, entry: Entry) -> str:
        inputs = self._values(f"{prefix}in", entry.inputs, entry.names)
        outputs = self._values(f"{prefix}out", entry.outputs, entry.names)
        kinds = abi.CHECK_KIND
        checks = self._array(
            f"{prefix}checks",
            "{ i64, i64, ptr }",
            [f"{{ i64 {kinds[k.lower()]}, i64 {i}, ptr {self._string(t)} }}" for k, i, t in entry.checks],
        )
        symbols = [
            f"{{ ptr {self._string(n)}, i64 {_NO_MIN if lo is None else lo}, i64 {_NO_MAX if hi is None else hi} }}"
            for n, (lo, hi) in entry.symbols.items()
        ]
        code = [self._code(f"{prefix}launches{n}", x) for n, x in enumerate(entry.code)]
        groups = [f"{{ ptr {self._string(name)}, i64 {size} }}" for name, size in entry.process_groups.items()]
        collectives = [self._collective(x, list(entry.process_groups)) for x in entry.collectives]
        return self._struct(
            f"ptr {self._string(entry.name)}",
            f"ptr {self._string(json.dumps(entry.metadata))}",
            f"ptr {self._array(f'{prefix}code', '{ ptr, i64, ptr, i64 }', code)}",
            f"i64 {len(entry.inputs)}",
            f"ptr {inputs}",
            f"i64 {len(entry.outputs)}",
            f"ptr {outputs}",
            f"i64 {len(entry.checks)}",
            f"ptr {checks}",
            f"i64 {len(entry.updated)}",
            f"ptr {self._array(f'{prefix}updated', 'i64', [f'i64 {i}' for i, _ in entry.updated])}",
            f"ptr {self._array(f'{prefix}grows', 'i64', [f'i64 {d}' for _, d in entry.updated])}",
            f"i64 {len(symbols)}",
            f"ptr {self._array(f'{prefix}symbols', '{ ptr, i64, i64 }', symbols)}",
            f"ptr {self._paging(prefix, entry.paging)}",
            f"i64 {len(entry.process_groups)}",
            f"ptr {self._array(f'{prefix}process_groups', '{ ptr, i64 }', groups)}",
            f"i64 {len(entry.collectives)}",
            f"ptr {self._array(f'{prefix}collectives', '{ i64, i64, i64, i64, i64, ptr }', collectives)}",
        )

    def _paging(self, prefix: str, paging: Paging | None) -> str:
        if paging is None:
            return "null"
        groups = zip(paging.slots, paging.tables, paging.windows, strict=True)
        value = self._struct(
            f"i64 {paging.block_slots}",
            f"i64 {-1 if paging.positions is None else paging.positions}",
            f"i64 {paging.starts}",
            f"i64 {paging.lengths}",
            f"i64 {len(paging.windows)}",
            f"ptr {self._array(f'{prefix}groups', '{ i64, i64, i64 }', [_numbers(g) for g in groups])}",
            f"i64 {len(paging.pools)}",
            f"ptr {self._array(f'{prefix}pools', '{ i64, i64, i64, i64 }', [_numbers(p) for p in paging.pools])}",
            f"ptr {self._adapters(prefix, paging.adapters)}",
            f"i64 {paging.max_positions}",
            f"i64 {-1 if paging.cells is None else paging.cells}",
            f"i64 {len(paging.states)}",
            f"ptr {self._array(f'{prefix}states', 'i64', [str(k) for k in paging.states])}",
            f"i64 {int(paging.by_order)}",
            f"i64 {-1 if paging.cross_tables is None else paging.cross_tables}",
            f"i64 {-1 if paging.cross_lengths is None else paging.cross_lengths}",
            f"i64 {len(paging.cross)}",
            f"ptr {self._array(f'{prefix}cross', 'i64', [f'i64 {k}' for k in paging.cross])}",
            f"i64 {-1 if paging.hidden is None else paging.hidden}",
        )
        self._lines.append(f"@dhlo.{prefix}paging = private constant {value}, align 8")
        return f"@dhlo.{prefix}paging"

    def _adapters(self, prefix: str, adapters: Adapters | None) -> str:
        if adapters is None:
            return "null"
        rows = [f"{{ ptr {self._string(p.name)}, i64 {p.offset}, i64 {p.inputs}, i64 {p.outputs} }}" for p in adapters.products]
        value = self._struct(
            f"i64 {adapters.chosen}",
            f"i64 {adapters.weights}",
            f"i64 {adapters.rank}",
            f"i64 {len(rows)}",
            f"ptr {self._array(f'{prefix}adapted', '{ ptr, i64, i64, i64 }', rows)}",
        )
        self._lines.append(f"@dhlo.{prefix}adapters = private constant {value}, align 8")
        return f"@dhlo.{prefix}adapters"

    def _collective(self, x: Collective, groups: Sequence[str]) -> str:
        reduction = abi.REDUCTION[x.reduction] if x.reduction else -1
        numbers = _numbers([abi.COLLECTIVE_KIND[x.kind], groups.index(x.group), x.dtype, reduction, x.root])
        return f"{numbers.removesuffix(' }')}, ptr {self._string(x.place)} }}"

    def _code(self, name: str, code: Code) -> str:
        names = [f"ptr {self._string(x)}" for x in code.launches]
        launches = self._array(name, "ptr", names)
        return f"{{ ptr @{code.run}, i64 {len(names)}, ptr {launches}, i64 {code.num_segments} }}"

    @staticmethod
    def _struct(*fields: str) -> str:
        """Type and value of a struct of such fields."""
        return f"{{ {', '.join(f.split()[0] for f in fields)} }} {{ {', '.join(fields)} }}"

    def _string(self, text: str) -> str:
        data = text.encode() + b"\0"
        name = f"@dhlo.str{len(self._lines)}"
        escaped = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
        self._lines.append(f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{escaped}"')
        return name

    def _array(self, name: str, ty: str, items: Sequence[str]) -> str:
        if not items:
            return "null"
        body = ", ".join(item if item.startswith(ty + " ") else f"{ty} {item}" for item in items)
        self._lines.append(f"@dhlo.{name} = private constant [{len(items)} x {ty}] [{body}], align 8")
        return f"@dhlo.{name}"

    def _values(self, kind: str, values: Sequence[tuple[str, TensorType]], names: Mapping[str, str]) -> str:
        rows = []
        for n, (name, t) in enumerate(values):
            sizes = self._array(f"{kind}{n}.sizes", "i64", [f"i64 {int(s) if is_static(s) else -1}" for s in t.shape])
            dims = self._array(f"{kind}{n}.dims", "ptr", [f"ptr {self._string(spell(s, names))}" for s in t.shape])
            rows.append(f"{{ ptr {self._string(name)}, i64 {t.dtype.code}, i64 {t.rank}, ptr {sizes}, ptr {dims} }}")
        return self._array(f"{kind}puts", "{ ptr, i64, i64, ptr, ptr }", rows)


def _numbers(values: Sequence[int]) -> str:
    """A struct of 64-bit integers."""
    return "{ " + ", ".join(f"i64 {v}" for v in values) + " }"
