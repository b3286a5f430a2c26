"""The `dhlo_model_v1` descriptor as LLVM IR text, appended to the translated module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dhlo.codegen.families.kernel import Checks
from dhlo.codegen.kernel_ir import abi
from dhlo.ir.symbols import is_static, spell
from dhlo.ir.types import TensorType

__all__ = ["Descriptor", "Level"]


@dataclass(frozen=True)
class Level:
    """The program as code for one target: `run` is its host program's symbol, `launches` the kernels' names by launch site."""

    name: str
    cpu_features: str  # comma-separated
    run: str
    launches: Sequence[str]
    num_segments: int


@dataclass
class Descriptor:
    """What the runtime is told of a model; see runtime/include/dhlo/abi.h."""

    name: str
    producer: str
    metadata: dict[str, Any]  # of the model file
    levels: Sequence[Level]
    inputs: Sequence[tuple[str, TensorType]]
    outputs: Sequence[tuple[str, TensorType]]
    checks: Checks
    constants_bytes: int
    states: Sequence[tuple[str, int, int, int]] = ()  # name, offset, bytes, offset of the initial content in the constants
    state_bytes: int = 0
    state_dtypes: Sequence[int] = ()  # codes of the states' dtypes
    updated: Sequence[tuple[int, int]] = ()  # arguments that a run writes to, and the dim that grows or -1
    names: Mapping[str, str] = field(default_factory=dict)  # the user's names of symbols
    _lines: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Definitions of the descriptor and all that it points to."""
        self._lines = []
        inputs, outputs = self._values("in", self.inputs), self._values("out", self.outputs)
        kinds = abi.CHECK_KIND
        checks = self._array(
            "checks",
            "{ i64, i64, ptr }",
            [f"{{ i64 {kinds[k.lower()]}, i64 {i}, ptr {self._string(t)} }}" for k, i, t in self.checks],
        )
        levels = self._array("levels", "{ ptr, ptr, ptr, i64, ptr, i64 }", [self._level(n, x) for n, x in enumerate(self.levels)])
        states = self._array(
            "states",
            "{ ptr, i64, i64, i64, i64 }",
            [
                f"{{ ptr {self._string(n)}, i64 {o}, i64 {b}, i64 {c}, i64 {d} }}"
                for (n, o, b, c), d in zip(self.states, self.state_dtypes, strict=True)
            ],
        )
        updated = self._array("updated", "i64", [f"i64 {i}" for i, _ in self.updated])
        grows = self._array("grows", "i64", [f"i64 {d}" for _, d in self.updated])
        fields = [
            f"i64 {abi.ABI_MAGIC}",
            f"i32 {abi.ABI_VERSION}",
            f"i32 {abi.MODEL_BYTES}",
            f"ptr {self._string(self.name)}",
            f"ptr {self._string(self.producer)}",
            f"ptr {self._string(json.dumps(self.metadata))}",
            f"i64 {len(self.levels)}",
            f"ptr {levels}",
            f"i64 {len(self.inputs)}",
            f"ptr {inputs}",
            f"i64 {len(self.outputs)}",
            f"ptr {outputs}",
            f"i64 {len(self.checks)}",
            f"ptr {checks}",
            f"i64 {len(self.states)}",
            f"ptr {states}",
            f"i64 {self.state_bytes}",
            f"i64 {self.constants_bytes}",
            f"i64 {len(self.updated)}",
            f"ptr {updated}",
            f"ptr {grows}",
        ]
        types = ", ".join(f.split()[0] for f in fields)
        self._lines.append(f"@{abi.ABI_SYMBOL} = constant {{ {types} }} {{ {', '.join(fields)} }}, align 8")
        return "\n".join(self._lines) + "\n"

    def _level(self, n: int, level: Level) -> str:
        names = [f"ptr {self._string(x)}" for x in level.launches]
        launches = self._array(f"launches{n}", "ptr", names)
        name, features = self._string(level.name), self._string(level.cpu_features)
        run = f"ptr @{level.run}"
        if n:  # its code lies in another part
            self._lines.append(f"declare i32 @{level.run}(ptr, ptr)")
        return f"{{ ptr {name}, ptr {features}, {run}, i64 {len(names)}, ptr {launches}, i64 {level.num_segments} }}"

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

    def _values(self, kind: str, values: Sequence[tuple[str, TensorType]]) -> str:
        rows = []
        for n, (name, t) in enumerate(values):
            sizes = self._array(f"{kind}{n}.sizes", "i64", [f"i64 {int(s) if is_static(s) else -1}" for s in t.shape])
            dims = self._array(f"{kind}{n}.dims", "ptr", [f"ptr {self._string(spell(s, self.names))}" for s in t.shape])
            rows.append(f"{{ ptr {self._string(name)}, i64 {t.dtype.code}, i64 {t.rank}, ptr {sizes}, ptr {dims} }}")
        return self._array(f"{kind}puts", "{ ptr, i64, i64, ptr, ptr }", rows)
