"""Modules of kernels: functions and constants by name, as MLIR text, and who sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

from dhlo.codegen.target import Target

__all__ = ["KernelModule", "Linkage", "Symbol"]


class Linkage(Enum):
    """Who sees a symbol: its module alone (INLINE: and only as a part of what calls it), the program around it, or it is
    defined elsewhere."""

    INTERNAL = "internal"
    INLINE = "inline"
    EXPORTED = "exported"
    DECLARED = "declared"


@dataclass(frozen=True)
class Symbol:
    """A function or a constant of a module.

    head         "llvm.func", "llvm.mlir.global"
    body         MLIR from the symbol's name on
    declaration  MLIR of a function for modules that don't hold it, from the symbol's name on
    uses         names of the module that the body refers to
    explicit     a function that says what the machine is to do, with little left for LLVM to find
    """

    head: str
    body: str
    declaration: str
    linkage: Linkage
    uses: frozenset[str] = frozenset()
    explicit: bool = False

    def text(self, *, visible: bool = False) -> str:
        """The definition; `visible` to other modules of the program, whatever its linkage."""
        hidden = self.linkage in (Linkage.INTERNAL, Linkage.INLINE) and not visible
        return f"{self.head} {'internal ' if hidden else ''}{self.body}"

    def declared(self) -> str:
        """The declaration for a module that doesn't hold the definition."""
        return f"{self.head} {self.declaration}"

    def renamed(self, old: str, new: str) -> Symbol:
        """With another name for itself and for what it uses."""
        uses = frozenset(u.replace(old, new) for u in self.uses)
        return replace(self, body=self.body.replace(old, new), declaration=self.declaration.replace(old, new), uses=uses)


class _Functions(dict[str, Symbol]):
    """Functions by name. Emitters look for a function before they add it: `asked` is told both."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __setitem__(self, name: str, symbol: Symbol) -> None:
        self.asked.add(name)
        super().__setitem__(name, symbol)


class KernelModule:
    """Functions and globals by name, in order, for one target; the unit that is lowered and optimised together.

    Names are plain. In the text they end with the target's tag, so that code for several targets fits into one program;
    what is exported or declared keeps its name, which others know.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions = _Functions()
        self.globals: dict[str, Symbol] = {}

    def text(self) -> str:
        return "module {\n" + "\n".join(s.text() for s in [*self.globals.values(), *self.functions.values()]) + "\n}\n"

    @contextmanager
    def asked(self) -> Iterator[set[str]]:
        """The names of functions that emitters add to the module inside, or would if they weren't there."""
        outer, inner = self.functions.asked, set[str]()
        self.functions.asked = inner
        yield inner
        outer |= inner
        self.functions.asked = outer

    def tagged(self, name: str) -> str:
        """The name as this module's texts spell it."""
        known = self.functions.get(name)
        keeps = known is not None and known.linkage in (Linkage.EXPORTED, Linkage.DECLARED)
        return name if keeps or not self.target.tag else f"{name}.{self.target.tag}"

    def declare(self, name: str, args: Sequence[str], result: str | None = None) -> None:
        """Declares an external function (libm, say) once; before it is called."""
        if name not in self.functions:
            ret = f" -> {result}" if result else ""
            signature = f"@{name}({', '.join(args)}){ret}"
            self.functions[name] = Symbol("llvm.func", signature, signature, Linkage.DECLARED)

    def add_constant(self, name: str, text: str, uses: Sequence[str] = ()) -> None:
        """Adds a constant: MLIR from what follows its name on, with the names in `uses` as `tagged` spells them."""
        body = f"constant @{self.tagged(name)}{text}"
        self.globals[name] = Symbol("llvm.mlir.global", body, "", Linkage.INTERNAL, frozenset(uses))

    def add_pointers(self, name: str, symbols: Sequence[str]) -> None:
        """Adds a constant table of the functions' addresses."""
        ty = f"!llvm.array<{len(symbols)} x ptr>"
        lines = [f"%t0 = llvm.mlir.undef : {ty}"]
        for i, symbol in enumerate(symbols):
            lines.append(f"%p{i} = llvm.mlir.addressof @{self.tagged(symbol)} : !llvm.ptr")
            lines.append(f"%t{i + 1} = llvm.insertvalue %p{i}, %t{i}[{i}] : {ty}")
        lines.append(f"llvm.return %t{len(symbols)} : {ty}")
        body = "\n  ".join(lines)
        self.add_constant(name, f"() : {ty} {{\n  {body}\n}}", symbols)
