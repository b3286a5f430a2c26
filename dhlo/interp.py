"""Runs any dhlo module on concrete tensors through the ops' reference semantics: the oracle of every pass."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanFalse, BooleanTrue

from dhlo.errors import ContractError, InternalError
from dhlo.ir.dialect import Kind, attr, op_class, result_types
from dhlo.ir.function import argument_names, ranges_of
from dhlo.ir.handles import Block, Module
from dhlo.ir.ops import collective, control, host, lookup, movement, random, recurrence
from dhlo.ir.symbols import parse, show, symbol
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["run"]


def run(
    module: Module,
    inputs: Sequence[torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    seed: int = 0,
    world: collective.World | None = None,
) -> list[torch.Tensor]:
    """Runs `@main`: results in order. `inputs` are its arguments, `weights` the data of `dhlo.weight` ops by name; random
    numbers are those of a session just seeded with `seed`. `world` does collective operations, by default with nobody.

    Raises ContractError where inputs don't fit the argument types, the symbols' ranges or an assertion, InternalError
    where an op's
    result doesn't have its type.
    """
    main = next(op for op in module.body.operations if getattr(op, "sym_name", None) is not None and op.sym_name.value == "main")
    block = main.regions[0].blocks[0]
    machine = _Machine(weights, seed, world or collective.Alone())
    arguments = list(block.arguments)
    if len(arguments) != len(inputs):
        raise ContractError(f"expected {len(arguments)} inputs, got {len(inputs)}")
    machine.bind([from_mlir(a) for a in arguments], inputs, argument_names(block))
    machine.check_ranges(module)
    for a, x in zip(arguments, inputs, strict=True):
        machine.values[a] = x
    return machine.block(block)


class _Machine:
    """Values of SSA names and symbols during one run."""

    def __init__(self, weights: Mapping[str, torch.Tensor], seed: int, world: collective.World) -> None:
        self.weights, self.seed, self.draws, self.world = weights, seed, 0, world
        self.values: dict[Any, torch.Tensor] = {}
        self.symbols: dict[str, int | float] = {}
        self.cache: dict[Any, Any] = {}

    # ------------------------------------------------------------------------------------------------ sizes
    def sizes(self, e: Any, exact: bool = False) -> Any:
        """Value of a size expression: an int, or with `exact` whatever number it is."""
        if isinstance(e, int):
            return e
        hit = self.cache.get(e)
        if hit is None:
            try:
                hit = self.cache[e] = _number(e.xreplace({s: sympy.sympify(self.symbols[s.name]) for s in e.free_symbols}))
            except KeyError as missing:
                raise InternalError(f"symbol {missing} of {show(e)} is used before it is defined") from None
        return hit if exact else int(hit)

    def define(self, name: str, value: int | float) -> None:
        """Binds a symbol."""
        if self.symbols.get(name, value) != value:
            raise ContractError(f"{name} is {self.symbols[name]} and {value} at once")
        self.symbols[name] = value

    def bind(self, types: Sequence[TensorType], inputs: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        """Solves the symbols from the inputs' shapes, and checks every size and dtype."""
        open_: list[tuple[Any, int, str]] = []
        for t, x, name in zip(types, inputs, names, strict=True):
            if x.dtype != t.dtype.torch or x.dim() != t.rank:
                raise ContractError(f"{name}: expected {t}, got {x.dtype} {list(x.shape)}")
            open_ += [(e, n, f"{name}: size of dim {d}") for d, (e, n) in enumerate(zip(t.shape, x.shape, strict=True))]
        while open_:
            rest = []
            for e, n, what in open_:
                e = e.xreplace({symbol(k): sympy.Integer(v) for k, v in self.symbols.items()})
                if len(e.free_symbols) == 1:
                    self.define(next(iter(e.free_symbols)).name, _solve(e, n, what))
                elif e.free_symbols:
                    rest.append((e, n, what))
                elif _number(e) != n:
                    raise ContractError(f"{what} is {n}, expected {show(e)}")
            if len(rest) == len(open_):
                raise InternalError(f"can't solve {', '.join(show(e) for e, _, _ in rest)}")
            open_ = rest

    def check_ranges(self, module: Module) -> None:
        """Checks the symbols' ranges in the module's attributes."""
        for name, (lo, hi) in ranges_of(module).items():
            value = self.symbols.get(name)
            if value is not None and not (lo is None or value >= lo) or value is not None and not (hi is None or value <= hi):
                raise ContractError(f"{name} = {value} is outside [{'-inf' if lo is None else lo}, {'inf' if hi is None else hi}]")

    # ------------------------------------------------------------------------------------------------ ops
    def block(self, block: Block) -> list[torch.Tensor]:
        """Runs a block; what its terminator returns or yields."""
        for op in block.operations:
            name = op.operation.name
            if name == "func.return" or isinstance(op, control.Yield):
                return [self.values[v] for v in op.operands]
            try:
                self._op(op, name)
            except (ContractError, InternalError):
                raise
            except Exception as e:
                raise InternalError(f"{name} at {op.location}: {type(e).__name__}: {e}") from e
        return []

    def _op(self, op: Any, name: str) -> None:
        cls = op_class(name)
        if cls is None:
            raise InternalError(f"{name} is no dhlo op")
        args = [] if cls.kind is Kind.HOST else [self.values[v] for v in op.operands]
        if cls is host.Check:
            self._check(op)
        elif cls.kind is Kind.HOST or cls in (host.Capacity, host.Stride):
            pass  # memory, launches, and what a call brings beside its tensors' elements
        elif cls is host.Size:
            self.define(attr(op, "symbol"), args[0].shape[attr(op, "dim")])
        elif cls is control.Assert:
            if not self.sizes(parse(attr(op, "condition")), exact=True):
                message, condition = attr(op, "message"), attr(op, "condition")
                raise ContractError(f"{message.replace(control.CONDITION, condition)}: {condition} fails for {self.symbols}")
        elif cls is control.AssertTensor:
            if not bool(args[0]):
                raise ContractError(attr(op, "message"))
        elif cls is control.Item:
            value = args[0].item()
            self.define(attr(op, "symbol"), int(value) if isinstance(value, bool) else value)
        else:
            self._results(op, self._compute(op, cls, args))

    def _check(self, op: Any) -> None:
        """Raises ContractError unless a check of the contract holds."""
        holds = {"equal": operator.eq, "min": operator.ge, "max": operator.le}[attr(op, "how")]
        if not holds(*(self.sizes(parse(attr(op, name)), exact=True) for name in ("got", "expected"))):
            raise ContractError(attr(op, "text"))

    def _compute(self, op: Any, cls: Any, args: list[torch.Tensor]) -> list[torch.Tensor]:
        if cls is movement.Weight or cls is movement.State:
            return [self.weights[attr(op, "name_")]]
        if cls is control.Cond:
            return self._branch(op, bool(args[0]))
        if cls is control.While:
            cond, body = (r.blocks[0] for r in op.regions)
            while bool(self._enter(cond, args)[0]):
                args = self._enter(body, args)
            return args
        if cls is random.RandomKey:
            self.draws += 1
            return [torch.tensor([self.seed, self.draws - 1])]
        if issubclass(cls, collective.Collective):
            return [op.exchange(args[0], self.sizes, self.world)]
        if cls is control.Group:
            return self.block(op.regions[0].blocks[0])
        if cls is recurrence.Recurrence:
            return self._recur(op, args)
        out: list[torch.Tensor] = op.reference(args, self.sizes)
        if cls is control.Nonzero or cls is lookup.Unique:
            self.define(attr(op, "symbol"), out[0].shape[0])
        elif cls in (host.CountNonzero, host.FindUnique):
            self.define(attr(op, "symbol"), op.count(args))
        return out

    def _enter(self, block: Block, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs a block on values for its arguments; symbols that it defines are new in each turn of a loop."""
        self.values.update(zip(block.arguments, args, strict=True))
        outer = dict(self.symbols)
        out = self.block(block)
        if len(self.symbols) > len(outer):
            self.symbols, self.cache = outer, {}
        return out

    def _recur(self, op: Any, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs a recurrence's body on each token of each sequence, in order."""
        states, cells, starts, lengths, *rest = args
        states, rows, others = states.clone(), rest[: attr(op, "tokens")], rest[attr(op, "tokens") :]
        known = [torch.zeros([self.sizes(s) for s in t.shape], dtype=t.dtype.torch) for t in result_types(op)[1:]]
        for cell, first, end, length in zip(*(x.tolist() for x in (cells, starts[:-1], starts[1:], lengths)), strict=True):
            state = states[cell : cell + 1] if length > end - first else torch.zeros_like(states[:1])
            for t in range(first, end):
                state, *out = self._enter(op.regions[0].blocks[0], [state, *(x[t : t + 1] for x in rows), *others])
                for y, x in zip(known, out, strict=True):
                    y[t : t + 1] = x
            if end > first:
                states[cell : cell + 1] = state
        return [states, *known]

    def _branch(self, op: Any, pred: bool) -> list[torch.Tensor]:
        out = self.block(op.regions[0 if pred else 1].blocks[0])
        for t, x in zip(result_types(op), out, strict=True):  # sizes that only this op defines
            for e, n in zip(t.shape, x.shape, strict=True):
                if e.is_Symbol and e.name not in self.symbols:
                    self.define(e.name, n)
        return out

    def _results(self, op: Any, out: list[torch.Tensor]) -> None:
        types = result_types(op)
        if len(types) != len(out):
            raise InternalError(f"{op.operation.name} at {op.location}: {len(out)} results for {len(types)}")
        for v, t, x in zip(op.results, types, out, strict=True):
            want = [self.sizes(s) for s in t.shape]
            if list(x.shape) != want or x.dtype != t.dtype.torch:
                raise InternalError(f"{op.operation.name} at {op.location}: result {x.dtype} {list(x.shape)} is not {t} = {want}")
            self.values[v] = x


def _number(e: Any) -> int | float | bool:
    """The Python number that a constant expression is."""
    if isinstance(e, BooleanTrue | BooleanFalse):
        return bool(e)
    if e.is_Integer:
        return int(e)
    v = e.doit()
    return int(v) if v.is_integer else float(v)


def _solve(e: Any, n: int, what: str) -> int:
    """The value of the one symbol of a size expression that is n."""
    s = next(iter(e.free_symbols))
    if e.is_Symbol:
        return n
    for value in sympy.solve(sympy.Eq(e, n), s) if e.is_polynomial(s) else _search(e, s, n):
        if value.is_Integer:
            return int(value)
    raise ContractError(f"{what} is {n}, which {show(e)} can't be")


def _search(e: Any, s: Any, n: int) -> list[Any]:
    """Values of a symbol for which a step function (floor division and the like) gives n."""
    return [sympy.Integer(v) for v in range(0, 64 * (n + 1)) if _number(e.xreplace({s: sympy.Integer(v)})) == n][:1]
