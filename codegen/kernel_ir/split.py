"""Splits a kernel module into parts that compile side by side: functions that call each other stay together."""

from __future__ import annotations

import re

from dhlo.codegen.kernel_ir.builder import KernelModule

__all__ = ["split_module"]

_SYMBOL = re.compile(r"@([A-Za-z_][\w.]*)")
_HEAD = re.compile(r"llvm\.func (internal )?@([\w.]+)(\([^{]*?\))( -> [^{]*?)?( attributes \{.*?\})? \{")


def split_module(module: KernelModule, parts: int) -> list[str]:
    """Module texts; the first holds the host program. What other parts use is exported, with hidden visibility from the model."""
    names = {**module.globals, **module.functions}
    uses = {n: {m for m in _SYMBOL.findall(t) if m in names and m != n} for n, t in names.items()}
    inline = {n for n, t in module.functions.items() if '"alwaysinline"' in t or "{" not in t}
    roots = [n for n in names if n not in inline]
    group = _components(roots, uses, inline)
    sized = sorted(group, key=lambda g: -sum(len(names[n]) for n in g))
    bins: list[list[str]] = [[] for _ in range(max(1, parts))]
    for g in sized:
        min(bins, key=lambda b: sum(len(names[n]) for n in b)).extend(g)
    bins.sort(key=lambda b: "dhlo_run" not in b)
    return [_text(names, uses, inline, b) for b in bins if b]


def _components(roots: list[str], uses: dict[str, set[str]], inline: set[str]) -> list[list[str]]:
    """Connected sets of functions, not counting the references from the host program, which may cross parts."""
    parent = {n: n for n in roots}

    def find(n: str) -> str:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    def reach(n: str, seen: set[str]) -> set[str]:
        for m in uses[n]:
            if m not in seen:
                seen.add(m)
                if m in inline:
                    reach(m, seen)
        return seen

    for n in roots:
        if n == "dhlo_run":
            continue
        for m in reach(n, set()):
            if m in parent:
                parent[find(m)] = find(n)
    out: dict[str, list[str]] = {}
    for n in roots:
        out.setdefault(find(n), []).append(n)
    return list(out.values())


def _text(names: dict[str, str], uses: dict[str, set[str]], inline: set[str], members: list[str]) -> str:
    inside, body = set(members), []
    work, helpers, outside = list(members), set(), set()
    while work:
        for m in uses[work.pop()]:
            if m in inline and m not in helpers:
                helpers.add(m)
                work.append(m)
            elif m not in inline and m not in inside:
                outside.add(m)
    for n in names:
        if n in helpers:
            body.append(names[n])
        elif n in inside:
            body.append(names[n].replace("llvm.func internal @", "llvm.func @", 1))
        elif n in outside:
            head = _HEAD.match(names[n])
            assert head is not None, n
            args = re.sub(r"%[\w]+: ", "", head.group(3))
            body.append(f"llvm.func @{n}{args}{head.group(4) or ''}")
    return "module {\n" + "\n".join(body) + "\n}\n"
