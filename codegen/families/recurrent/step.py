"""Recurrent layers as a loop of products and cells in the host program."""

from __future__ import annotations

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.copy.flat import emit_copy, emit_copy_flat
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.gemm.factor import Factor
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.families.recurrent.recurrent import CELL_WORK, CHUNK, emit_cell
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.sequence import Gru, Lstm, Rnn
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned

__all__ = ["RecurrentFamily"]


class RecurrentFamily(ChoiceFamily):
    """One direction of a recurrent layer: per step a product with the hidden state, then the cell, then the projection if any."""

    anchor = Kind.OPAQUE.value
    ops = (Gru, Lstm, Rnn)

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.OPAQUE)
        names = {Lstm: "lstm", Gru: "gru"}
        self.kind = names.get(type(self.op)) or str(attr(self.op, "activation"))
        self.views = [low.view(group, v) for v in self.op.operands]
        self.gates = from_mlir(self.op.operands[0])
        self.w = Factor(low, group, self.op, 1, transposed=True)
        projects = self.kind == "lstm" and len(self.views) == 5
        self.projection = Factor(low, group, self.op, 4, transposed=True) if projects else None
        self.hidden = self.w.k if self.projection is None else self.projection.k

    def emit_kernels(self) -> None:
        self.cell = emit_cell(self.low.module, self.kind, self.gates.dtype)
        emit_copy_flat(self.low.module)
        product = aligned(self.gates.with_shape(self.gates.shape[1:]).bytes)  # of one step
        self.w.emit_kernels()
        self.workspace = self.w.workspace + product
        if self.projection is not None:
            self.projection.emit_kernels(at=self.workspace)
            self.before_projection = self.workspace + self.projection.workspace
            self.workspace = self.before_projection + product  # of which a fourth is used

    def emit_launch(self, host: GroupHost) -> None:
        fn, dtype = host.fn, self.gates.dtype
        self.w.prepare(host)
        steps, batch, hidden, size = (host.size(e) for e in (*self.gates.shape[:2], self.hidden, self.w.k))
        inputs = [view_pointer(host, v) for v in self.views]
        yields = list(list(self.group.operation.regions[0].blocks[0].operations)[-1].operands)
        results = [host.pointer(self.group.results[yields.index(r)]) for r in self.op.results]
        product = fn.gep(host.workspace(), host.size(self.w.workspace), "i8")
        state, gate_elems = fn.mul(batch, size), fn.mul(batch, self.w.sizes[0])
        items = fn.mul(batch, fn.ceildivu(hidden, CHUNK))
        h0 = inputs[3 if self.kind == "gru" else 2]
        if self.kind == "lstm":
            emit_copy(host, inputs[3], results[2], fn.mul(fn.mul(batch, hidden), dtype.bytes))
        if self.projection is not None:
            self.projection.prepare(host)
            projected = fn.gep(host.workspace(), host.size(self.before_projection), "i8")
        with fn.loop(0, steps, 1, [h0]) as lp:
            t = fn.sub(fn.sub(steps, 1), lp.iv) if attr(self.op, "reverse") else lp.iv
            out = fn.gep(results[0], fn.mul(t, state), dtype.name)
            self.w.multiply(host, lp.carried[0], batch, product)
            to = out if self.projection is None else projected
            rest = [inputs[2], lp.carried[0]] if self.kind == "gru" else results[2:]
            gates = fn.gep(inputs[0], fn.mul(t, gate_elems), dtype.name)
            host.launch(self.cell, [gates, product, *rest, to, hidden], items, grain_of(host, CELL_WORK))
            if self.projection is not None:
                self.projection.multiply(host, projected, batch, out)
            lp.yield_(out)
        emit_copy(host, lp.results[0], results[1], fn.mul(state, dtype.bytes))
