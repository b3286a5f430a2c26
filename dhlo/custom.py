"""Passes of users: functions over a module, and rewrites of what matches a pattern; see docs/extending.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from dhlo import interp
from dhlo.errors import CompileError
from dhlo.ir.dialect import Op, attr, build, defining, same
from dhlo.ir.function import bodies
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.extern import Extern, check_name
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, number
from dhlo.ir.types import from_mlir
from dhlo.options import CustomPass
from dhlo.passes.cse import erase_dead

__all__ = [
    "Capture", "Constant", "CustomPass", "OpPattern", "Pattern", "capture", "check_pass", "constant", "custom_pass", "op",
    "read_pass", "register_fusion", "registered_fusions", "rewrite",
]  # fmt: skip

Weights = dict[str, torch.Tensor]
_COMMUTATIVE = (ew.Add, ew.Mul, ew.Maximum, ew.Minimum, ew.And, ew.Or, ew.Xor, ew.Eq, ew.Ne)
_FUSIONS: dict[str, CustomPass] = {}


def custom_pass(
    *, before: str = "", after: str = "", name: str = "", version: str = ""
) -> Callable[[Callable[[Module, Weights], object]], CustomPass]:
    """Makes a function of module and weights a pass; by default it is called as the function. See CustomPass."""

    def made(run: Callable[[Module, Weights], object]) -> CustomPass:
        return CustomPass(name or run.__name__.replace("_", "-"), run, before, after, version)

    return made


def read_pass(text: str) -> CustomPass:
    """The pass `MODULE:NAME`; a plain function runs before `fuse`. Raises CompileError where there is none."""
    module, colon, name = text.partition(":")
    try:
        found = getattr(import_module(module), name) if colon and module and name else None
    except (ImportError, AttributeError, TypeError, ValueError) as e:
        raise CompileError(f"pass '{text}' can't be imported: {e}") from None
    if isinstance(found, CustomPass):
        return found
    if not inspect.isfunction(found):
        raise CompileError(f"'{text}' is no pass: MODULE:NAME of a function or a dhlo.CustomPass is expected")
    return custom_pass(before="fuse")(found)


# ---------------------------------------------------------------------------------------------------------------- patterns
@dataclass(frozen=True)
class Capture:
    """Any value; the same one wherever the name stands."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A tensor that is one number everywhere."""

    value: float


