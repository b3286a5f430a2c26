"""Calls of operators in an exported graph: lowerings, results written in place or into arguments, views."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dhlo.errors import CompileError
from dhlo.frontend.aten.complex import Complex
from dhlo.frontend.autocast import conversion
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import inner_tensor
from dhlo.frontend.functionalize import Ref, functional_form, out_form, view_rule
from dhlo.frontend.registry import HIGHER_ORDER, INLINED, LOWERINGS, UPDATES, find
from dhlo.frontend.scalars import SCALAR_FUNCTIONS, scalar_call
from dhlo.frontend.state import Parts
from dhlo.ir.mlir import ir
from dhlo.ir.types import from_mlir, from_torch_dtype

__all__ = ["Calls", "read", "wrap"]


class Calls:
    """Builds what the operators of a graph's nodes mean. `importer` has the graph, and the other programs that stand for operators
    without a lowering."""

    def __init__(self, importer: Any, b: OpBuilder) -> None:
        self.importer, self.b = importer, b

    def call(self, node: Any, env: dict[Any, Any]) -> Any:
        """What a node's call gives: references, numbers, and lists of these."""
        fetch = self._converting(node, env) if self.importer.autocast is not None else env.__getitem__
        args = torch.fx.map_arg(node.args, fetch)
        kwargs = dict(torch.fx.map_arg(node.kwargs, fetch))
        target = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if target is inner_tensor:
            return self.importer.part(*args)
        whole = next((a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Parts)), None)
        if whole is not None:
            raise CompileError(
                f"constant '{whole.name}' is a tensor made of others ({type(whole.tensor).__name__}), used as a whole"
            )
        if target in SCALAR_FUNCTIONS and target not in LOWERINGS:
            return scalar_call(target, args, kwargs)
        if target not in LOWERINGS and (form := out_form(target)) is not None:
            return self._into_arguments(node, form, args, kwargs)
        functional = functional_form(target)
        call_args, call_kwargs = read(args), read(kwargs)
        complex_numbers = any(isinstance(a, Complex | complex) for a in pytree.tree_leaves((call_args, call_kwargs)))
        lowering = find(target, complex_numbers)
        if functional is not None and target not in LOWERINGS:
            lowering = find(functional, complex_numbers)
            if lowering is not None and torch.Tag.inplace_view in target.tags:
                args[0].become(partial(self._as_view, functional, lowering, call_args[1:], call_kwargs))
                return args[0]
            if lowering is not None:
                return self._in_place(args[0], lowering(self.b, *call_args, **call_kwargs))
        if self.importer.decompositions.cast_inside(node, self.importer.autocast):
            lowering = None
        if target in INLINED:
            return INLINED[target](self.b, *args, **kwargs)
        if target in HIGHER_ORDER:
            return wrap(HIGHER_ORDER[target](self.b, *call_args, **call_kwargs))
        if lowering is None:
            program = self.importer.decompositions.of(node, self.importer.autocast)
            if program is None:
                raise CompileError("complex numbers are not supported here" if complex_numbers else "complex numbers expected")
            result = self.importer.inline_program(program, [fetch(n) for n in node.all_input_nodes])
            return result if functional is None else self._in_place(args[0], result.read())
        result = lowering(self.b, *call_args, **call_kwargs)
        if target in UPDATES:
            for i, value in UPDATES[target](self.b, *call_args, **call_kwargs).items():
                args[i].write(value)
        view = view_rule(target, node, bool(call_args) and isinstance(call_args[0], Complex))
        if view is None or not isinstance(args[0], Ref):
            return wrap(result)
        return self._view(args[0], lowering, view, result, call_args[1:], call_kwargs)

    def _into_arguments(self, node: Any, form: tuple[Any, list[str]], args: Any, kwargs: dict[str, Any]) -> Any:
        """A call of an operator that writes its results into arguments, and resizes those of another shape."""
        functional, names = form
        refs = [kwargs.pop(name) for name in names]
        call_args, call_kwargs = read(args), read(kwargs)
        complex_numbers = any(isinstance(a, Complex | complex) for a in pytree.tree_leaves((call_args, call_kwargs)))
        lowering = find(functional, complex_numbers)
        if lowering is None:
            raise CompileError(f"{node.target} of complex numbers", hint="assign the operator's result instead")
        result = lowering(self.b, *call_args, **call_kwargs)
        for name, ref, new in zip(names, refs, result if isinstance(result, list | tuple) else [result], strict=True):
            self._into(node.kwargs[name], ref, new)
        return refs if len(refs) > 1 else refs[0]

    def _into(self, argument: Any, ref: Ref, new: Any) -> None:
        """Writes a result into an argument, which takes its shape."""
        old = ref.read()
        shape, own = (self.b.shape(x.re if isinstance(x, Complex) else x) for x in (new, old))
        if len(shape) == len(own) and all(self.b.dims.equal(a, b) for a, b in zip(shape, own, strict=True)):
            self._in_place(ref, new)
        elif ref.is_view or argument.op == "placeholder":
            raise CompileError("`out` resizes an argument of the program, or a view", hint="assign the operator's result instead")
        else:
            part = old.re if isinstance(old, Complex) else old
            dtype = f"complex<{self.b.dtype(part)}>" if isinstance(old, Complex) else self.b.dtype(part)
            ref.write(self._converted(new, dtype))

    def _converted(self, x: Any, dtype: Any) -> Any:
        if not isinstance(x, Complex):
            return self.b.convert(x, dtype)
        part = self.b.as_dtype(dtype).register
        return Complex(self.b.convert(x.re, part), self.b.convert(x.im, part))

    def _converting(self, node: Any, env: dict[Any, Any]) -> Callable[[Any], Any]:
        """What gives the values of a node's arguments, tensors converted as torch.autocast does."""
        assert self.importer.autocast is not None
        b = self.b
        values = {n: env[n].read() if isinstance(env[n], Ref) else None for n in node.all_input_nodes}
        own = {n: b.dtype(v).torch for n, v in values.items() if b.is_tensor(v)}
        convert = conversion(node.target, self.importer.autocast, list(own.values()))

        def fetch(n: Any) -> Any:
            if convert is None or n not in own or convert(own[n]) == own[n]:
                return env[n]
            return Ref(b.convert(values[n], from_torch_dtype(convert(own[n]))))

        return fetch

    def _view(self, base: Ref, lowering: Callable[..., Any], view: Callable[..., Any], result: Any, args: Any, kwargs: Any) -> Any:
        b, node = self.b, self.b.node

        def as_then(f: Callable[..., Any], *values: Any) -> Any:
            """Builds as if the view's own node were being lowered."""
            now, b.node = b.node, node
            out = f(b, *values, *args, **kwargs)
            b.node = now
            return out

        def make(value: Value, out: int | None) -> Ref:
            def replay(x: Value) -> Value:
                y = as_then(lowering, x)
                return y if out is None else y[out]

            return Ref(value, base, replay, lambda x, new: as_then(view, x, new, out or 0))

        if isinstance(result, list | tuple):
            return [make(v, i) for i, v in enumerate(result)]
        return make(result, None)

    def _as_view(self, op: Any, lowering: Callable[..., Any], args: Any, kwargs: Any, base: Ref) -> Ref:
        """A view op's result on `base`."""
        x = base.read()
        rule = view_rule(op, self.b.node, isinstance(x, Complex))
        assert rule is not None
        view: Ref = self._view(base, lowering, rule, lowering(self.b, x, *args, **kwargs), args, kwargs)
        return view

    def _in_place(self, ref: Ref, new: Any) -> Ref:
        old = ref.read()
        if new is not old:
            ref.write(self._as(new, old))
        return ref

    def _as(self, new: Any, old: Any) -> Any:
        """A value in another's shape and dtype."""
        if not isinstance(old, Complex):
            t = from_mlir(old)
            return self.b.expand(self.b.convert(new, t.dtype), t.shape)
        parts = new if isinstance(new, Complex) else self.b.convert(new, f"complex<{self.b.dtype(old.re)}>")
        return Complex(self._as(parts.re, old.re), self._as(parts.im, old.im))


def read(x: Any) -> Any:
    """References as what they hold now, in whatever structure."""
    return pytree.tree_map_only(Ref, lambda r: r.read(), x)


def wrap(x: Any) -> Any:
    """SSA values as references, in whatever structure."""
    if isinstance(x, ir.Value | Complex):
        return Ref(x)
    if isinstance(x, list | tuple):
        return [wrap(i) for i in x]
    return x
