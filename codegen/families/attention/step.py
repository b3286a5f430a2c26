"""Attention of groups: views of Q, K and V, the mask, the order of the result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import sympy

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs, Slot
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.attention.attention import Attention
from dhlo.codegen.families.attention.cascade import Batch, Count
from dhlo.codegen.families.attention.common import Paging, Rows
from dhlo.codegen.families.attention.paged import PagedKernel
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.kernel import GroupKernel, where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import I8, I64, PTR, Fn, KernelModule, V
from dhlo.errors import CompileError
from dhlo.ir.coded import Stored, stored_rows
from dhlo.ir.dialect import Kind, Op, attr
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import Attention as AttentionOp
from dhlo.ir.ops.compute import extra
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.movement import Transpose
from dhlo.ir.ops.paged import PagedAttention, hidden_keys
from dhlo.ir.symbols import FloorDiv, is_static, parse
from dhlo.ir.types import TensorType, from_mlir
from dhlo.shape_infer.views import View, dense_strides

__all__ = ["AttentionFamily", "PagedAttentionFamily"]


class Mask:
    """The mask of a group as its kernels compute it, a vector of keys at a time.

    digest     tells masks that are computed differently apart
    slots      what kernels read for it, in the order in which it lies behind their own arguments
    lookups    number of an index check -> the op that it is about
    """

    def __init__(self, low: Lowering, group: Group, value: Value, first: int) -> None:
        """What kernels read for it lies behind their own `first` arguments."""
        self.first = first
        kernel = GroupKernel(KernelModule(low.module.target), group, low.checks)
        self.value, self.members, self.check_of = value, kernel.em.members, kernel.em.check_of
        self.slots: list[Slot] = []
        self.lookups = kernel.lookups
        self._emitters: dict[Fn, Emitter] = {}
        draft = Fn(KernelModule(low.module.target), "mask", [("args", PTR), *((n, I64) for n in "bhqk")])
        b, h, q, k0 = draft.args[1:]
        draft.ret(self.emit(draft, b, h, q, k0, draft.tail_mask(k0)))
        draft.done()
        self.digest = hashlib.sha1(draft.module.functions["mask"].body.encode()).hexdigest()[:10]

    def emit(self, fn: Fn, b: V, h: V, q: V, k0: V, lanes: V) -> V:
        """A `MaskEmitter`."""
        if fn not in self._emitters:
            args = KernelArgs(fn, fn.args[0], self.first, self.slots)
            self._emitters[fn] = Emitter(fn, args, self.members, self.check_of)
        em = self._emitters[fn]
        with em.scope(lanes):
            x = em.value(self.value, [Index(b), Index(h), Index(q), Index(k0, 1, multiple=fn.lanes)])
        self.slots = em.args.slots
        return x if x.lanes else fn.splat(x)


Kernel = TypeVar("Kernel", Attention, PagedKernel)


@dataclass
class _Kernels(Generic[Kernel]):
    """Attention kernels, and what their mask reads."""

    attention: Kernel
    slots: list[Slot]
    lookups: dict[int, Op]


def _masked(low: Lowering, group: Group, attention: Kernel, mask: Value | None) -> _Kernels[Kernel]:
    """Kernels under a mask, and a name that tells it, so that layers share them."""
    if mask is None:
        return _Kernels(attention, [], {})
    made = Mask(low, group, mask, attention.first_extra)
    return _Kernels(replace(attention, emit_mask=made.emit, name=f"attention_{made.digest}"), made.slots, made.lookups)


def _scored(op: Op) -> dict[str, Any]:
    """What becomes of scores."""
    return {"sinks": extra(op, 1) is not None, "softcap": float(attr(op, "softcap"))}


def _sinks(low: Lowering, group: Group, op: Op) -> list[View]:
    return [low.view(group, v) for v in (extra(op, 1),) if v is not None]


def _check_rows(op: Op, q: TensorType, values: TensorType) -> None:
    """Raises CompileError for head sizes that aren't static and for elements that have no kernel."""
    if q.dtype.name not in ("f32", "f16", "bf16") or not (is_static(q.shape[-1]) and is_static(values.shape[-1])):
        raise CompileError(
            f"attention of {q} with values {values} has no kernel yet",
            where=where(op),
            hint="head sizes must be static and elements f32, f16 or bf16",
        )


