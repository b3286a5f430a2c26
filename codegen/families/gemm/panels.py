"""Where the kernels of a product find panels of B: packed beforehand, or made chunk by chunk in scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dhlo.codegen.families.gemm.pack import emit_pack_b_panel, emit_pack_b_panels
from dhlo.codegen.families.gemm.register_tile import TileSpec, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, I8, I64, PTR, Fn, V
from dhlo.codegen.target import LINE_BYTES
from dhlo.errors import InternalError

__all__ = ["Chunk", "PackedPanels", "PanelSource", "StridedPanels"]


@dataclass(frozen=True)
class Chunk:
    """Units [first, first + units) of the panel that begins at column n0, `width` of whose columns are the matrix's.

    A whole panel has `steps` units; `k` is the number of elements in the chunk, `scratch` has room for it if the source isn't
    `in_place`. `turn` panels before this one were asked for in a row. `last`: there are none after it, which is asked for next is
    the chunk at column next_n0, from unit `next_first` on.
    """

    n0: V
    width: V
    first: V
    units: V
    steps: V
    k: V
    scratch: V
    turn: V
    last: V
    next_n0: V
    next_first: V


class PanelSource(Protocol):
    """A form in which B is given to the kernel of a product, which asks it for a chunk of a panel at a time.

    Each panel's chunks are asked for once by each block of rows and thread.
    """

    @property
    def name(self) -> str:
        """What ends the symbols of kernels that read from it."""
        ...

    @property
    def args(self) -> Sequence[str]:
        """Types of the kernel's arguments that describe B."""
        ...

    @property
    def in_place(self) -> bool:
        """Chunks are read where they lie, packed panel after packed panel, so that the next can be prefetched; else each is made
        in scratch."""
        ...

    @property
    def together(self) -> bool:
        """Chunks of several panels are best made together: `chunks` makes them."""
        ...

    def matrix(self, fn: Fn, elem: str, args: Sequence[V], i0: V, i1: V) -> Sequence[V]:
        """What `chunk` needs of the matrix with batch indices i0 and i1."""
        ...

    def chunk(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> V:
        """Address of the chunk as the micro-kernel reads it: [units][panel(elem)], columns beyond `width` zero."""
        ...

    def chunks(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk, pitch: V) -> None:
        """Makes the chunks of all panels of `width` columns in scratch, `pitch` units apart, with zeros behind each chunk's."""
        ...

    def ahead(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> tuple[V, V]:
        """What should be prefetched while the chunk is multiplied, for those of the next panels: an address, and how many bytes
        further each unit of k goes. Not asked of a source that is `in_place`."""
        ...


@dataclass(frozen=True)
class PackedPanels:
    """Panels of whole depth, one after the other (see `pack_b`). Arguments: address, strides of both batch dims in units."""

    name: str = ""
    args: tuple[str, ...] = (PTR, I64, I64)
    in_place: bool = True
    together: bool = False

    def matrix(self, fn: Fn, elem: str, args: Sequence[V], i0: V, i1: V) -> Sequence[V]:
        b, b0, b1 = args
        return [fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), unit(elem))]

    def chunk(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> V:
        return fn.gep(matrix[0], fn.add(fn.mul(c.n0, c.steps), fn.mul(c.first, spec.panel(elem))), unit(elem))

    def chunks(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk, pitch: V) -> None:
        raise InternalError("packed panels are read in place")

    def ahead(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> tuple[V, V]:
        raise InternalError("packed panels are read in place")


@dataclass(frozen=True)
class StridedPanels:
    """Any matrix, packed to scratch. Arguments: address, strides (batch 0, batch 1, k, n) in elements, units of k to prefetch
    ahead (see `emit_pack_b_panel`)."""

    name: str = "_pack_b"
    args: tuple[str, ...] = (PTR, *[I64] * 5)
    in_place: bool = False
    together: bool = True

    def matrix(self, fn: Fn, elem: str, args: Sequence[V], i0: V, i1: V) -> Sequence[V]:
        b, b0, b1, b_k, b_n, steps_ahead = args
        return [fn.gep(b, fn.add(fn.mul(i0, b0), fn.mul(i1, b1)), elem), b_k, b_n, steps_ahead]

    def chunk(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> V:
        _, b_k, b_n, steps_ahead = matrix
        panel = [self.rows(fn, elem, matrix, c)[0], b_k, b_n, c.width, c.k, c.scratch, steps_ahead]
        fn.call(emit_pack_b_panel(fn.module, elem, spec), panel)
        return c.scratch

    def chunks(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk, pitch: V) -> None:
        _, b_k, b_n, _ = matrix
        panels = [self.rows(fn, elem, matrix, c)[0], b_k, b_n, c.width, c.k, c.scratch, pitch]
        fn.call(emit_pack_b_panels(fn.module, elem, spec), panels)

    def rows(self, fn: Fn, elem: str, matrix: Sequence[V], c: Chunk) -> tuple[V, V, V]:
        """Address of the chunk's first row as it lies, the stride of its rows in elements, and whether they are contiguous."""
        b, b_k, b_n, _ = matrix
        at = fn.add(fn.mul(c.n0, b_n), fn.mul(fn.mul(c.first, depth(elem)), b_k))
        return fn.gep(b, at, elem), b_k, fn.cmp("eq", b_n, 1)

    def ahead(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> tuple[V, V]:
        """The same rows of k, where they are contiguous: a panel takes a piece of each, which no hardware expects. After the last
        panel it's the rows of the next chunk.

        A unit's bytes of a panel are pieces of as many rows as it holds elements; as many panels have so many bytes of one row.
        Each of so many panels in turn fetches one of a unit's rows, for all of the next ones. Where rows aren't multiples of
        lines, a piece's first line is the last one of the piece before: the lines of last bytes are asked for."""
        b, b_k, b_n, _ = matrix
        together = depth(elem)
        turn = fn.remu(c.turn, together)
        onward = fn.mul(fn.sub(together, turn), spec.panel(elem))
        column = fn.select(c.last, c.next_n0, fn.add(c.n0, onward))
        first = fn.select(c.last, c.next_first, c.first)
        at = fn.add(fn.mul(column, b_n), fn.mul(fn.add(fn.mul(first, together), turn), b_k))
        by_rows = fn.cmp("eq", b_n, 1)
        step = fn.select(by_rows, fn.mul(b_k, together * BITS[elem] // 8), 0)
        return fn.gep(fn.gep(b, at, elem), LINE_BYTES - 1, I8), step
