"""What the families share while a module is lowered: kernels, constants, checks, and views of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import sympy
import torch

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.constants import Constants, States
from dhlo.codegen.families.gemm.microkernel import tile_spec
from dhlo.codegen.families.kernel import Checks
from dhlo.codegen.families.structure import Structure
from dhlo.codegen.kernel_ir.builder import KernelModule, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.target import Target
from dhlo.errors import InternalError
from dhlo.ir.dialect import Kind, defining
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import Weight
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import View, strided

__all__ = ["GroupHost", "Lowering", "anchor_of", "view_pointer"]


T = TypeVar("T")


class GroupHost(HostContext, Protocol):
    """The host program as families see it that stage memory and make checks, beyond launches."""

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


def anchor_of(group: Any, kind: Kind) -> Any:
    """The op that shapes a group."""
    found = [op for op in group.operation.regions[0].blocks[0].operations if getattr(op, "kind", None) is kind]
    if len(found) != 1:
        raise InternalError(f"a {kind.value} group holds {len(found)} anchors")
    return found[0]


class Lowering:
    """Lowers groups of one module for one target; kernels, constants and checks collect here.

    Lowerings of the same module for other targets add to the same constants and checks: those of equal keys are one.
    """

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        target: Target,
        state: dict[str, torch.Tensor],
        constants: Constants,
        checks: Checks,
        *,
        winograd: bool = True,
    ) -> None:
        """`winograd`: see `Options`."""
        self.tiles, self.winograd = tile_spec(target), winograd
        self.module, self.constants, self.checks = KernelModule(target), constants, checks
        self.states = States(state, self.constants)
        self.weights = weights
        self._known: dict[Any, tuple[Structure, Any]] = {}

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
