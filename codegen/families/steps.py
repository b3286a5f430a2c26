"""Lowers fused groups to steps of the host program: kernels into the module, launches when the host is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import sympy
import torch

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.constants import Constants, States
from dhlo.codegen.families.epilogue import Epilogue, lower_epilogue
from dhlo.codegen.families.gemm.matmul import Matmul, workspace_bytes
from dhlo.codegen.families.gemm.microkernel import BF16, tile_spec, unit
from dhlo.codegen.families.gemm.pack import pack_b
from dhlo.codegen.families.kernel import Checks, Launch, where
from dhlo.codegen.families.loops.loops import lower_loops
from dhlo.codegen.families.reduce.reduction import MAX_SPLIT, lower_reduction
from dhlo.codegen.families.structure import Structure
from dhlo.codegen.kernel_ir.builder import BITS, F32, F64, KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.target import Target
from dhlo.errors import CompileError, InternalError
from dhlo.ir.dialect import Kind, defining
from dhlo.ir.mlir import ir
from dhlo.ir.ops.complexes import Imag, Interleave, Real
from dhlo.ir.ops.control import Yield
from dhlo.ir.ops.movement import Weight
from dhlo.ir.symbols import exact_floors, least, product
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import View, strided

__all__ = ["GroupHost", "Lowering", "Step", "pack_matrix"]

T = TypeVar("T")


class GroupHost(HostContext, Protocol):
    """What steps need of the host beyond what kernel families do."""

    def size(self, e: sympy.Expr | int) -> V: ...
    def pointer(self, v: Any) -> V: ...
    def constant(self, offset: int) -> V: ...
    def workspace(self) -> V: ...
    def slot(self, s: Slot) -> V: ...
    def array(self, values: list[V]) -> V: ...
    def is_written_over(self, v: Any) -> bool: ...
    def require(self, ok: V, check: int, expected: V, got: V) -> None: ...
    def mark_data_dependent(self) -> None: ...
    def unless_planning(self, value: Callable[[], V], planned: V) -> V: ...


class Step(Protocol):
    """A group ready to run: `workspace` bytes live during the step; `emit` writes size arithmetic and launches."""

    workspace: sympy.Expr

    def emit(self, host: GroupHost) -> None: ...


class LaunchStep:
    """One kernel launch with sizes as expressions."""

    workspace: sympy.Expr = sympy.Integer(0)

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def emit(self, host: GroupHost) -> None:
        x = self.launch
        host.launch(x.kernel, [host.slot(s) for s in x.slots], host.size(x.count), host.size(x.grain), host.size(x.scratch))


class ReductionStep:
    """Reductions: in one launch; or, where they have few items and much to do for each, in parts that are then gathered."""

    workspace: sympy.Expr = sympy.Integer(0)

    def __init__(self, low: Lowering, group: Any) -> None:
        self.whole, self.split = low.once(group, "kernel", lambda: lower_reduction(low.module, group, low.checks))
        if self.split is not None:
            self.workspace = least(self.whole.count, sympy.Integer(MAX_SPLIT)) * self.split.parts * self.split.cell_bytes

    def emit(self, host: GroupHost) -> None:
        if self.split is None:
            LaunchStep(self.whole).emit(host)
            return
        fn, workspace = host.fn, host.workspace()
        launches = [
            (x, [host.slot(s) for s in x.slots], host.size(x.count), host.size(x.grain), host.size(x.scratch))
            for x in (self.whole, self.split.partial, self.split.gather)
        ]  # sizes stand outside of branches

        def launch(k: int, *first: V) -> None:
            x, slots, count, grain, scratch = launches[k]
            host.launch(x.kernel, [*first, *slots], count, grain, scratch)

        def apart() -> list[V]:
            launch(1, workspace)
            launch(2, workspace)
            return []

        def at_once() -> list[V]:
            launch(0)
            return []

        few = fn.cmp("le", launches[0][2], MAX_SPLIT)
        fn.if_else(fn.and_(few, fn.cmp("ge", host.size(self.split.parts), 2)), apart, at_once, [])


def anchor_of(group: Any, kind: Kind) -> Any:
    """The op that shapes a group."""
    found = [op for op in group.operation.regions[0].blocks[0].operations if getattr(op, "kind", None) is kind]
    if len(found) != 1:
        raise InternalError(f"a {kind.value} group holds {len(found)} anchors")
    return found[0]


class Lowering:
    """Lowers groups of one module; kernels, constants and checks collect here."""

    def __init__(self, weights: dict[str, torch.Tensor], target: Target, state: dict[str, torch.Tensor]) -> None:
        self.tiles = tile_spec(target)
        self.module, self.constants, self.checks = KernelModule(target), Constants(), Checks()
        self.states = States(state, self.constants)
        self.weights = weights
        self._known: dict[Any, tuple[Structure, Any]] = {}

    def lower(self, group: Any) -> Step:
        """Raises CompileError where a group has no kernel for its dtypes or sizes."""
        anchor = ir.StringAttr(group.operation.attributes["anchor"]).value
        for op in group.operation.regions[0].blocks[0].operations:
            if isinstance(op, (Real, Imag, Interleave, Yield)):
                continue
            if any(from_mlir(v).dtype.is_complex for v in [*op.operands, *op.results]):
                raise CompileError(f"{op.OPERATION_NAME} of complex numbers has no kernel yet", where=where(op))
        if anchor == "loops":
            return LaunchStep(self.once(group, "kernel", lambda: lower_loops(self.module, group, self.checks)))
        if anchor == "reduction":
            return ReductionStep(self, group)
        from dhlo.codegen.families.anchors import AttentionStep, ConvStep, PoolStep
        from dhlo.codegen.families.opaque import opaque_step

        steps: dict[str, Callable[[Lowering, Any], Step]] = {
            "matmul": MatmulStep,
            "attention": AttentionStep,
            "convolution": ConvStep,
            "window": PoolStep,
            "opaque": opaque_step,
        }
        if anchor not in steps:
            op = anchor_of(group, Kind(anchor))
            raise CompileError(f"{op.OPERATION_NAME} has no kernel yet", where=where(op))
        return steps[anchor](self, group)

    def once(self, group: Any, what: str, make: Callable[[], T]) -> T:
        """Lowers a group, or reuses what was made for an earlier one of the same structure, with this group's buffers and sizes."""
        structure = Structure(group)
        key = (what, structure.key)
        if key not in self._known:
            self._known[key] = (structure, make())
        made_for, made = self._known[key]
        lowered: T = made
        return lowered if made_for is structure else structure.adopt(lowered, made_for, self.checks.index_check)

    # ------------------------------------------------------------------ constants
    def constant_value(self, v: Any) -> torch.Tensor | None:
        """The value of what depends on weights alone, through views; None otherwise."""
        op = defining(v)
        if op is None:
            return None
        if isinstance(op, Weight):
            return self.weights[ir.StringAttr(op.operation.attributes["name_"]).value]
        if op.kind is not Kind.MOVEMENT or not all(from_mlir(x).is_static for x in op.operands):
            return None
        args = [self.constant_value(x) for x in op.operands]
        if any(a is None for a in args):
            return None
        result: torch.Tensor = op.reference(args, lambda e: int(e))[0]
        return result

    def constant_key(self, v: Any) -> Any:
        """Identifies a constant by the weights and views that make it."""
        op = defining(v)
        if isinstance(op, Weight):
            return ir.StringAttr(op.operation.attributes["name_"]).value
        attrs = tuple(str(op.operation.attributes[n]) for n in op.operation.attributes)
        return (op.OPERATION_NAME, attrs, *(self.constant_key(x) for x in op.operands))

    def view(self, group: Any, v: Any) -> View:
        """An operand as a view of a buffer outside the group."""
        block = group.operation.regions[0].blocks[0]

        def outside(x: Any) -> bool:
            op = defining(x)
            return op is None or op.operation.block != block or isinstance(op, Weight)

        view = strided(v, outside)
        if view is None:
            raise InternalError(f"operand of {group.OPERATION_NAME} is not a view of memory: {v}")
        return view


