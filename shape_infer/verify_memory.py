"""What must hold of a planned module's memory: all that is read has some, and buffers that are in use at once don't overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dhlo.errors import InternalError
from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.function import bodies, ranges_of, walk
from dhlo.ir.memory import buffers_of, memory_of
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.host import CONTRACT, PLACED, Address, Alloc, Arena, Arrange, Launch, Plan
from dhlo.ir.symbols import evaluate, parse, symbols_of
from dhlo.shape_infer.buffers import Arrangement, Buffer

__all__ = ["verify_memory"]

_SAMPLES = (0, 1, 2, 7, 64, 1000)


def verify_memory(module: Any) -> None:
    """Raises InternalError where a planned module's memory can't be right; modules that aren't planned yet are passed over.

    Every buffer that an op names has been allocated, and its segment laid out, before the op; every value that an op reads has
    memory; the number of each op lies in the lifetimes of the buffers that it names, that of a group in those of its launches; each
    group launches something, once one does; and in every arrangement, buffers whose lifetimes meet lie apart, at sampled sizes.
    """
    for block in bodies(module)[:1]:
        if any(isinstance(op, Plan) for op in block.operations):
            _Verifier(module, block).verify()


class _Verifier:
    def __init__(self, module: Any, block: Any) -> None:
        self.block, self.ranges = block, ranges_of(module)
        self.buffers: dict[int, Buffer] = {}
        self.segments: dict[int, list[int]] = {}
        self.ready: set[int] = set()  # buffers whose segment is laid out

    def verify(self) -> None:
        number, ops = 0, list(walk(self.block))
        if any(isinstance(op, Launch) or "kernels" in op.operation.attributes for op in ops):
            self._launches(ops)
        for op in ops:
            if isinstance(op, Alloc):
                self._alloc(op)
            elif isinstance(op, Arrange):
                self._arrangement(op)
            elif isinstance(op, Arena):
                self.ready |= set(self.segments.get(attr(op, "segment"), []))
            elif isinstance(op, Address):
                self._reads(op, op.operands[0], number - 1)
            elif isinstance(op, Launch):
                for a in attr(op, "arguments"):
                    self._buffers(op, a, number - 1)
            elif op.kind is not Kind.HOST and not isinstance(op, (*CONTRACT, *PLACED)):
                self._operation(op, number)
                number += 1

    def fail(self, op: Any, what: str) -> None:
        raise InternalError(f"{op.OPERATION_NAME} at {op.location}: {what}")

    def _alloc(self, op: Any) -> None:
        n = attr(op, "buffer")
        if n in self.buffers:
            self.fail(op, f"buffer {n} is allocated twice")
        self.buffers[n] = Buffer(attr(op, "name_"), parse(attr(op, "bytes")), attr(op, "first"), attr(op, "last"))
        self.segments.setdefault(attr(op, "segment"), []).append(n)

    def _operation(self, op: Any, number: int) -> None:
        for v in _read(op):
            self._reads(op, v, number)
        for v in op.results:
            self._buffers(op, memory_of(v), number)
        for name in ("workspace_memory", "spare"):
            for n in buffers_of(op, name):
                self._buffers(op, {"buffer": n}, number)

    def _reads(self, op: Any, v: Any, number: int) -> None:
        made = defining(v)
        if made is not None and made.kind is Kind.GROUP and not memory_of(v):
            self.fail(op, f"reads a result of {made.OPERATION_NAME}, which has no memory")
        self._buffers(op, memory_of(v), number)

    def _launches(self, ops: Sequence[Any]) -> None:
        """Is every group followed by its launches, unless it chooses at each call; and is every launch a group's?"""
        for op, following in zip(ops, [*ops[1:], None], strict=True):
            launched = isinstance(following, (Address, Launch))
            if isinstance(op, Group) and launched == ("kernels" in op.operation.attributes):
                self.fail(op, "is followed by launches and chooses between kernels" if launched else "launches nothing")
            if isinstance(op, Address) and not launched:
                self.fail(op, "is an address that nothing launches with")
            if launched and not isinstance(op, (Address, Group, Launch)):
                self.fail(following, "is of no group")

    def _buffers(self, op: Any, memory: Any, number: int) -> None:
        """Is the buffer that a place names, if it does, there and in use while op `number` runs?"""
        if "buffer" not in memory:
            return
        n = memory["buffer"]
        if n not in self.ready:
            self.fail(op, f"buffer {n} has no memory yet")
        b = self.buffers[n]
        if not b.first <= number <= b.last:
            self.fail(op, f"buffer {n} is in use from {b.first} to {b.last}, and this is operation {number}")

    def _arrangement(self, op: Any) -> None:
        order, below = attr(op, "order"), attr(op, "below")
        if sorted(order) != sorted(self.segments.get(attr(op, "segment"), [])):
            self.fail(op, "the arrangement leaves out buffers of its segment, or has others")
        made = Arrangement(
            [self.buffers[n] for n in order],
            {self.buffers[n]: [self.buffers[x] for x in rest] for n, rest in zip(order, below, strict=True)},
        )
        for env in self._sizes(made):
            if any(evaluate(b.bytes, env) < 0 for b in made.order):
                continue  # the call ends before memory is asked for
            at, _ = made.offsets(env)
            ends = {b: o + evaluate(b.bytes, env) for b, o in at.items()}
            for k, a in enumerate(made.order):
                for b in made.order[:k]:
                    if a.overlaps(b) and at[a] < ends[b] and at[b] < ends[a]:
                        self.fail(op, f"{a.name} and {b.name} overlap where {env}")

    def _sizes(self, a: Arrangement) -> Iterator[dict[str, int]]:
        """Samples of the symbols' values: all the same, and one large among small ones."""
        names = sorted({s for b in a.order for s in symbols_of(b.bytes)})
        for value in _SAMPLES:
            yield {name: self._inside(name, value) for name in names}
        for large in names[:8]:
            yield {name: self._inside(name, 1000 if name == large else 3) for name in names}

    def _inside(self, name: str, value: int) -> int:
        lo, hi = self.ranges.get(name, (0, None))
        return max(lo or 0, value if hi is None else min(value, hi))


def _read(op: Any) -> list[Any]:
    """Values that an operation reads itself; what its regions read is theirs, unless it is a group."""
    inside = op.operation.regions[0].blocks[0].operations if isinstance(op, Group) else []
    own = {r for x in inside for r in x.results}
    return [*op.operands, *(v for x in inside for v in x.operands if v not in own)]