@dataclass(frozen=True)
class OpPattern:
    """The result of an op with these operands and attributes; operands of sums, products and the like in either order."""

    op: type[Op]
    operands: tuple[Pattern, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


Pattern = Capture | Constant | OpPattern


def capture(name: str) -> Capture:
    """A pattern that any value matches; the replacement gets it by this name."""
    return Capture(name)


def constant(value: float) -> Constant:
    """A pattern that a tensor matches which is this number everywhere, of any shape."""
    return Constant(float(value))


def op(cls: type[Op], *operands: Pattern, **attrs: Any) -> OpPattern:
    """A pattern that the only result of an op of this class (dhlo/ir/ops) matches."""
    return OpPattern(cls, operands, attrs)


def match(v: Value, pattern: Pattern, found: Mapping[str, Value]) -> dict[str, Value] | None:
    """What is captured where a value matches, `found` included; else None."""
    if isinstance(pattern, Capture):
        return {**found, pattern.name: v} if found.get(pattern.name, v) == v else None
    made = defining(v)
    if isinstance(pattern, Constant):
        while isinstance(made, (Broadcast, Reshape)):
            made = defining(made.operands[0])
        return dict(found) if isinstance(made, Full) and number(attr(made, "value")) == pattern.value else None
    if not isinstance(made, pattern.op) or len(made.operands) != len(pattern.operands) or len(made.results) != 1:
        return None
    if any(attr(made, name) != value for name, value in pattern.attrs.items()):
        return None
    orders = [list(made.operands)]
    if isinstance(made, _COMMUTATIVE):
        orders.append(orders[0][::-1])
    return next((got for order in orders if (got := _match_all(order, pattern.operands, found)) is not None), None)


def _match_all(values: Sequence[Value], patterns: Sequence[Pattern], found: Mapping[str, Value]) -> dict[str, Value] | None:
    """All of the values, from left to right."""
    got: dict[str, Value] | None = dict(found)
    for v, p in zip(values, patterns, strict=True):
        if got is not None:
            got = match(v, p, got)
    return got


def rewrite(
    name: str,
    pattern: OpPattern,
    replacement: Callable[..., Value],
    *,
    before: str = "",
    after: str = "",
    version: str = "",
    where: Callable[..., bool] | None = None,
) -> CustomPass:
    """A pass that puts something else in the place of what matches a pattern.

    `replacement` gets the captured values by name, builds ops (`dhlo.ir.dialect.build`) and returns a value of the same type;
    `where` gets them too, and says whether to replace. Each op is looked at once, the last ones first.
    """

    run = _rewriting(name, pattern, lambda root, **found: replacement(**found), where)
    return CustomPass(name, run, before, after, version)


def _rewriting(
    name: str, pattern: OpPattern, replacement: Callable[..., Value], where: Callable[..., bool] | None
) -> Callable[[Module, Weights], None]:
    """The pass of a rewrite; `replacement` gets the op that is replaced first."""

    def run(module: Module, weights: Weights) -> None:
        for block in bodies(module):
            for root in _roots(block, pattern.op):
                found = match(root.results[0], pattern, {})
                if found is not None and (where is None or where(**found)):
                    _replace(name, root, replacement, found)
            erase_dead(block)

    return run


def _roots(block: Block, cls: type[Op]) -> Iterator[Any]:
    """Ops of a class with one result, in regions, too; the last ones first."""
    for x in reversed(list(block.operations)):
        for region in x.operation.regions:
            for inner in region.blocks:
                yield from _roots(inner, cls)
        if isinstance(x, cls) and len(x.results) == 1:
            yield x


def _replace(name: str, root: Any, replacement: Callable[..., Value], found: Mapping[str, Value]) -> None:
    old = root.results[0]
    with ir.InsertionPoint(root.operation), root.location:
        new = replacement(root, **found)
    if not same(from_mlir(new), from_mlir(old)):
        raise CompileError(f"rewrite '{name}' replaces {from_mlir(old)} by {from_mlir(new)}")
    old.replace_all_uses_with(new)


# ---------------------------------------------------------------------------------------------------------------- fusions
def register_fusion(name: str, pattern: OpPattern, symbol: str, library: str | Path | None = None) -> CustomPass:
    """Says that what matches a pattern is computed by the function `symbol` in C, in all programs that are compiled from here on.

    The function is of the type dhlo_c_op in dhlo/abi.h: captured values are its inputs, in the order in which the pattern names
    them, and the result is its output; it takes no numbers. For `library` see `register_c_op`. The name is the pass's: another
    fusion of that name takes its place. Raises CompileError where `symbol` is no name in C.
    """
    check_name(symbol)
    place = "" if library is None else str(Path(library).resolve())
    order = dict.fromkeys(_captures(pattern))

    def call(root: Any, **found: Value) -> Value:
        attrs = {"symbol": symbol, "library": place, "numbers": []}
        results: list[Value] = build(Extern, [found[n] for n in order], attrs, results=[from_mlir(root.results[0])]).results
        return results[0]

    made = CustomPass(name, _rewriting(name, pattern, call, None), after="cse-again", version=f"{pattern} {symbol} {place}")
    _FUSIONS[name] = made
    return made


def registered_fusions() -> tuple[CustomPass, ...]:
    """In the order of their registration."""
    return tuple(_FUSIONS.values())


def _captures(pattern: Pattern) -> Iterator[str]:
    if isinstance(pattern, Capture):
        yield pattern.name
    elif isinstance(pattern, OpPattern):
        for p in pattern.operands:
            yield from _captures(p)


# ---------------------------------------------------------------------------------------------------------------- checking
def check_pass(
    tested: CustomPass, program: torch.export.ExportedProgram, *inputs: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5
) -> str:
    """Runs a program on inputs (its tensors, in order) through the reference interpreter, as it is before the pass and after it.
    Returns the module's text after the pass.

    Raises CompileError where results differ, or the pass leaves an invalid module.
    """
    from dhlo.frontend import import_program
    from dhlo.pipeline import PASSES, run_passes, with_custom

    imported = import_program(program)
    passes = with_custom(PASSES, [tested])
    at = next(k for k, p in enumerate(passes) if p.name == tested.name)
    with imported.context:
        run_passes(imported.module, imported.weights, passes[:at])
        want = interp.run(imported.module, inputs, imported.weights)
        run_passes(imported.module, imported.weights, passes[at : at + 1])
        got = interp.run(imported.module, inputs, imported.weights)
        text = str(imported.module)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as e:
            raise CompileError(f"pass '{tested.name}' changes result {k}: {e}") from None
    return text
