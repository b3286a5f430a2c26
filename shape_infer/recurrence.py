"""Along which dims the state of a recurrence is taken on element by element, so that elements can be shared out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dhlo.ir.dialect import Kind, attr, exprs
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.control import yielded
from dhlo.ir.ops.movement import Broadcast, Concat, Reshape, Slice, Transpose
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import reshape_groups

__all__ = ["Follows", "independent_dims"]

Follows = tuple[int | None, ...]
"""By dim of a value: the dim of the state that it follows, if it follows one."""


@dataclass(frozen=True)
class Independence:
    """What `independent_dims` finds."""

    dims: tuple[int, ...]
    """Of the state [1, ...]: an element of the next state, and of what is known, depends on states of its own place along these."""
    follows: Mapping[Any, Follows]
    """Of each value that depends on the state, dims among these alone."""
    in_place: bool
    """But for what reductions give, an element of the next state depends on its own place in the state alone."""


def independent_dims(region: Any) -> Independence:
    """Looks at the body of a recurrence."""
    state, (after, *known) = region.blocks[0].arguments[0], yielded(region)
    rank = from_mlir(state).rank
    dims, follows = _fixed(region, state, range(1, rank), through=True)
    for v in (after, *known):
        kept = set(follows.get(v, range(rank) if v == after else ()))
        if v == after and v in follows:
            kept = {d for i, d in enumerate(follows[v]) if d == i}
        dims &= kept
    dims, follows = _fixed(region, state, dims, through=True)
    pointwise, placed = _fixed(region, state, range(1, rank), through=False)
    own = after not in placed or len(pointwise) == rank - 1 and all(d in (i, None) for i, d in enumerate(placed[after]))
    return Independence(tuple(sorted(dims)), follows, own)


def _fixed(region: Any, state: Any, start: Sequence[int] | set[int], through: bool) -> tuple[set[int], dict[Any, Follows]]:
    """Dims among `start` that all values that depend on the state have, and where. `through`: what reductions give depends on it,
    too."""
    dims = set(start)
    while True:
        follows: dict[Any, Follows] = {state: tuple(d if d in dims else None for d in range(from_mlir(state).rank))}
        before = len(dims)
        for op in list(region.blocks[0].operations)[:-1]:
            if any(v in follows for v in op.operands) and (through or not isinstance(op, Reduce)):
                follows[op.results[0]] = _of(op, follows, dims)
        if len(dims) == before:
            return dims, follows


def _of(op: Any, follows: Mapping[Any, Follows], dims: set[int]) -> Follows:
    """What an op's result follows; takes dims away that it doesn't keep apart."""
    t = from_mlir(op.results[0])
    out: list[int | None] = [None] * t.rank
    inputs = [(v, follows[v]) for v in op.operands if v in follows]
    if op.kind is Kind.ELEMENTWISE or isinstance(op, Concat):
        out = [d if all(f[i] == d for _, f in inputs) else None for i, d in enumerate(inputs[0][1])]
        if isinstance(op, Concat):
            out[attr(op, "dim")] = None
    elif isinstance(op, Reduce):
        out = [d for i, d in enumerate(inputs[0][1]) if i not in attr(op, "dims")]
    elif isinstance(op, Transpose):
        out = [inputs[0][1][p] for p in attr(op, "perm")]
    elif isinstance(op, (Broadcast, Slice, Reshape)):
        source, follow = from_mlir(inputs[0][0]), inputs[0][1]
        for i, j in _places(op, source.shape, t.shape):
            if source.shape[i] == t.shape[j]:
                out[j] = follow[i]
    dims.intersection_update({d for d in out if d is not None})
    return tuple(out)


def _places(op: Any, source: Sequence[Any], shape: Sequence[Any]) -> list[tuple[int, int]]:
    """Dims of the operand that are dims of the result."""
    if isinstance(op, Broadcast):
        return list(enumerate(attr(op, "dims")))
    if isinstance(op, Slice):
        whole = zip(exprs(attr(op, "starts")), attr(op, "steps"), strict=True)
        return [(i, i) for i, (first, step) in enumerate(whole) if first == 0 and step == 1]
    return [(a[0], b[0]) for a, b in reshape_groups(source, shape) if len(a) == 1 and len(b) == 1]
