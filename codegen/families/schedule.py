"""Launches of the planned module: each group is followed by its `dhlo.launch` ops, or lists the kernels that it chooses from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import sympy

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.launch import is_kernel
from dhlo.errors import InternalError
from dhlo.ir.dialect import Kind, Op, attr, build, to_attr
from dhlo.ir.handles import Block, Value
from dhlo.ir.memory import buffers_of
from dhlo.ir.mlir import ir
from dhlo.ir.ops import host
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import as_expr, show
from dhlo.ir.types import from_mlir

__all__ = ["schedule_launches"]


def schedule_launches(low: Lowering, block: Block, families: Sequence[Family]) -> None:
    """Writes the launches of a planned function's groups as ops, and beside a group that chooses at each call the kernels that it
    chooses from. `families` are the groups', by number. Raises InternalError where a kernel isn't in the module."""
    for group, following in list(_groups(block)):
        family = families[attr(group, "number")]
        launches = family.launches()
        if launches is not None:
            _verify(low, group, [x.kernel for x in launches])
            with ir.InsertionPoint(following), group.location:
                _Writer(group).write(launches)
        else:
            group.operation.attributes["kernels"] = to_attr(family.kernels)


def _groups(block: Block) -> Iterator[tuple[Group, Op]]:
    """Groups in execution order, each with the op behind it."""
    for op, following in pairwise(list(block.operations)):
        if isinstance(op, Group):
            yield op, following
        elif getattr(op, "kind", None) is Kind.CONTROL:
            for region in op.regions:
                yield from _groups(region.blocks[0])


def _verify(low: Lowering, group: Group, kernels: Sequence[str]) -> None:
    for name in kernels:
        if not is_kernel(low.module, name):
            raise InternalError(f"the group at {group.location} launches {name}, which the module doesn't hold")


class _Writer:
    """Writes the launches of one group at the insertion point."""

    def __init__(self, group: Group) -> None:
        self.workspace = buffers_of(group, "workspace_memory")
        self.addresses: dict[tuple[Value, sympy.Expr], Value] = {}

    def write(self, launches: Sequence[Launch]) -> None:
        for x in launches:
            operands: list[Value] = []
            arguments = [self._argument(s, operands) for s in x.slots]
            sizes = {"count": _text(x.count), "work": _text(x.work), "scratch": _text(x.scratch)}
            build(host.Launch, operands, {"kernel": x.kernel, "arguments": arguments, **sizes})

    def _argument(self, slot: Slot, operands: list[Value]) -> dict[str, int | str]:
        """A kernel's argument as `dhlo.launch` says it. Adds the address that it is, if it is one, to the operands."""
        kind, what = slot
        match kind:
            case "pointer":
                return self._address(what, sympy.Integer(0), operands)
            case "view":
                return self._address(what.base, what.offset * from_mlir(what.base).dtype.bytes, operands)
            case "workspace":
                return {"buffer": self.workspace[0], "offset": _text(what)}
            case "constant" | "errors":
                return {kind: what}
            case "size" | "far":
                return {kind: _text(what)}
            case "float":
                return {"real": _text(what)}
            case _:
                raise InternalError(f"no kernel takes {kind} as an argument")

    def _address(self, v: Value, offset: sympy.Expr, operands: list[Value]) -> dict[str, int | str]:
        if (v, offset) not in self.addresses:
            self.addresses[v, offset] = build(host.Address, [v], {"offset": _text(offset)}).results[0]
        address = self.addresses[v, offset]
        if address not in operands:
            operands.append(address)
        return {"operand": operands.index(address)}


def _text(e: sympy.Expr | int) -> str:
    return show(as_expr(e))
