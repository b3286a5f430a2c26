"""In how many places of a kernel the code of a value computed on demand is written out, and how deep views are nested there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dhlo.ir.dialect import Kind
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Reshape, Slice, Transpose
from dhlo.passes.fuse.graph import Graph, kind_of

__all__ = ["Sites"]

MANY = 8  # places that are always fine
CODE = 256  # operations, over all places, from which a value is better stored
LARGE = 64  # operations are not counted further
DEEP = 48  # views of views of ...: the emitter recurses from one to the next


class Sites:
    """Joined and shifted tensors read their operands at several places, and these theirs: without a buffer in between, code
    doubles from each to the next (a mask that is filled part by part, say). Ops are to be added after those that read them."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self._at: dict[Any, set[tuple[Any, int]]] = {}  # value -> the kernels it is computed in, and where
        self._code: dict[int, int] = {}
        self._depth: dict[Any, int] = {}  # value -> views between it and what its kernel computes
        for n, op in enumerate(g.ops):  # in program order: operands first
            makers = [p for v in op.operands if (p := g.producer(v)) is not None and p not in g.unit and p in self._code]
            if kind_of(op).pullable:
                self._code[n] = min(LARGE, 1 + sum(self._code[p] for p in makers))

    def add(self, n: int, free: bool) -> None:
        """Counts where op n reads its operands: once where it is computed itself if it is elementwise, else at a place of its
        own. A `free` op is computed by its readers, any other one in its unit."""
        op = self.g.ops[n]
        unit = self.g.unit.get(n)
        at = self._at.get(op.results[0], set()) if free else {(n if unit is None else id(unit), 0)}
        same = kind_of(op) in (Kind.ELEMENTWISE, Kind.REDUCTION)
        nested = 0 if same else len(op.operands).bit_length() if isinstance(op, Concat) else 1  # a join is searched by halving
        depth = (self._depth.get(op.results[0], 0) if free else 0) + nested
        for k, v in enumerate(op.operands):
            if self.g.producer(v) is not None:
                self._depth[v] = max(self._depth.get(v, 0), depth)
                self._at.setdefault(v, set()).update(at if same else {(kernel, hash((place, n, k))) for kernel, place in at})

    def too_many(self, n: int) -> bool:
        """Whether the code of op n would take up too much of a kernel, or stand too deep in it. Views and constants are worth no
        memory, unless they are what makes it so deep."""
        op = self.g.ops[n]
        if self._depth.get(op.results[0], 0) >= DEEP:
            return True
        if isinstance(op, (Full, Iota, Reshape, Transpose, Slice, Broadcast)):
            return False
        most = max(Counter(kernel for kernel, _ in self._at.get(op.results[0], ())).values(), default=0)
        return most > MANY and most * self._code[n] > CODE
