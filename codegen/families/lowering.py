"""What the families share while a module is lowered: kernels, constants, checks, and views of memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

import sympy
import torch

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.constants import Constants, States
from dhlo.codegen.families.gemm.quantised import QuantisedMatrix
from dhlo.codegen.families.gemm.register_tile import tile_spec
from dhlo.codegen.families.kernel import Checks
from dhlo.codegen.families.structure import Structure
from dhlo.codegen.kernel_ir.builder import KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.errors import InternalError
from dhlo.ir.coded import Coded, coded, is_constant
from dhlo.ir.dialect import Kind, Op, attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.elementwise import Convert
from dhlo.ir.ops.movement import Weight
from dhlo.ir.ops.quantised import Dequantize, along
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import View, strided

__all__ = ["GroupHost", "Lowering", "anchor_of", "view_pointer"]


T = TypeVar("T")


class GroupHost(HostContext, Protocol):
    """The host program as families see it that stage memory and make checks, beyond launches."""

    def size(self, e: sympy.Expr | int) -> V: ...
    def pointer(self, v: Value) -> V: ...
    def constant(self, offset: int) -> V: ...
    def workspace(self) -> V: ...
    def slot(self, s: Slot) -> V: ...
    def array(self, values: list[V]) -> V: ...
    def require(self, ok: V, check: int, expected: V, got: V) -> None: ...
    def mark_data_dependent(self) -> None: ...
    def unless_planning(self, value: Callable[[], V], planned: V) -> V: ...


def anchor_of(group: Group, kind: Kind) -> Op:
    """The op that shapes a group."""
    found = [op for op in group.operation.regions[0].blocks[0].operations if getattr(op, "kind", None) is kind]
    if len(found) != 1:
        raise InternalError(f"a {kind.value} group holds {len(found)} anchors")
    anchor: Op = found[0]
    return anchor


class Lowering:
    """Lowers groups of one module for the target of a module of kernels; these, constants and checks collect here.

    Lowerings of the same module for other targets add to the same constants and checks, those of other entries of a model to the
    same kernels and constants: those of equal keys are one.
    """

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        module: KernelModule,
        states: States,
        constants: Constants,
        checks: Checks,
        *,
        winograd: bool = True,
    ) -> None:
        """`winograd`: see `Options`."""
        self.tiles, self.winograd = tile_spec(module.target), winograd
        self.module, self.states, self.constants, self.checks = module, states, constants, checks
        self.weights = weights
        self.weight_bytes = sum(t.numel() * t.element_size() for t in weights.values())
        self._known: dict[Any, tuple[Structure, Any, set[str]]] = {}

    def once(self, group: Group, what: str, make: Callable[[], T]) -> T:
        """Lowers a group, or reuses what was made for an earlier one of the same structure, with this group's buffers and sizes."""
        structure = Structure(group)
        key = (what, structure.key)
        if key not in self._known:
            with self.module.asked() as asked:
                self._known[key] = (structure, make(), asked)
        made_for, made, asked = self._known[key]
        self.module.functions.asked |= asked
        lowered: T = made
        return lowered if made_for is structure else structure.adopt(lowered, made_for, self.checks.index_check)

    # ------------------------------------------------------------------ constants
    def constant_value(self, v: Value) -> torch.Tensor | None:
        """The value of what depends on weights alone, through views; None otherwise."""
        op = defining(v)
        if op is None:
            return None
        if isinstance(op, Weight):
            return self.weights[ir.StringAttr(op.operation.attributes["name_"]).value]
        args: list[torch.Tensor | None]
        if isinstance(op, (Convert, Dequantize)) and coded(v) is not None:
            args = [self._evaluate(x) for x in op.operands]
        elif op.kind is not Kind.MOVEMENT or op.mentions() or not all(from_mlir(x).is_static for x in (v, *op.operands)):
            return None
        else:
            args = [self.constant_value(x) for x in op.operands]
        if any(a is None for a in args):
            return None
        result: torch.Tensor = op.reference(args, lambda e: int(e))[0]
        return result

    def _evaluate(self, v: Value) -> torch.Tensor:
        """The value of what `is_constant`."""
        op = defining(v)
        if isinstance(op, Weight):
            return self.weights[attr(op, "name_")]
        result: torch.Tensor = op.reference([self._evaluate(x) for x in op.operands], lambda e: int(e))[0]
        return result

    def quantised(self, v: Value) -> QuantisedMatrix | None:
        """The matrix, kept as codes, that a product's right side is; None where it isn't one or has no kernel in this form. Numbers
        of f16 are codes, too: also those that codes in no such form stand for."""
        found = coded(v)
        matrix = None if found is None else self._coded_matrix(found)
        if matrix is None and from_mlir(v).dtype.name == "f16":
            numbers = self.constant_value(v)
            if numbers is None and is_constant(v):
                numbers = self._evaluate(v)
            if numbers is not None and QuantisedMatrix.fits("f16", numbers):
                return QuantisedMatrix("f16", numbers, None, None)
        return matrix

    def _coded_matrix(self, found: Coded) -> QuantisedMatrix | None:
        """The matrix of codes as they are; None where there is no form for them."""
        op = found.op
        codes, *parameters = (self._evaluate(x).permute(found.perm) for x in op.operands)
        parameters = [along(p, (*p.shape[:-1], codes.shape[-1])) for p in parameters]  # blocks of columns
        code = attr(op, "code") if isinstance(op, Dequantize) else from_mlir(op.operands[0]).dtype.name
        if not QuantisedMatrix.fits(code, codes, *parameters):
            return None
        scale, zero = [*parameters, None, None][:2]
        return QuantisedMatrix(code, codes, scale, zero)

    def kept_codes(self, v: Value) -> tuple[str, torch.Tensor] | None:
        """Codes without scales, and their form, that a value is made of; None where it is of no such."""
        found = coded(v)
        if found is None or len(found.op.operands) > 1:
            return None
        source = found.op.operands[0]
        code = attr(found.op, "code") if isinstance(found.op, Dequantize) else from_mlir(source).dtype.name
        return code, self._evaluate(source).permute(found.perm)

    def constant_key(self, v: Value) -> Hashable:
        """Identifies a constant by the weights, views and conversions that make it."""
        op = defining(v)
        if isinstance(op, Weight):
            name: str = attr(op, "name_")
            return name
        attrs = tuple(str(op.operation.attributes[n]) for n in op.operation.attributes)
        return (op.OPERATION_NAME, str(v.type), attrs, *(self.constant_key(x) for x in op.operands))

    def view(self, group: Group, v: Value) -> View:
        """An operand as a view of a buffer outside the group."""
        block = group.operation.regions[0].blocks[0]

        def outside(x: Value) -> bool:
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
