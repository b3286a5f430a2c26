"""Splits a kernel module into parts that compile side by side: functions that call each other stay together, but for explicit ones,
which LLVM does less with (`codegen/backends/cpu/llvm.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dhlo.codegen.kernel_ir.builder import KernelModule, Linkage, Symbol

__all__ = ["Part", "split_module"]

_LARGE: Final = 100_000
"""Characters of functions that are a part of their own: tables of kernels of products and convolutions."""


@dataclass(frozen=True)
class Part:
    """A module's text. What is `common` is named by its content and nothing of one program alone: others have the same text."""

    text: str
    common: bool = False


def split_module(module: KernelModule, parts: int) -> list[Part]:
    """Up to `parts` parts, one more of small explicit functions, and one or two for each group of functions that is large. The
    first holds the host program, which is the function that is exported. What other parts use is visible to them, and hidden from
    the model's users when it is linked."""
    symbols = {**module.globals, **module.functions}
    host = [n for n, s in symbols.items() if _is_host(s)]
    kernels = [n for n, s in symbols.items() if not _is_host(s) and not _is_copied(s)]
    groups = sorted(_components(kernels, symbols), key=lambda g: -_weight(g, symbols))
    large = [g for g in groups if _weight(g, symbols) >= _LARGE]
    bins: list[list[str]] = [[] for _ in range(max(1, parts - 1))]
    explicit: list[str] = []
    for g in groups[len(large) :]:
        ours, others = _by_form(g, symbols)
        explicit += ours
        min(bins, key=lambda b: _weight(b, symbols)).extend(others)
    common = [Part(_text(symbols, names), common=True) for g in large for names in _by_form(g, symbols) if names]
    return [Part(_text(symbols, host)), *common, *(Part(_text(symbols, b)) for b in (*bins, explicit) if b)]


def _by_form(names: list[str], symbols: Mapping[str, Symbol]) -> tuple[list[str], list[str]]:
    """Those that are explicit, and the others."""
    explicit = [n for n in names if symbols[n].explicit]
    return explicit, [n for n in names if n not in explicit]


def _is_copied(s: Symbol) -> bool:
    """Whether every part that uses it has its own."""
    return s.linkage in (Linkage.INLINE, Linkage.DECLARED) or s.head == "llvm.mlir.global"


def _is_host(s: Symbol) -> bool:
    return s.linkage is Linkage.EXPORTED


def _weight(names: Iterable[str], symbols: Mapping[str, Symbol]) -> int:
    return sum(len(symbols[n].body) for n in names)


def _components(kernels: list[str], symbols: Mapping[str, Symbol]) -> list[list[str]]:
    """Connected sets of functions."""
    parent = {n: n for n in kernels}

    def find(n: str) -> str:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    def reach(n: str, seen: set[str]) -> set[str]:
        for m in symbols[n].uses - seen:
            if m not in seen:
                seen.add(m)
                if _is_copied(symbols[m]):
                    reach(m, seen)
        return seen

    for n in kernels:
        for m in reach(n, set()):
            if m in parent:
                parent[find(m)] = find(n)
    out: dict[str, list[str]] = {}
    for n in kernels:
        out.setdefault(find(n), []).append(n)
    return list(out.values())


def _text(symbols: Mapping[str, Symbol], members: list[str]) -> str:
    """A part: its members, copies of what is inlined into them, and declarations of what other parts define."""
    inside, copied, outside = set(members), set(), set()
    work = list(members)
    while work:
        for m in symbols[work.pop()].uses:
            if m in inside or m in copied:
                continue
            if _is_copied(symbols[m]):
                copied.add(m)
                work.append(m)
            else:
                outside.add(m)
    body = []
    for n, s in symbols.items():
        if n in copied:
            body.append(s.text())
        elif n in inside:
            body.append(s.text(visible=True))
        elif n in outside:
            body.append(s.declared())
    return "module {\n" + "\n".join(body) + "\n}\n"
