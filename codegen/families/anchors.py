"""Steps for attention, convolution and pooling groups: how their ops map onto the kernel families."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs, Slot
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.attention.attention import EXTRA_ARGS, Attention
from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.transposed import ConvTranspose
from dhlo.codegen.families.epilogue import lower_epilogue
from dhlo.codegen.families.kernel import GroupKernel, where
from dhlo.codegen.families.pool.adaptive import AdaptivePool
from dhlo.codegen.families.pool.pool import Pool
from dhlo.codegen.families.steps import GroupHost, Lowering, anchor_of, epilogue_args, view_pointer
from dhlo.codegen.kernel_ir.builder import Fn, KernelModule, V
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.ops.movement import Transpose
from dhlo.ir.symbols import FloorDiv, evaluate, is_static, product
from dhlo.ir.types import TensorType, from_mlir
from dhlo.shape_infer.buffers import aligned
from dhlo.shape_infer.views import dense_strides

__all__ = ["AttentionStep", "ConvStep", "PoolStep"]


@dataclass
class _Kernels:
    """Attention kernels in the module, and what the mask reads."""

    attention: Attention
    slots: list[Slot]
    lookups: dict[int, Any]


class AttentionStep:
    """Attention; its mask is computed inside the kernel, its result may be stored with dims in another order."""

    def __init__(self, low: Lowering, group: Any) -> None:
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
        name = "attention_" + hashlib.sha1("".join(own.values()).encode()).hexdigest()[:10]
        for n, t in scratch.functions.items():
            self.low.module.functions.setdefault(n.replace(draft.name, name), t.replace(draft.name, name))
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

    def emit(self, host: GroupHost) -> None:
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


class ConvStep:
    """A convolution, transposed or not, with its epilogue."""

    def __init__(self, low: Lowering, group: Any) -> None:
        op = anchor_of(group, Kind.CONVOLUTION)
        self.x, w = (from_mlir(v) for v in op.operands)
        self.out = from_mlir(op.results[0])
        if self.x.dtype.name not in ("f32", "f64") or not w.is_static or not is_static(self.x.shape[1]):
            raise CompileError(
                f"convolution of {self.x} with {w} has no kernel yet",
                where=where(op),
                hint="channels and kernel must be static, elements f32 or f64",
            )
        self.view = low.view(group, op.operands[0])

        def get(n: str) -> Any:
            return attr(op, n)

        channels, kernel, groups = int(self.x.shape[1]), tuple(int(s) for s in w.shape[2:]), get("groups")
        self.conv: Conv | ConvTranspose
        self.workspace = sympy.Integer(0)
        if get("transposed"):
            self.conv = ConvTranspose(
                channels,
                int(w.shape[1]) * groups,
                kernel,
                tuple(get("stride")),
                tuple(get("padding")),
                tuple(get("output_padding")),
                tuple(get("dilation")),
                groups,
                self.x.dtype.name,
                spec=low.tiles,
            )
            self.workspace = aligned(self.out.bytes)
        else:
            self.conv = Conv(
                channels,
                int(w.shape[0]),
                kernel,
                tuple(get("stride")),
                tuple(op.pads),
                tuple(get("dilation")),
                groups,
                self.x.dtype.name,
                spec=low.tiles,
            )
        self.phases = self.workspace
        self.conv.emit_kernels(low.module)
        self.epilogue = low.once(group, "epilogue", lambda: lower_epilogue(low.module, group, op, low.checks, self._place))
        value = low.constant_value(op.operands[1])
        self.packed: int | None = None
        if value is not None:
            conv, weight = self.conv, value.detach().contiguous()
            self.packed = low.constants.add(
                ("packed_conv", conv, low.constant_key(op.operands[1])),
                conv.workspace_bytes,
                lambda: np.ascontiguousarray(conv.pack_weight(weight.numpy())),
            )
        else:
            self.w = low.view(group, op.operands[1])
            self.workspace = self.workspace + self.conv.workspace_bytes

    def _place(self, em: Any, batch: Any, row: Any, column: Any) -> list[Any]:
        column = Index(column.base, column.step, column.vec)  # positions may start anywhere
        return [batch, row, *em.split(column, self.out.shape[2:])]

    def emit(self, host: GroupHost) -> None:
        sizes = [host.size(s) for s in (self.x.shape[0], *self.x.shape[2:])]
        if self.packed is not None:
            w = host.constant(self.packed)
        else:
            w = host.fn.gep(host.workspace(), host.size(self.phases), "i8")
            self.conv.emit_pack(host, weight=view_pointer(host, self.w), packed=w)
        epilogue, eargs = epilogue_args(host, self.epilogue)
        x = view_pointer(host, self.view)
        if isinstance(self.conv, ConvTranspose):
            self.conv.emit_launch(
                host,
                x=x,
                w=w,
                sizes=sizes,
                epilogue=epilogue,
                epilogue_args=eargs,
                workspace=host.workspace() if self.phases != 0 else x,
            )
        else:
            self.conv.emit_launch(host, x=x, w=w, sizes=sizes, epilogue=epilogue, epilogue_args=eargs)


class PoolStep:
    """Pooling over windows, fixed or adaptive."""

    workspace: sympy.Expr = sympy.Integer(0)

    def __init__(self, low: Lowering, group: Any) -> None:
        op = anchor_of(group, Kind.WINDOW)
        self.group, self.x, self.out = group, from_mlir(op.operands[0]), from_mlir(op.results[0])
        self.view = low.view(group, op.operands[0])
        if not self.x.dtype.is_float:
            raise CompileError(f"pooling of {self.x} has no kernel yet", where=where(op), hint="pool floats")
        self.pool: Pool | AdaptivePool
        if op.OPERATION_NAME == "dhlo.adaptive_pool":
            self.spatial = attr(op, "spatial")
            self.pool = AdaptivePool(attr(op, "how"), elem=self.x.dtype.name)
        else:
            self.pool = _pool(op, self.x, self.out)
            self.spatial = len(self.pool.kernel)
        self.pool.emit_kernels(low.module)

    def emit(self, host: GroupHost) -> None:
        n = self.spatial
        planes = host.size(product(self.x.shape[:-n]))
        spatial = [host.size(s) for s in self.x.shape[-n:]]
        x, out = view_pointer(host, self.view), host.pointer(self.group.results[0])
        if isinstance(self.pool, AdaptivePool):
            self.pool.emit_launch(
                host, x=x, out=out, planes=planes, spatial=spatial, out_spatial=[host.size(s) for s in self.out.shape[-n:]]
            )
        else:
            self.pool.emit_launch(host, x=x, out=out, planes=planes, spatial=spatial)


def _pool(op: Any, x: TensorType, out: TensorType) -> Pool:
    """The pooling whose output sizes are those of the result type: rounded down, or up."""

    def get(n: str) -> Any:
        return attr(op, n)

    n = len(get("window"))
    for ceil in (False, True):
        pool = Pool(
            get("how"),
            tuple(get("window")),
            tuple(get("stride")),
            tuple(get("padding")),
            tuple(get("dilation")),
            ceil,
            get("count_pad"),
            get("divisor") or None,
            elem=x.dtype.name,
        )
        if _agree(pool, x.shape[-n:], out.shape[-n:]):
            return pool
    raise CompileError(f"pooling can't give {out} from {x}", where=where(op))


def _agree(pool: Pool, given: Sequence[sympy.Expr], wanted: Sequence[sympy.Expr]) -> bool:
    for base in range(37, 37 + 2 * max(pool.stride)):  # sizes of every remainder
        env = {s.name: base + 3 * i for i, s in enumerate(sorted({s for e in [*given, *wanted] for s in e.free_symbols}, key=str))}
        sizes = [evaluate(e, env) for e in given]
        if pool.output_size(sizes) != [evaluate(e, env) for e in wanted]:
            return False
    return True
