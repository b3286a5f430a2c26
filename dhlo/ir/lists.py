"""Lists of values of any types and any length, of which IRDL has none: the fields that an op gets for them, and its names."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from dhlo.ir.mlir import ext, ir, irdl, register_operation

__all__ = ["SHORT", "Operands", "Results", "at_width", "define", "expand", "width_for", "width_of"]

SHORT = 24
"""Fields of an op under its own name."""

if TYPE_CHECKING:  # for the type checker
    Operands: TypeAlias = Any
    Results: TypeAlias = Any
else:

    class Operands:
        """A field: operands, each of a type of its own."""

    class Results:
        """A field: results, each of a type of its own."""


_MEMBER = {
    Operands: Sequence[ext.Operand[ir.RankedTensorType]],
    Results: Sequence[ext.Result[ir.RankedTensorType]],
}
_LOCK = threading.Lock()

# IRDL verifies all members of a field against one constraint, which stands for one type: whatever it allows (`irdl.any`, too), the
# members of a variadic field have the type of the first (mlir/lib/Dialect/IRDL/IRDLVerifiers.cpp, ConstraintVerifier::verify). So a
# list is made of variadic fields, of which each takes one value or none. An op's fields are fixed when it is defined; one that
# has to hold more values than they are is defined once more with as many as needed, rounded up so that few names arise: dhlo.group
# holds 24 results, dhlo.group_48 and dhlo.group_96 hold more. All of them are of one class in Python.


def expand(stated: dict[str, Any], width: int) -> dict[str, Any]:
    """Annotations of an op with `width` variadic fields in the place of each list. Without lists, the annotations themselves."""
    out: dict[str, Any] = {}
    for name, what in stated.items():
        member = _MEMBER.get(what) if isinstance(what, type) else None
        out |= {name: what} if member is None else {f"{name}{i}": member for i in range(width)}
    return out


def width_for(length: int) -> int:
    """How many fields a list of that length gets."""
    return SHORT << ((max(length, 1) - 1) // SHORT).bit_length()


def at_width(name: str, width: int) -> str:
    """The name of the op `name` where its lists have that many fields."""
    return name if width == SHORT else f"{name}_{width}"


def width_of(name: str) -> tuple[str, int]:
    """The inverse of `at_width`; names that it doesn't give are their own."""
    base, _, digits = name.rpartition("_")
    if digits.isascii() and digits.isdecimal() and len(digits) < 10:
        width = int(digits)
        if width > SHORT and width == width_for(width) and str(width) == digits:
            return base, width
    return name, SHORT


def define(cls: Any, width: int) -> str:
    """The name of an op's class at that width, defined in the current context if it wasn't."""
    name = at_width(cls.OPERATION_NAME, width)
    if width == SHORT or ir.Context.current.is_registered_operation(name):
        return name
    with ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            dialect, _, own = name.partition(".")
            with ir.InsertionPoint(irdl.dialect(dialect).body):
                ext.Operation._emit_operation.__func__(SimpleNamespace(_op_name=own, _fields=fields_at(cls, width)))
        irdl.load_dialects(module)
    for trait in cls._traits:
        trait.attach(name)
    ir.DynamicOpTrait.attach(name, cls)
    with _LOCK:
        register_operation(name, cls)
    return name


@cache
def fields_at(cls: Any, width: int) -> list[Any]:
    """The fields of a class with lists, at a width."""
    return [ext.FieldDef.from_type_hint(n, t, ext.FieldSpecifier()) for n, t in expand(cls.stated, width).items()]
