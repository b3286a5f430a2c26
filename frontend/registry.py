"""The table of lowerings: which function turns an ATen op (or a user's own op) into ops of the dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dhlo.frontend.compat import present

__all__ = [
    "COMPLEX",
    "COMPLEX_VIEWS",
    "HIGHER_ORDER",
    "INLINED",
    "LOWERINGS",
    "MAYBE_VIEWS",
    "REFUSED",
    "UPDATES",
    "VIEWS",
    "Lowering",
    "View",
    "complex_views",
    "find",
    "higher_order",
    "inlines",
    "into",
    "lowers",
    "maybe_views",
    "register_lowering",
    "updates",
    "views",
]

Lowering = Callable[..., Any]
View = Callable[..., Any]
LOWERINGS: dict[Any, Lowering] = {}
VIEWS: dict[Any, View] = {}
MAYBE_VIEWS: dict[Any, View] = {}
COMPLEX: dict[Any, Lowering] = {}  # rules that take over where an argument is complex
COMPLEX_VIEWS: dict[Any, View] = {}  # those of views that don't just go part by part
HIGHER_ORDER: dict[Any, Lowering] = {}
INLINED: dict[Any, Lowering] = {}
REFUSED: dict[str, str] = {}  # names of operators that take graphs and are never compiled, with what to do
UPDATES: dict[Any, Lowering] = {}


def into(table: dict[Any, Lowering], ops: Iterable[Any]) -> Callable[[Lowering], Lowering]:
    """A decorator that enters a function in a table under all of `ops` that this version of PyTorch has."""

    def register(f: Lowering) -> Lowering:
        table.update(present(dict.fromkeys(ops, f)))
        return f

    return register


def lowers(*ops: Any) -> Callable[[Lowering], Lowering]:
    """Registers `f(b, *args, **kwargs) -> value(s)` for the overloads. Tensors arrive as MLIR values, sizes as ints
    or sympy expressions, everything else as in the exported graph."""
    return into(LOWERINGS, ops)


def find(op: Any, complex_numbers: bool = False) -> Lowering | None:
    """The lowering of an overload, on complex numbers where some argument is; ops of other libraries may be registered by
    qualified name ("lib::op"), without the library."""
    if complex_numbers:
        return COMPLEX.get(op)
    hit = LOWERINGS.get(op)
    schema = getattr(op, "_schema", None)
    return hit if hit is not None or schema is None else LOWERINGS.get(schema.name)


def views(*ops: Any) -> Callable[[View], View]:
    """Registers `f(b, base, new, out, *args) -> base` for ops whose result aliases their first argument: the base's
    content after `new` was written through result number `out` of the view."""
    return into(VIEWS, ops)


def maybe_views(*ops: Any) -> Callable[[View], View]:
    """As `views`, for ops that alias their argument only where the exported run did (reshape, contiguous, to)."""
    return into(MAYBE_VIEWS, ops)


def complex_views(*ops: Any) -> Callable[[View], View]:
    """As `views`, for ops whose first argument is complex and whose result has other parts than its."""
    return into(COMPLEX_VIEWS, ops)


def updates(*ops: Any) -> Callable[[Lowering], Lowering]:
    """Registers `f(b, *args, **kwargs) -> {argument's number: its new content}` for ops that change arguments besides what they
    return."""
    return into(UPDATES, ops)


def higher_order(*ops: Any) -> Callable[[Lowering], Lowering]:
    """Registers the lowering of an operator that takes graphs as arguments."""
    return into(HIGHER_ORDER, ops)


def inlines(*ops: Any) -> Callable[[Lowering], Lowering]:
    """As `higher_order`, for operators that run a graph once, as if it stood in their place: tensors arrive and are given back as
    references, so that views and writes inside are those of the graph around it."""
    return into(INLINED, ops)


def register_lowering(op: Any) -> Callable[[Lowering], Lowering]:
    """Teaches dhlo an operator of your own: `f(b, *args, **kwargs)` builds it out of `b`'s methods (an OpBuilder) and
    returns the result values. `op` is an OpOverload such as torch.ops.mylib.myop.default, or a packet (all its overloads)."""
    if hasattr(op, "overloads"):
        return lowers(*(getattr(op, name) for name in op.overloads()))
    return lowers(op)
