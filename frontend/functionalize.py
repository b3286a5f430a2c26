"""In-place operators and views of an exported graph, turned into values: a reference is a storage's content or a view
of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.frontend.builder import Complex, OpBuilder, Value
from dhlo.frontend.compat import aten
from dhlo.frontend.registry import COMPLEX_VIEWS, MAYBE_VIEWS, VIEWS, View
from dhlo.ir.symbols import as_expr, product

__all__ = ["Ref", "functional_form", "out_form", "shares_storage", "view_rule"]


class Ref:
    """A tensor of the graph. A base holds its current value (complex ones a pair); a view holds how to read it from and write it
    into its base, and reads again when the base was written since."""

    def __init__(
        self,
        value: Value,
        base: Ref | None = None,
        replay: Callable[[Value], Value] | None = None,
        write_back: Callable[[Value, Value], Value] | None = None,
    ) -> None:
        self._value, self._base, self._replay, self._write_back = value, base, replay, write_back
        self.version = 0
        self._seen = self.root.version

    @property
    def is_view(self) -> bool:
        return self._base is not None

    @property
    def root(self) -> Ref:
        return self if self._base is None else self._base.root

    def read(self) -> Value:
        """The current value."""
        if self._base is not None and self._seen != self.root.version:
            assert self._replay is not None
            self._value, self._seen = self._replay(self._base.read()), self.root.version
        return self._value

    def write(self, value: Value) -> None:
        """Replaces the whole content."""
        if self._base is None:
            self._value = value
            self.version += 1
        else:
            assert self._write_back is not None
            self._base.write(self._write_back(self._base.read(), value))
            self._value, self._seen = value, self.root.version

    def become(self, view: Callable[[Ref], Ref]) -> None:
        """Turns into a view of what it was until now (squeeze_, transpose_)."""
        before = Ref(self._value, self._base, self._replay, self._write_back)
        after = view(before)
        self._value, self._base, self._replay, self._write_back = after._value, before, after._replay, after._write_back
        self._seen = self.root.version


# In-place ops whose functional twin has another name or overload.
_TWINS = {
    "aten::normal_": lambda aten: aten.normal_functional.default,
    "aten::bernoulli_.float": lambda aten: aten.bernoulli.p,
}


def functional_form(op: Any) -> Any | None:
    """The functional twin of an in-place op that writes its first argument (aten.add_.Tensor: aten.add.Tensor), or
    None."""
    schema = getattr(op, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    namespace, name = schema.name.split("::")
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not name.endswith("_") or len(written) != 1 or written[0].name != schema.arguments[0].name:
        return None
    twin = _TWINS.get(f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name)
    if twin is not None:
        return twin(aten)
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
    overload = schema.overload_name or "default"
    if packet is None:
        return None
    twin = getattr(packet, overload, None)
    if twin is not None and str(twin._schema.arguments[0].type) == "Tensor":  # ldexp.default is of numbers
        return twin
    overloads = [getattr(packet, name) for name in packet.overloads()]  # transpose_.default is transpose.int
    return next((o for o in overloads if [a.name for a in o._schema.arguments] == [a.name for a in schema.arguments]), None)


def out_form(op: Any) -> tuple[Any, list[str]] | None:
    """The functional twin of an operator that writes its results into arguments (aten.add.out: aten.add.Tensor), and the names of
    these; None if it isn't one, or has none."""
    schema = getattr(op, "_schema", None)
    if schema is None or not any(a.is_out for a in schema.arguments):
        return None
    given = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    namespace, name = schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    for twin in (getattr(packet, overload) for overload in packet.overloads()):
        if not twin._schema.is_mutable and [(a.name, str(a.type)) for a in twin._schema.arguments] == given:
            return twin, [a.name for a in schema.arguments if a.is_out]
    return None


def view_rule(op: Any, node: Any, complex_numbers: bool) -> View | None:
    """How the node's first argument is written through its result, the operator's; None if they don't share memory."""
    rule = VIEWS.get(op)
    if rule is None and op in MAYBE_VIEWS:
        rule = MAYBE_VIEWS[op] if _aliases_input(node) else None
    elif rule is None and _is_view(op):
        rule = _no_writes(op)
    if rule is None or not complex_numbers:
        return rule
    return COMPLEX_VIEWS.get(op) or _by_parts(rule)


def _by_parts(rule: View) -> View:
    """A rule for tensors as one for pairs of them."""

    def parts(b: OpBuilder, base: Complex, new: Complex, *args: Any, **kwargs: Any) -> Complex:
        return Complex(rule(b, base.re, new.re, *args, **kwargs), rule(b, base.im, new.im, *args, **kwargs))

    return parts


def _no_writes(op: Any) -> View:
    """The rule of views that can only be read."""

    def rule(*_: Any, **__: Any) -> Any:
        raise CompileError(f"tensors can't be written through {op}", hint="write to the tensor itself")

    return rule


def _is_view(op: Any) -> bool:
    """Do results of the operator share the memory of its argument, by its schema?"""
    schema = getattr(op, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def shares_storage(a: Any, b: Any) -> bool:
    """Did two tensors of the example run share memory?"""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _aliases_input(node: Any) -> bool:
    """Does `to`, `reshape`, `contiguous`, ... give a view of its first argument here, as in the example run, or a copy?"""
    x, y = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.dtype != y.dtype:
        return False
    if x.is_conj() != y.is_conj() or x.is_neg() != y.is_neg():
        return False
    if shares_storage(x, y):
        return True
    # Constants, and all values of a program that comes from a file, have lost whose memory they share; layouts tell.
    for i, argument in enumerate(node.target._schema.arguments):
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        if argument.name in ("copy", "train") and given:
            return False
    sizes, strides = _exprs(x.shape), _exprs(x.stride())
    if sizes == _exprs(y.shape):
        return strides == _exprs(y.stride())
    return all(bool(n == 1 or strides[i] == product(sizes[i + 1 :])) for i, n in enumerate(sizes))  # contiguous


def _exprs(sizes: Any) -> list[Any]:
    return [as_expr(n) for n in sizes]