def view_pointer(host: GroupHost, view: View) -> V:
    """Address of a view's first element."""
    bytes_ = from_mlir(view.base).dtype.bytes
    p = host.pointer(view.base)
    return p if view.offset == 0 else host.fn.gep(p, host.size(view.offset * bytes_), "i8")


class MatmulStep:
    """A matrix product with its epilogue."""

    def __init__(self, low: Lowering, group: Any) -> None:
        op = anchor_of(group, Kind.MATMUL)
        self.a_type, self.b_type = (from_mlir(v) for v in op.operands)
        self.out = from_mlir(op.results[0])
        elem = self.a_type.dtype.name
        if elem not in (F32, F64, BF16):
            raise CompileError(f"matmul of {elem} has no kernel yet", where=where(op))
        rest = self.b_type.shape[-1] % low.tiles.nr(elem)
        self.matmul = Matmul(elem, low.tiles, narrow=not rest.is_Integer or 0 < int(rest) <= low.tiles.lanes(elem))
        self.a = low.view(group, op.operands[0])
        self.flat = self.b_type.rank == 2  # all leading dims of the left side are rows
        self.epilogue = low.once(group, "epilogue", lambda: lower_epilogue(low.module, group, op, low.checks, self._place))
        value = low.constant_value(op.operands[1])
        self.packed: int | None = None
        self.workspace: sympy.Expr = sympy.Integer(0)
        if value is not None:
            self._pack(low, op.operands[1], value)
        else:
            self.b = low.view(group, op.operands[1])
            k, n = self.b_type.shape[-2:]
            self.workspace = exact_floors(workspace_bytes(product(self.b_type.shape[:-2]), n, k, elem, low.tiles))

    def _pack(self, low: Lowering, v: Any, value: torch.Tensor) -> None:
        k, n = value.shape[-2:]
        batch = value.numel() // (k * n) if k * n else 0
        nbytes = int(workspace_bytes(1, n, k, self.matmul.elem, low.tiles))

        def data() -> Any:
            mats = value.detach().reshape(batch, k, n)
            packed = [pack_matrix(m, self.matmul.spec.nr(self.matmul.elem)) for m in mats]
            return packed[0] if len(packed) == 1 else np.concatenate([p.reshape(-1) for p in packed])

        self.packed = low.constants.add(("packed_b", low.constant_key(v)), batch * nbytes, data)
        self.packed_stride = nbytes * 8 // BITS[unit(self.matmul.elem)]

    def _place(self, em: Any, batch: Any, row: Any, column: Any) -> list[Any]:
        shape = self.out.shape
        if self.flat:
            return [*em.split(row, shape[:-1]), column]
        return [*em.split(batch, shape[:-2]), row, column]

    def emit(self, host: GroupHost) -> None:
        shape, zero = self.out.shape, sympy.Integer(0)
        m = product(shape[:-1]) if self.flat else shape[-2]
        k = self.a_type.shape[-1]
        row = _row_stride(self.a) if self.flat else self.a.strides[-2]
        batch, a_batch, b_batch = [sympy.Integer(1)] * 2, [zero] * 2, [zero] * 2
        if not self.flat:
            groups = _batch_dims(
                shape[:-2], self.a.strides[:-2], self._packed_strides() if self.packed is not None else self.b.strides[:-2]
            )
            for i, (n, sa, sb) in enumerate(groups):
                batch[2 - len(groups) + i], a_batch[2 - len(groups) + i], b_batch[2 - len(groups) + i] = n, sa, sb
        strides = [host.size(s) for s in (*a_batch, row, self.a.strides[-1])]
        b_strides = [host.size(s) for s in b_batch]
        if self.packed is None:
            b_strides += [host.size(s) for s in self.b.strides[-2:]]
        epilogue, eargs = epilogue_args(host, self.epilogue)
        touch = self.epilogue.touch
        self.matmul.emit_launch(
            host,
            a=view_pointer(host, self.a),
            b=host.constant(self.packed) if self.packed is not None else view_pointer(host, self.b),
            m=host.size(m),
            n=host.size(shape[-1]),
            k=host.size(k),
            a_strides=strides,
            b_strides=b_strides,
            batch=[host.size(n) for n in batch],
            epilogue=epilogue,
            epilogue_args=eargs,
            touch=None if touch is None else host.fn.address_of(touch),
            workspace=None if self.packed is not None else host.workspace(),
            packed=self.packed is not None,
        )

    def _packed_strides(self) -> list[sympy.Expr]:
        n, out = sympy.Integer(self.packed_stride), []
        for s in reversed(self.b_type.shape[:-2]):
            out.append(n)
            n = n * s
        return list(reversed(out))


