"""Says what is wrong with the arguments of a call, in the words of the function that was exported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

__all__ = ["explain_mismatch"]


def explain_mismatch(spec: Any, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why arguments don't have the structure `spec` of the exported program's, whose leaves have these names."""
    positional, keywords = spec.children()
    order, at = [], 0
    for child in [*positional.children(), *keywords.children()]:
        order.append((_common(names[at : at + child.num_leaves]), child))
        at += child.num_leaves
    expected = order[: positional.num_children]
    named = dict(zip(keywords.context or [], [child for _, child in order[positional.num_children :]], strict=True))
    parts = []
    if len(args) != len(expected):
        parts.append(f"takes {_count(len(expected), 'positional argument')}{_listed([n for n, _ in expected])}, got {len(args)}")
    absent = [n for n in named if n not in kwargs]
    unknown = [n for n in kwargs if n not in named]
    parts += [f"{what}: {', '.join(found)}" for what, found in (("missing", absent), ("unknown", unknown)) if found]
    misplaced = [n for n in unknown if n in {name for name, _ in expected}]
    if misplaced:
        parts.append(f"give {', '.join(misplaced)} by position, as when the program was exported")
    if not parts:
        given = [(name, child, x) for (name, child), x in zip(expected, args, strict=True)]
        given += [(name, child, kwargs[name]) for name, child in named.items()]
        parts = [
            f"'{name}' is {_kind(pytree.tree_structure(x))}, expected {_kind(child)}"
            for name, child, x in given
            if pytree.tree_structure(x) != child
        ]
    return "arguments don't match the exported program's: " + "; ".join(parts)


def _common(names: Sequence[str]) -> str:
    """What an argument is called whose leaves have these names: masks[0] and masks[1] are `masks`."""
    heads = {re.split(r"[\[.]", name)[0] for name in names}
    return heads.pop() if len(heads) == 1 else "an argument"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _kind(spec: Any) -> str:
    if spec.is_leaf():
        return "a tensor or number"
    context = spec.context
    inside = f" with {', '.join(map(str, context))}" if spec.type is dict and context else f" of {spec.num_children}"
    return f"a {spec.type.__name__}{inside}"
