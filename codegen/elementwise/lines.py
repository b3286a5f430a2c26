"""Index tensors whose elements lie in a line, as those of windows and of enlarged or cut ranges do: what they look up is then as
near as their step says, and one position stands for a whole vector of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dhlo.codegen.elementwise.index import Index
from dhlo.ir.dialect import attr, defining
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.movement import Broadcast, Full, Iota, number
from dhlo.ir.types import from_mlir

if TYPE_CHECKING:
    from dhlo.codegen.elementwise.emit import Emitter

__all__ = ["line"]

_DEPTH = 16  # of ops that are looked through
_MOST = 1 << 40  # from lane to lane


def line(em: Emitter, v: Any, idx: Sequence[Index]) -> Index | None:
    """Where lane l of `v` (of i64) at `idx` has a + l * step, with a step other than 0 that is known when compiling: that as a
    position, in wrapping arithmetic as the values have it. None otherwise."""
    step = _step(em, v, idx, _DEPTH) if from_mlir(v).dtype.name == "i64" else None
    # Where the first and the last lane are in range, those between must be: no vector of a line wraps.
    return _line(em, v, idx) if step and abs(step) < _MOST else None


def _step(em: Emitter, v: Any, idx: Sequence[Index], depth: int) -> int | None:
    """From one lane's element to the next one's; None if that differs or isn't known."""
    if all(i.uniform for i in idx):
        return 0
    op = defining(v)
    if depth == 0 or not em.computed(v):
        return None
    if isinstance(op, Full):
        return 0
    if isinstance(op, Iota):
        i, step = idx[attr(op, "dim")], number(attr(op, "step"))
        if i.uniform:
            return 0
        return None if i.vec is not None or not isinstance(step, int) else i.step * step
    if isinstance(op, Broadcast):
        return _step(em, op.operands[0], op.source(em, list(idx)), depth - 1)
    if isinstance(op, (ew.Add, ew.Sub)):
        a, b = (_step(em, x, idx, depth - 1) for x in op.operands)
        if a is None or b is None:
            return None
        return a + b if isinstance(op, ew.Add) else a - b
    return None


def _line(em: Emitter, v: Any, idx: Sequence[Index]) -> Index:
    """What `_step` found a step of."""
    if _step(em, v, idx, _DEPTH) == 0 and all(i.uniform for i in idx):
        return Index(em.value(v, idx))
    op: Any = defining(v)
    if isinstance(op, Full):
        return Index(em.scalar(attr(op, "value"), from_mlir(v).dtype))
    if isinstance(op, Iota):
        i, start, step = idx[attr(op, "dim")], attr(op, "start"), attr(op, "step")
        first = em.iota(Index(i.base), start, step, from_mlir(v).dtype)
        return Index(first) if i.uniform else Index(first, i.step * int(number(step) or 0))
    if isinstance(op, Broadcast):
        return _line(em, op.operands[0], op.source(em, list(idx)))
    a, b = (_line(em, x, idx) for x in op.operands)
    return em.plus(a, b if isinstance(op, ew.Add) else em.times(b, -1))