def pack_matrix(m: torch.Tensor, nr: int) -> Any:
    """Packs [K, N]; the usual case of a transposed weight is packed from its own rows."""
    pairs = m.dtype == torch.bfloat16
    if pairs:
        m = m.view(torch.int16)
    if m.stride(0) == 1 and m.stride(1) != 1:
        return pack_b(m.t().numpy(), True, nr, pairs=pairs)
    return pack_b(m.contiguous().numpy(), False, nr, pairs=pairs)


def _row_stride(view: View) -> sympy.Expr:
    """Distance of rows when all leading dims are counted as one."""
    for n, s in reversed(list(zip(view.shape[:-1], view.strides[:-1], strict=True))):
        if n != 1:
            return s
    return view.shape[-1]


def _batch_dims(sizes: Any, a: Any, b: Any) -> list[tuple[Any, Any, Any]]:
    """Joins batch dims that step regularly on both sides; the kernels take two."""
    out: list[tuple[Any, Any, Any]] = []
    for n, sa, sb in zip(sizes, a, b, strict=True):
        if n == 1:
            continue
        if out and (out[-1][1] - sa * n).expand() == 0 and (out[-1][2] - sb * n).expand() == 0:
            out[-1] = (out[-1][0] * n, sa, sb)
        else:
            out.append((n, sa, sb))
    if len(out) > 2:
        raise CompileError("a batched product whose batch dims step in more than two irregular ways has no kernel yet")
    return out


def epilogue_args(host: GroupHost, e: Epilogue) -> tuple[V, V]:
    """The epilogue's address and its filled argument array."""
    return host.fn.address_of(e.symbol), host.array([host.slot(s) for s in e.slots])
