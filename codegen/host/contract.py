"""The contract as machine code: checks of the arguments, and the values of the symbols that their sizes define."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sympy

from dhlo.codegen.families.kernel import Checks
from dhlo.codegen.host.checked import CheckedFn
from dhlo.codegen.host.sizes import SizeEmitter
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.kernel_ir.builder import I32, I64, PTR, V
from dhlo.errors import CompileError
from dhlo.ir.symbols import is_static, product, spell, symbol, symbols_of
from dhlo.ir.types import TensorType
from dhlo.shape_infer.views import dense_strides

__all__ = ["Argument", "Contract"]


Require = Callable[[V, int, V, V], None]  # (condition, check, expected, got)


@dataclass(frozen=True)
class Argument:
    """An argument of the compiled function."""

    name: str
    type: TensorType
    grows: int | None = None  # the dim along which the caller's buffer has room
    capacity: str = ""  # the symbol of that dim's size in the buffer

    @property
    def memory(self) -> TensorType:
        """What lies in memory: the tensor, or the buffer that it is the first part of."""
        if self.grows is None:
            return self.type
        return self.type.with_shape([symbol(self.capacity) if d == self.grows else s for d, s in enumerate(self.type.shape)])


class Contract:
    """Emits checks into a host function. `require` ends the call where a condition doesn't hold."""

    def __init__(
        self,
        args: Sequence[Argument],
        ranges: Mapping[str, tuple[int | None, int | None]],
        checks: Checks,
        names: Mapping[str, str],
    ) -> None:
        self.args, self.ranges, self.checks, self.names = args, ranges, checks, names

    def emit(self, fn: CheckedFn, inputs: V, sizes: SizeEmitter, require: Require) -> list[V]:
        """Emits everything; returns the pointers to the arguments' size arrays. Symbols land in `sizes.symbols`."""
        arrays = []
        for i, a in enumerate(self.args):
            base = fn.gep(inputs, i * abi.TENSOR_BYTES, "i8")
            rank = fn.cast(fn.load(fn.gep(base, abi.TENSOR["rank"], "i8"), I32), I64)
            self._check(
                fn,
                require,
                fn.cmp("eq", rank, a.type.rank),
                "rank",
                i,
                f"'{a.name}' must have rank {a.type.rank}",
                a.type.rank,
                rank,
            )
            code = fn.cast(fn.load(fn.gep(base, abi.TENSOR["dtype"], "i8"), I32), I64)
            want = a.type.dtype.code
            self._check(
                fn, require, fn.cmp("eq", code, want), "dtype", i, f"'{a.name}' must be {a.type.dtype.torch_name}", want, code
            )
            arrays.append(fn.load(fn.gep(base, abi.TENSOR["sizes"], "i8"), PTR))
        dims = [(i, d, e) for i, a in enumerate(self.args) for d, e in enumerate(a.type.shape)]
        loaded = {(i, d): fn.define(fn.load(fn.gep(arrays[i], d, I64), I64), 0, abi.MAX_DIM) for i, d, _ in dims}
        source: dict[str, tuple[int, int]] = {}
        for i, d, e in dims:  # a size that is just a symbol defines it
            if e.is_Symbol and e.name not in sizes.symbols:
                sizes.symbols[e.name] = loaded[i, d]
                source[e.name] = (i, d)
        self._solve(fn, dims, loaded, sizes, source)
        for name, at in source.items():
            self._range(fn, name, at, loaded[at], sizes.symbols[name], require)
        for i, d, e in dims:
            if not (e.is_Symbol and source.get(e.name) == (i, d)):
                self._check(
                    fn,
                    require,
                    fn.cmp("eq", loaded[i, d], sizes.emit(e)),
                    "equal",
                    i,
                    self._equal_text(i, d, e, source),
                    sizes.emit(e),
                    loaded[i, d],
                )
        for i, a in enumerate(self.args):
            if a.grows is not None:
                self._buffer(fn, i, inputs, sizes, require)
        return arrays

    def _buffer(self, fn: CheckedFn, i: int, inputs: V, sizes: SizeEmitter, require: Require) -> None:
        """Finds the capacity of a growing argument's buffer in its strides, which must be those of the buffer."""
        a = self.args[i]
        assert a.grows is not None
        strides = fn.load(fn.gep(inputs, i * abi.TENSOR_BYTES + abi.TENSOR["strides"], "i8"), PTR)
        is_null = fn.cmp("eq", fn.ptr_to_int(strides), 0)
        filled, inner = sizes.emit(a.type.shape[a.grows]), sizes.emit(product(a.type.shape[a.grows + 1 :]))

        def from_strides() -> list[V]:
            given = fn.div(fn.load(fn.gep(strides, (a.grows or 0) - 1, I64), I64), fn.max(inner, 1))
            return [fn.min(fn.max(given, -1), abi.MAX_DIM)]  # beyond that it isn't a buffer, as is found below

        sizes.symbols[a.capacity] = fn.if_else(is_null, lambda: [filled], from_strides, [I64])[0]

        def regular() -> list[V]:
            data = fn.load(fn.gep(inputs, i * abi.TENSOR_BYTES + abi.TENSOR["data"], "i8"), PTR)
            same = fn.and_(fn.cmp("ge", sizes.symbols[a.capacity], filled), fn.cmp("ne", fn.ptr_to_int(data), 0))
            for d, (size, want) in enumerate(zip(a.type.shape, dense_strides(a.memory.shape), strict=True)):
                s = fn.load(fn.gep(strides, d, I64), I64)
                same = fn.and_(same, fn.or_(fn.cmp("eq", sizes.emit(size), 1), fn.cmp("eq", s, sizes.emit(want))))
            return [same]

        sizes.push()
        ok = fn.if_else(is_null, lambda: [fn.const(True, "i1")], regular, ["i1"])[0]
        sizes.pop()
        zero = fn.i64(0)
        text = f"'{a.name}' must be the first part, along dim {a.grows}, of a dense buffer"
        require(ok, self.checks.add("ASSERT", text, i), zero, zero)

    def _solve(
        self,
        fn: CheckedFn,
        dims: list[tuple[int, int, sympy.Expr]],
        loaded: dict[tuple[int, int], V],
        sizes: SizeEmitter,
        source: dict[str, tuple[int, int]],
    ) -> None:
        """Symbols that appear only inside expressions: a*s + b = size gives s, and the later equality check confirms it."""
        missing = {s for _, _, e in dims for s in symbols_of(e)} - set(sizes.symbols)
        while missing:
            found = False
            for i, d, e in dims:
                unknown = symbols_of(e) & missing
                if len(unknown) != 1:
                    continue
                (name,) = unknown
                s = next(x for x in e.free_symbols if x.name == name)
                a, b = e.coeff(s, 1), e.coeff(s, 0)
                if not (a.is_Integer and int(a) != 0 and (e - a * s - b).expand() == 0):
                    continue
                sizes.symbols[name] = fn.floordiv(fn.sub(loaded[i, d], sizes.emit(b)), int(a))
                source[name] = (i, d)
                missing.discard(name)
                found = True
            if not found:
                raise CompileError(
                    f"sizes {', '.join(sorted(missing))} can't be found from the inputs' shapes",
                    hint="give one input a dim of exactly this size",
                )

    def _range(self, fn: CheckedFn, name: str, at: tuple[int, int], size: V, value: V, require: Require) -> None:
        """The range of a symbol that a dim gives: where the dim is a multiple of the symbol and some more, as the dim's range."""
        i, d = at
        lo, hi = self.ranges.get(name, (0, None))
        e = self.args[i].type.shape[d]
        s = symbol(name)
        a, b = e.coeff(s, 1), e.coeff(s, 0)
        text = f"'{self.args[i].name}' dim {d} ({spell(e, self.names)})"
        if e.is_Symbol or not (a.is_Integer and a > 0 and b.is_Integer):
            if not e.is_Symbol:
                text = f"{self.names.get(name, name)}, by {text},"
            self._bounds(fn, i, text, (lo, hi), value, require)
            return
        bounds = tuple(None if x is None else int(a * x + b) for x in (lo, hi))
        self._bounds(fn, i, text, bounds, size, require)
        fn.assume(value, lo, hi)

    def check_number(self, fn: CheckedFn, name: str, i: int, value: V, require: Require) -> None:
        """The range of a symbol that the number in argument i gives (-1: a number from elsewhere)."""
        text = f"'{self.args[i].name}'" if i >= 0 else self.names.get(name, name)
        self._bounds(fn, i, text, self.ranges.get(name, (0, None)), value, require)

    def _bounds(self, fn: CheckedFn, i: int, text: str, bounds: tuple[int | None, ...], value: V, require: Require) -> None:
        lo, hi = bounds
        least, most = fn.interval(value)
        if lo is not None and lo > least:
            self._check(fn, require, fn.cmp("ge", value, lo), "min", i, f"{text} must be at least {lo}", lo, value)
        if hi is not None and hi < most:
            self._check(fn, require, fn.cmp("le", value, hi), "max", i, f"{text} must be at most {hi}", hi, value)
        fn.assume(value, lo, hi)

    def _equal_text(self, i: int, d: int, e: sympy.Expr, source: Mapping[str, tuple[int, int]]) -> str:
        text = f"'{self.args[i].name}' dim {d}"
        if is_static(e):
            return f"{text} must be {e}"
        parts = [
            f"{self.names.get(s, s)} = '{self.args[source[s][0]].name}' dim {source[s][1]}"
            for s in sorted(symbols_of(e))
            if s in source
        ]
        return f"{text} must be {spell(e, self.names)}" + (f", where {', '.join(parts)}" if parts else "")

    def _check(self, fn: CheckedFn, require: Require, ok: V, kind: str, i: int, text: str, expected: V | int, got: V) -> None:
        require(ok, self.checks.add(kind.upper(), text, i), fn.i64(expected), got)