class AttentionFamily(ChoiceFamily):
    """Attention; its mask is computed inside the kernel, which decodes keys and values that are stored in fewer bits; its result
    may be stored with dims in another order."""

    anchor = Kind.ATTENTION.value
    ops = (AttentionOp,)

    def __init__(self, low: Lowering, group: Group) -> None:
        """Raises CompileError for head sizes that aren't static and for elements that have no kernel."""
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.ATTENTION)
        operands = list(self.op.operands)
        q, _, v = (from_mlir(x) for x in operands[:3])
        _check_rows(self.op, q, v)
        self.head_dim, self.value_dim, self.elem = int(q.shape[3]), int(v.shape[3]), q.dtype.name
        self.stored = [stored_rows(self.op, i) or Stored(x, None) for i, x in enumerate(operands[:3])]
        self.views = [low.view(group, x.values) for x in self.stored]
        self.scales = [low.view(group, x.scale) for x in self.stored if x.scale is not None]
        self.mask = extra(self.op, 4)
        self.sinks = _sinks(low, group, self.op)

    def emit_kernels(self) -> None:
        self.emitted = self.low.once(self.group, "attention", self._emit)
        self.workspace = sympy.Integer(self.emitted.attention.workspace_bytes)

    def _emit(self) -> _Kernels[Attention]:
        causal = bool(attr(self.op, "causal"))
        k, v = (Rows(from_mlir(x.values).dtype.name, x.scale is not None) for x in self.stored[1:])
        attention = Attention(self.head_dim, self.value_dim, self.elem, causal, k=k, v=v, **_scored(self.op), tiles=self.low.tiles)
        made = _masked(self.low, self.group, attention, self.mask)
        made.attention.emit_kernels(self.low.module)
        return made

    def emit_launch(self, host: GroupHost) -> None:
        q, k, v = self.views
        strides = _output_strides(self.group, self.op)
        s = host.size
        b, hq, sq = q.shape[:3]
        hkv, skv = k.shape[1:3]
        group = FloorDiv(hq, hkv) if hkv != hq else sympy.Integer(1)
        self.emitted.attention.emit_launch(
            host,
            q=view_pointer(host, q),
            k=view_pointer(host, k),
            v=view_pointer(host, v),
            o=host.pointer(self.group.results[0]),
            workspace=host.workspace(),
            batch=s(b),
            kv_heads=s(hkv),
            group=s(group),
            sq=s(sq),
            skv=s(skv),
            q_strides=[s(x) for x in q.strides[:3]],
            k_strides=[s(x) for x in k.strides[:3]],
            v_strides=[s(x) for x in v.strides[:3]],
            o_strides=[s(x) for x in strides[:3]],
            scale=float(attr(self.op, "scale")),
            past=s(parse(attr(self.op, "past"))),
            scales=[a for x in self.scales for a in (view_pointer(host, x), *(s(n) for n in x.strides[:3]))],
            sinks=[view_pointer(host, x) for x in self.sinks],
            extra_args=[host.slot(x) for x in self.emitted.slots],
        )


_PAGE_UNIT = 16  # slots that a block has a multiple of: kernels score as many keys at once


