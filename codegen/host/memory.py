"""Memory in the host program: arena segments, outputs, and what a planning call learns of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dhlo.codegen.families.kernel import where
from dhlo.codegen.host.program import HostProgram
from dhlo.codegen.kernel_ir.builder import I64, PTR, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.function import updates_of, walk
from dhlo.ir.handles import Value
from dhlo.ir.memory import buffers_of, memory_of
from dhlo.ir.ops.host import Alloc, Arrange
from dhlo.ir.symbols import parse, spell, symbols_of
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import Buffer, peaks

__all__ = ["Memory", "Segment"]

_MOST_BYTES = 1 << 52  # more than any machine has; sums of buffers below it need no check


@dataclass
class Segment:
    """An arena segment as the planned module describes it: buffers by number, and arrangements as (buffer, those below it)."""

    buffers: dict[int, Buffer] = field(default_factory=dict)
    arrangements: list[list[tuple[int, list[int]]]] = field(default_factory=list)


class Memory:
    """Writes what asks for memory into the host program."""

    def __init__(self, host: HostProgram) -> None:
        self.host, self.fn = host, host.fn
        self.segments: dict[int, Segment] = {}
        self.conditional: set[int] = set()
        for op in walk(host.block):
            if isinstance(op, Alloc):
                b = Buffer(attr(op, "name_"), parse(attr(op, "bytes")), attr(op, "first"), attr(op, "last"))
                self._segment(op).buffers[attr(op, "buffer")] = b
                if attr(op, "conditional"):
                    self.conditional.add(attr(op, "buffer"))
            elif isinstance(op, Arrange):
                self._segment(op).arrangements.append(list(zip(attr(op, "order"), attr(op, "below"), strict=True)))
        updates = updates_of(host.block)
        self.returns = [v for i, v in enumerate(list(host.block.operations)[-1].operands) if i not in updates]

    def _segment(self, op: Op) -> Segment:
        return self.segments.setdefault(attr(op, "segment"), Segment())

    def buffer(self, number: int) -> Buffer:
        """A buffer by its number."""
        return next(s.buffers[number] for s in self.segments.values() if number in s.buffers)

    # ------------------------------------------------------------------ planning calls
    def plan(self) -> None:
        """What a planning call alone computes: outputs whose sizes the arguments tell, and how much of the arena lives at once."""
        host, fn = self.host, self.fn
        host.check_sizes()
        plan, go = host.label("plan"), host.label("go")
        fn.branch(host.planning, plan, go)
        fn.label(plan)
        host.sizes.push()
        known = set(host.sizes.symbols)
        for index, v in enumerate(self.returns):
            if all(symbols_of(s) <= known for s in from_mlir(v).shape):
                self._output(index)
        peak = fn.const(0, I64)
        for _, segment in sorted(self.segments.items()):
            if all(symbols_of(b.bytes) <= known for b in segment.buffers.values()):
                peak = fn.add(peak, self._peak_live(segment))
        host.check_sizes()
        host.plan_field("peak_live_bytes", peak)
        host.sizes.pop()
        fn.jump(go)
        fn.label(go)

    def _peak_live(self, segment: Segment) -> V:
        fn = self.fn
        sizes = {b: self._bytes(n) for n, b in segment.buffers.items()}
        most = now = fn.const(0, I64)
        with fn.wrapping():  # no sum is larger than that of all buffers, which the arena's layout checks
            for came, went in peaks(list(segment.buffers.values())):
                for b in came:
                    now = fn.add(now, sizes[b])
                for b in went:
                    now = fn.sub(now, sizes[b])
                most = fn.max(most, now)
        return most

    # ------------------------------------------------------------------ sizes of buffers
    def limited(self, nbytes: V) -> V:
        """The size of a buffer; what no machine has counts as overflow."""
        fn = self.fn
        if fn.interval(nbytes)[1] > _MOST_BYTES:
            fn.record(fn.cmp("gt", nbytes, _MOST_BYTES))
            fn.assume(nbytes, hi=_MOST_BYTES)
        return nbytes if fn.interval(nbytes)[0] >= 0 else fn.max(nbytes, 0)

    def _bytes(self, number: int) -> V:
        """Bytes of a buffer; none where a dim is negative or, of what a branch needs that may not run, where they don't fit. That
        is an error when the operation runs."""
        host, b = self.host, self.buffer(number)
        if number not in self.conditional:
            return self.limited(host.size(b.bytes))
        host.sizes.push()
        with self.fn.capture() as flags:
            nbytes = self.limited(host.size(b.bytes))
        host.sizes.pop()
        out = nbytes if not flags else self.fn.select(self.fn.any_of(flags), 0, nbytes)
        return self.fn.assume(out, 0, _MOST_BYTES)

    # ------------------------------------------------------------------ arena
    def ask(self, segment: int, nbytes: V) -> V:
        """Memory of an arena segment."""
        host = self.host
        host.check_sizes()
        p = self.fn.call_ptr(host.service("arena", PTR), [host.call, self.fn.i64(segment), nbytes], PTR)
        assert p is not None
        host.non_null(p)
        return p

    def lay_out(self, number: int) -> None:
        """Memory of a segment whose sizes are known now, and offsets of the arrangement that needs least at these sizes."""
        fn, segment = self.fn, self.segments[number]
        best: tuple[dict[int, V], V] | None = None
        for a in segment.arrangements:
            offsets, total = self._arrange(a)
            if best is not None:
                better = fn.cmp("lt", total, best[1])
                offsets = {b: fn.select(better, o, best[0][b]) for b, o in offsets.items()}
                total = fn.min(total, best[1])
            best = offsets, total
        offsets, total = best or ({}, fn.i64(0))
        base = self.ask(number, total)
        for b, o in offsets.items():
            self.host.arena[b] = (base, o)

    def _arrange(self, arrangement: list[tuple[int, list[int]]]) -> tuple[dict[int, V], V]:
        fn, zero = self.fn, self.fn.i64(0)
        offsets: dict[int, V] = {}
        ends: dict[int, V] = {}
        total = zero
        for b, below in arrangement:
            o = zero
            for x in below:
                o = ends[x] if o is zero else fn.max(o, ends[x])
            offsets[b] = o
            ends[b] = fn.add(o, self._bytes(b))
            total = fn.max(total, ends[b])
        return offsets, total

    # ------------------------------------------------------------------ results
    def place_results(self, values: Sequence[Value], op: Op) -> None:
        """Checks the sizes of an operation's results, and gets memory for those that are outputs of the model."""
        host = self.host
        self.check_dims(values, op)
        buffers = [m["buffer"] for v in values if "buffer" in (m := memory_of(v))]
        for b in [*buffers, *buffers_of(op, "workspace_memory")]:
            if b in self.conditional:  # its memory was counted as none if it doesn't fit
                self.limited(host.size(self.buffer(b).bytes))
        host.check_sizes()
        for v in values:
            for index in memory_of(v).get("outputs", []):
                p = self._output(index)
                assert p is not None
                host.non_null(p)
                host.pointers[v] = p

    def _output(self, index: int) -> V | None:
        """Asks for the memory of an output."""
        host, fn = self.host, self.fn
        shape = from_mlir(self.returns[index]).shape
        sizes = [host.size(s) for s in shape]
        host.check_sizes()
        array = host.shared_array(sizes)
        return fn.call_ptr(host.service("output", PTR), [host.call, fn.i64(index), fn.i64(len(shape)), array], PTR)

    def check_dims(self, values: Sequence[Value], op: Op) -> None:
        """Ends the call where a dim of a value is negative, unless that can't be."""
        host, fn = self.host, self.fn
        for e in dict.fromkeys(e for v in values for e in from_mlir(v).shape if not e.is_Integer):
            n = host.size(e)
            if fn.interval(n)[0] < 0:
                text = f"a tensor's size {spell(e, host.names)} at {where(op)} must be at least 0"
                host.require(fn.cmp("ge", n, 0), host.low.checks.add("MIN", text), fn.i64(0), n)
                fn.assume(n, 0)
