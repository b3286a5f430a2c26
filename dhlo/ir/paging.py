"""What a function says of its arguments once caches are pools of blocks, for whoever feeds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dhlo.ir.adapters import Adapters, adapters_of
from dhlo.ir.function import argument_marks, mark_argument
from dhlo.ir.mlir import ir

__all__ = ["Paging", "forget_joins", "mark_paging", "paging_of", "request_joins", "requested_joins"]

_ROLE, _BLOCKS, _POSITIONS, _BY_ORDER = "dhlo.paged", "dhlo.blocks", "dhlo.max_positions", "dhlo.by_order"
_JOINS = "dhlo.joined_states"  # of a module


@dataclass(frozen=True)
class Paging:
    """Arguments by their numbers. Layers that see as much of the past are a group, with blocks of its own."""

    block_slots: int
    windows: tuple[int, ...]
    """By group: no token sees but so many keys, the last being its own; 0: all."""
    slots: tuple[int, ...]
    """By group: i64 [T], where what is computed of a token goes."""
    tables: tuple[int, ...]
    """By group: i32 [B, M]."""
    starts: int
    lengths: int
    positions: int | None
    pools: tuple[tuple[int, int, int, int], ...]
    """Argument and group of each; of values, which of these has the keys that they go with; and which has the scales of its rows
    (-1: none)."""
    adapters: Adapters | None = None
    max_positions: int = 0
    """Tokens of a sequence at most, as tables of positions have rows; 0: any number."""
    cells: int | None = None
    """i32 [B]: where in each of `states` a sequence's is."""
    states: tuple[int, ...] = ()
    """[C, ...]: what is kept of C sequences at most, of fixed size."""
    by_order: bool = False
    """Tokens see the keys before them in tables and their own, whatever their positions are."""
    cross: tuple[int, ...] = ()
    """[heads, slots, depth]: pools of keys and values of what sequences are about (an encoder's output), which a run only reads:
    all of a sequence's tokens see all of its own."""
    cross_tables: int | None = None
    """i32 [B, M]: the blocks of each sequence in these, as many slots each as in the others."""
    cross_lengths: int | None = None
    """i32 [B]: how many keys each has there."""
    hidden: int | None = None
    """i32 [T]: which of the 32 keys before its own each token doesn't see, bit by bit (`ops.paged.PagedAttention`), where tokens
    may be a tree; None: they follow one another."""


def mark_paging(
    block: Any,
    block_slots: int,
    windows: Sequence[int],
    roles: Mapping[int, str | tuple[str | int, ...]],
    max_positions: int = 0,
    by_order: bool = False,
) -> None:
    """Says what each argument is: "positions", "starts", "lengths", "hidden", "cells", "state", "cross", "cross_tables",
    "cross_lengths", or, of a group, "slots", "tables" and "pool", which is followed by which pools, counted in the order of
    arguments, have its keys and its scales (-1: none)."""
    for k, role in roles.items():
        text = role if isinstance(role, str) else " ".join(map(str, role))
        mark_argument(block, k, {_ROLE: ir.StringAttr.get(text)}, without="dhlo.page")
    block.owner.attributes[_BLOCKS] = ir.DenseI64ArrayAttr.get([block_slots, *windows])
    if max_positions:
        block.owner.attributes[_POSITIONS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), max_positions)
    if by_order:
        block.owner.attributes[_BY_ORDER] = ir.UnitAttr.get()


def paging_of(block: Any) -> Paging | None:
    """What `mark_paging` has said, None if nothing. Raises LookupError, TypeError and ValueError for what it can't have said."""
    if _BLOCKS not in block.owner.attributes:
        return None
    block_slots, *windows = ir.DenseI64ArrayAttr(block.owner.attributes[_BLOCKS])
    roles = {k: tuple(ir.StringAttr(m[_ROLE]).value.split()) for k, m in enumerate(argument_marks(block)) if _ROLE in m}
    found = {role: k for k, role in roles.items()}

    def of_groups(role: str) -> tuple[int, ...]:
        return tuple(found[role, str(g)] for g in range(len(windows)))

    held = [(k, role[1:]) for k, role in sorted(roles.items()) if role[:1] == ("pool",)]

    def pool(k: int, group: str, keys: str = "-1", scales: str = "-1") -> tuple[int, int, int, int]:
        others = [range(-1, len(held)).index(int(x)) - 1 for x in (keys, scales)]
        return k, range(len(windows)).index(int(group)), others[0], others[1]

    return Paging(
        block_slots,
        tuple(windows),
        of_groups("slots"),
        of_groups("tables"),
        found["starts",],
        found["lengths",],
        found.get(("positions",)),
        tuple(pool(k, *role) for k, role in held),
        adapters_of(block),
        ir.IntegerAttr(block.owner.attributes[_POSITIONS]).value if _POSITIONS in block.owner.attributes else 0,
        found.get(("cells",)),
        tuple(k for k, role in sorted(roles.items()) if role == ("state",)),
        _BY_ORDER in block.owner.attributes,
        tuple(k for k, role in sorted(roles.items()) if role == ("cross",)),
        found.get(("cross_tables",)),
        found.get(("cross_lengths",)),
        found.get(("hidden",)),
    )


def request_joins(module: Any, slots: Mapping[str, int]) -> None:
    """Writes down, for the pass `join-caches`, more states that shall become pools, with the slots of a block."""
    i64 = ir.IntegerType.get_signless(64)
    if every := {**requested_joins(module), **slots}:
        module.operation.attributes[_JOINS] = ir.DictAttr.get({name: ir.IntegerAttr.get(i64, n) for name, n in every.items()})


def requested_joins(module: Any) -> dict[str, int]:
    """What `request_joins` has written down."""
    if _JOINS not in module.operation.attributes:
        return {}
    return {e.name: int(e.attr.value) for e in ir.DictAttr(module.operation.attributes[_JOINS])}


def forget_joins(module: Any) -> None:
    """Takes what `request_joins` has written down away."""
    del module.operation.attributes[_JOINS]