class PagedAttentionFamily(ChoiceFamily):
    """Attention of packed sequences over pools of blocks; masks and orders of results are as those of `AttentionFamily`."""

    anchor = Kind.ATTENTION.value
    ops = (PagedAttention,)

    def __init__(self, low: Lowering, group: Group) -> None:
        """Raises CompileError for head sizes that aren't static, and for elements and blocks that have no kernel."""
        super().__init__(low, group)
        self.op = anchor_of(group, Kind.ATTENTION)
        operands = list(self.op.operands)
        q, _, values = (from_mlir(x) for x in operands[:3])
        self.block = int(attr(self.op, "block"))
        _check_rows(self.op, q, values)
        if self.block % _PAGE_UNIT:
            raise CompileError(f"blocks of {self.block} slots have no kernel: their number is a multiple of {_PAGE_UNIT}")
        self.head_dim, self.value_dim, self.elem = int(q.shape[3]), int(values.shape[2]), q.dtype.name
        self.stored = [stored_rows(self.op, i) or Stored(x, None) for i, x in enumerate(operands[:3])]
        self.views = [low.view(group, x) for x in (*(s.values for s in self.stored), *operands[3:6])]
        self.scales = [low.view(group, s.scale) for s in self.stored if s.scale is not None]
        self.mask = extra(self.op, 4)
        self.sinks = _sinks(low, group, self.op)
        self.hidden = [low.view(group, v) for v in (hidden_keys(self.op),) if v is not None]

    def emit_kernels(self) -> None:
        self.emitted = self.low.once(self.group, "paged attention", self._emit)
        kernel, sequences = self.emitted.attention, self.views[3].shape[0]
        (_, heads, tokens, _), kv = self.views[0].shape, self.views[1].shape[0]
        self.begun_rows = sympy.Min(heads * tokens, kv * kernel.spec.few_rows * sequences)
        self.counts = kernel.partial_bytes + kernel.begun_row_bytes * self.begun_rows  # where they lie, behind partial results
        self.positions = self.counts + 8 * len(Count) * (sequences + 1)
        self.workspace = self.positions + 4 * tokens

    def _emit(self) -> _Kernels[PagedKernel]:
        paging = Paging(self.block, int(attr(self.op, "window")))
        causal = bool(attr(self.op, "causal"))
        k, v = (Rows(from_mlir(x.values).dtype.name, x.scale is not None) for x in self.stored[1:])
        what = causal, None, paging, "attention", self.low.tiles
        kernel = PagedKernel(self.head_dim, self.value_dim, self.elem, *what, **_scored(self.op), k=k, v=v, hides=bool(self.hidden))
        made = _masked(self.low, self.group, kernel, self.mask)
        made.attention.emit(self.low.module)
        return made

    def emit_launch(self, host: GroupHost) -> None:
        q, k, v, tables, starts, lengths = self.views
        s, zero = host.size, host.fn.i64(0)
        heads, kv = q.shape[1], k.shape[0]
        checks = self.low.checks
        partial = host.workspace()
        batch = Batch(
            view_pointer(host, tables),
            s(tables.shape[1]),
            view_pointer(host, starts),
            view_pointer(host, lengths),
            s(tables.shape[0]),
            s(q.shape[2]),
            s(FloorDiv(k.shape[1], self.block)),
            host.slot(("errors", checks.index_check(self.op))),
            partial,
            host.fn.gep(partial, s(self.counts), I8),
            host.fn.gep(partial, s(self.positions), I8),
            host.fn.gep(partial, self.emitted.attention.partial_bytes, I8),
            s(self.begun_rows),
        )
        text = (
            f"{self.op.OPERATION_NAME} at {where(self.op)}: starts ascend from 0 to the number of tokens, and each length is that "
        )
        text += "of the sequence's tokens at least, and of its blocks at most"
        self.emitted.attention.emit_launch(
            host,
            checks.add("ASSERT", text),
            batch,
            q=view_pointer(host, q),
            k=view_pointer(host, k),
            v=view_pointer(host, v),
            o=host.pointer(self.group.results[0]),
            kv_heads=s(kv),
            group=s(FloorDiv(heads, kv) if heads != kv else sympy.Integer(1)),
            q_strides=[s(x) for x in q.strides[:3]],
            k_strides=[zero, *(s(x) for x in k.strides[:2])],
            v_strides=[zero, *(s(x) for x in v.strides[:2])],
            o_strides=[s(x) for x in _output_strides(self.group, self.op)[:3]],
            scale=float(attr(self.op, "scale")),
            scales=[a for x in self.scales for a in (view_pointer(host, x), zero, *(s(n) for n in x.strides[:2]))],
            sinks=[view_pointer(host, x) for x in self.sinks],
            hidden=[view_pointer(host, x) for x in self.hidden],
            extra_args=[host.slot(x) for x in self.emitted.slots],
        )


def _output_strides(group: Group, op: Op) -> tuple[sympy.Expr, ...]:
    """Of the result [batch, head, row, column], which the group may store with its dims in another order."""
    strides = dense_strides(from_mlir(group.results[0]).shape)
    for x in group.operation.regions[0].blocks[0].operations:
        if isinstance(x, Transpose) and x.operands[0] == op.results[0]:
            perm = attr(x, "perm")
            return tuple(strides[perm.index(d)] for d in range(4))
    return strides
