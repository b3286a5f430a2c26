"""Attention of groups: views of Q, K and V, the mask, the order of the result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs, Slot
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.attention.attention import EXTRA_ARGS, Attention
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.kernel import GroupKernel, where
from dhlo.codegen.families.lowering import GroupHost, anchor_of, view_pointer
from dhlo.codegen.kernel_ir.builder import Fn, KernelModule, V
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.movement import Transpose
from dhlo.ir.symbols import FloorDiv, is_static
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import dense_strides

__all__ = ["AttentionFamily"]


@dataclass
class _Kernels:
    """Attention kernels in the module, and what the mask reads."""

    attention: Attention
    slots: list[Slot]
    lookups: dict[int, Any]


class AttentionFamily(Family):
    """Attention; its mask is computed inside the kernel, its result may be stored with dims in another order."""

    anchor = Kind.ATTENTION.value

    def emit_kernels(self) -> None:
        low, group = self.low, self.group
        op = anchor_of(group, Kind.ATTENTION)
        self.op, self.group, self.low = op, group, low
        q, _, v = (from_mlir(x) for x in list(op.operands)[:3])
        if q.dtype.name not in ("f32", "f16", "bf16") or not (is_static(q.shape[3]) and is_static(v.shape[3])):
            raise CompileError(
                f"attention of {q} with values {v} has no kernel yet",
                where=where(op),
                hint="head sizes must be static and elements f32, f16 or bf16",
            )
        self.views = [low.view(group, x) for x in list(op.operands)[:3]]
        self.mask = op.operands[3] if len(op.operands) > 3 else None
        self.slots: list[Slot] = []
        self._args: dict[int, KernelArgs] = {}
        draft = Attention(
            int(q.shape[3]),
            int(v.shape[3]),
            q.dtype.name,
            attr(op, "causal"),
            self._emit_mask if self.mask is not None else None,
            "attention_tmp",
            tiles=low.tiles,
        )
        made = low.once(group, "attention", lambda: self._make(draft))
        self.attention, self.slots = made.attention, made.slots
        self.workspace = sympy.Integer(self.attention.workspace_bytes)

    def _make(self, draft: Attention) -> _Kernels:
        kernel = GroupKernel(KernelModule(self.low.module.target), self.group, self.low.checks)
        self.members, self.check_of = kernel.em.members, kernel.em.check_of
        attention = self._named(draft)
        return _Kernels(attention, self.slots, kernel.lookups)

    def _named(self, draft: Attention) -> Attention:
        """Emits the kernels under a name made from their content, so that layers share them."""
        scratch = KernelModule(self.low.module.target)
        draft.emit_kernels(scratch)
        own = {n: t for n, t in scratch.functions.items() if n.startswith(draft.name)}
        name = "attention_" + hashlib.sha1("".join(s.body for s in own.values()).encode()).hexdigest()[:10]
        for n, t in scratch.functions.items():
            self.low.module.functions.setdefault(n.replace(draft.name, name), t.renamed(draft.name, name))
        for n, t in scratch.globals.items():
            self.low.module.globals.setdefault(n, t)
        return Attention(draft.head_dim, draft.value_dim, draft.elem, draft.is_causal, draft.emit_mask, name, tiles=draft.tiles)

    def _emit_mask(self, fn: Fn, b: V, h: V, q: V, k0: V, lanes: V) -> V:
        args = self._args.setdefault(id(fn), KernelArgs(fn, fn.args[0], EXTRA_ARGS))
        for s in self.slots:  # the same arguments in the same order in every kernel
            args.get(s)
        em = Emitter(fn, args, self.members, self.check_of)
        with em.scope(lanes):
            x = em.value(self.mask, [Index(b), Index(h), Index(q), Index(k0, 1, multiple=fn.lanes)])
        self.slots = args.slots
        return x if x.lanes else fn.splat(x)

    def emit_launch(self, host: GroupHost) -> None:
        q, k, v = self.views
        out = from_mlir(self.group.results[0])
        strides = dense_strides(out.shape)
        last = self.group.operation.regions[0].blocks[0].operations
        t = next((x for x in last if isinstance(x, Transpose) and x.operands[0] == self.op.results[0]), None)
        if t is not None:
            perm = attr(t, "perm")
            strides = tuple(strides[perm.index(d)] for d in range(4))
        s = host.size
        b, hq, sq = q.shape[:3]
        hkv, skv = k.shape[1:3]
        group = FloorDiv(hq, hkv) if hkv != hq else sympy.Integer(1)
        self.attention.emit_launch(
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
            extra_args=[host.slot(x) for x in self.slots],
        )
