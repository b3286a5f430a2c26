"""Blocks of a launch: items for which a worker prepares something in its scratch, once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dhlo.codegen.kernel_ir.builder import I64, Fn, V

__all__ = ["Blocks"]


class Blocks:
    """Items are (block, panel), the panel fastest. What the panels of a block share, a packed image for instance, a worker prepares
    in its scratch.

    A worker gets a launch's items in several ranges, so that threads end together. `kept`, from `HostContext.kept`, says of which
    block it has prepared something in a range before: that isn't done again.
    """

    def __init__(self, f: Fn, kept: V) -> None:
        self.f = f
        _, self.begin, self.end, worker, _ = f.args
        self.at = f.gep(kept, worker, I64)

    def is_first_range(self) -> V:
        """Whether the worker's scratch holds nothing of the launch; to be asked before `each`."""
        return self.f.cmp("eq", self.f.load(self.at, I64), 0)

    @contextmanager
    def each(self, panels: V | int) -> Iterator[tuple[V, V, V, V]]:
        """A loop over the blocks that the kernel's items are of, each of so many panels: the block's number, its panels [lo, hi)
        among the items, and whether the scratch holds nothing of it, which the body has to change."""
        f = self.f
        with f.loop(f.divu(self.begin, panels), f.ceildivu(self.end, panels)) as blocks:
            first = f.mul(blocks.iv, panels)
            lo = f.sub(f.max(self.begin, first), first)
            hi = f.min(f.sub(self.end, first), panels)
            mark = f.add(blocks.iv, 1)
            other = f.cmp("ne", f.load(self.at, I64), mark)
            f.store(mark, self.at)
            yield blocks.iv, lo, hi, other

    @contextmanager
    def in_rounds(self, panels: V | int, rounds: V) -> Iterator[tuple[V, V, V, V, V]]:
        """The same where the scratch has room for what a block's panels share in so many rounds, one after the other: the block's
        number, the round's, the panels, and whether the scratch holds nothing of the round."""
        f = self.f
        with self.each(panels) as (block, lo, hi, other), f.loop(0, rounds) as r:
            yield block, r.iv, lo, hi, f.or_(other, f.cmp("gt", rounds, 1))
