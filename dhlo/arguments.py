"""Says what is wrong with the arguments of a call, in the words of the function that was exported."""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

__all__ = ["explain_mismatch"]

_MOST = 8  # differences in a message


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
        parts = [text for name, child, x in given for text in _differences(name, pytree.tree_structure(x), child)][:_MOST]
    return "arguments don't match the exported program's: " + "; ".join(parts)


def _common(names: Sequence[str]) -> str:
    """What an argument is called whose leaves have these names: masks[0] and masks[1] are `masks`."""
    heads = {re.split(r"[\[.]", name)[0] for name in names}
    return heads.pop() if len(heads) == 1 else "an argument"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _differences(name: str, given: Any, wanted: Any) -> Iterator[str]:
    """Where the structure of an argument, or of a part of it, isn't the one that is wanted."""
    if given == wanted:
        return
    if given.type is not wanted.type or given.is_leaf() or wanted.is_leaf():
        yield f"'{name}' is {_kind(given)}, expected {_kind(wanted)}"
        return
    keys, known = _keys(given), _keys(wanted)
    if keys is not None and known is not None:
        parts = [f"lacks {', '.join(map(repr, lacking))}"] if (lacking := [k for k in known if k not in keys]) else []
        parts += [f"has the unknown {', '.join(map(repr, more))}"] if (more := [k for k in keys if k not in known]) else []
        if not parts and keys != known:  # the program may go through them in order
            parts = [f"has its keys in the order {', '.join(map(repr, keys))}, expected {', '.join(map(repr, known))}"]
        if not parts and given.children() == wanted.children():  # defaultdicts
            parts = ["is a defaultdict made otherwise than the exported program's"]
        if parts:
            yield f"'{name}' {' and '.join(parts)}"
            return
    elif given.num_children != wanted.num_children or given.context != wanted.context:
        yield f"'{name}' is {_kind(given)}, expected {_kind(wanted)}"
        return
    labels = known if known is not None else range(wanted.num_children)
    for label, child, own in zip(labels, given.children(), wanted.children(), strict=True):
        yield from _differences(f"{name}[{label!r}]", child, own)


def _keys(spec: Any) -> list[Any] | None:
    """A dict's keys in order; None of another type."""
    if spec.type is dict or spec.type is OrderedDict:
        return list(spec.context)
    return list(spec.context[1]) if spec.type is defaultdict else None


def _kind(spec: Any) -> str:
    if spec.is_leaf():
        return "a tensor or number"
    keys = _keys(spec)
    inside = f" with {', '.join(map(repr, keys))}" if keys else f" of {spec.num_children}"
    return f"a {spec.type.__name__}{inside}"
