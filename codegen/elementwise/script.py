"""Scalar algorithms as plain Python functions, translated to basic blocks: what branches and iterates too much for vectors.

A function marked `@script` is Python that runs as it stands, on numbers and numpy arrays, and a subset that `Script` translates:
assignments, `if`, `while`, `for` over `range` or a constant tuple, `break`, `continue`, `return`, calls of other scripts (which
become part of the caller) and of the operations that are methods of `Script`. Conditions on constants choose one branch. Values
are i64, f64, bools and complex pairs of f64, told apart by their first assignment; variables are stack cells, which LLVM makes
registers of.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import operator
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from dhlo.codegen.elementwise import vmath_base
from dhlo.codegen.kernel_ir.builder import F64, I1, I64, Fn, V
from dhlo.errors import InternalError

__all__ = ["CONSTANT", "OPERATIONS", "Array", "Complex", "Matrix", "Script", "Value", "operation", "script"]

F = TypeVar("F", bound=Callable[..., Any])
OPERATIONS: dict[Any, Callable[..., Any]] = {}  # Python functions that scripts may call -> how they are emitted


def script(f: F) -> F:
    """Marks a function that `Script` may translate."""
    f.__script__ = True  # type: ignore[attr-defined]
    return f


def operation(*functions: Any) -> Callable[[F], F]:
    """Registers `(script, *values) -> value` as what calls of the Python functions become."""

    def add(emit: F) -> F:
        OPERATIONS.update(dict.fromkeys(functions, emit))
        return emit

    return add


@dataclass(frozen=True)
class Complex:
    """A complex number."""

    re: V
    im: V


@dataclass(frozen=True)
class Array:
    """Elements in a row from `p` on: numbers of type `elem`; of complex ones, pairs, or the imaginary parts from `im` on."""

    p: V
    elem: str
    paired: bool = False
    im: V | None = None

    @property
    def is_complex(self) -> bool:
        return self.paired or self.im is not None


@dataclass(frozen=True)
class Matrix:
    """Rows of `width` elements."""

    data: Array
    width: V


Value: TypeAlias = Any  # V, Complex, Array, Matrix, a tuple of these, or a Python constant


@dataclass
class _Cell:
    kind: str  # an MLIR type, or "complex"
    places: list[V]


@dataclass
class _Scope:
    """A function's variables, and where its `return` goes."""

    names: dict[str, Any]
    globals: dict[str, Any]
    end: str
    results: list[_Cell] | None = None
    single: bool = True
    loops: list[tuple[str, str]] = field(default_factory=list)  # where `continue` and `break` go


@functools.cache
def _tree(f: Any) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(f))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


_COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
CONSTANT = (int, float, bool, complex)


class Script:
    """Translates script functions into one function under construction, outside all of its loops and branches."""

    def __init__(self, fn: Fn) -> None:
        self.fn, self._labels, self._dead = fn, 0, False
        self._scope = _Scope({}, {}, "")

    # ------------------------------------------------------------------ calls
    def call(self, f: Any, *args: Value) -> Value:
        """The result of a script function, whose code becomes part of this one: a value, a tuple of values or None."""
        tree, outer = _tree(f), self._scope
        if len(tree.args.args) != len(args):
            raise InternalError(f"{f.__name__} takes {len(tree.args.args)} arguments, not {len(args)}")
        variables = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        scope = _Scope({}, f.__globals__, self._label())
        for a, x in zip(tree.args.args, args, strict=True):
            scope.names[a.arg] = self._new_cell(x) if a.arg in variables else x
        self._scope = scope
        self._body(tree.body)
        self._jump(scope.end)
        self._start(scope.end)
        self._scope = outer
        if scope.results is None:
            return None
        values = tuple(self._read(c) for c in scope.results)
        return values[0] if scope.single else values

    # ------------------------------------------------------------------ blocks
    def _label(self) -> str:
        self._labels += 1
        return f"s{self._labels}"

    def _start(self, label: str) -> None:
        self.fn.label(label)
        self._dead = False

    def _jump(self, label: str) -> None:
        if not self._dead:
            self.fn.jump(label)
        self._dead = True

    def _branch(self, cond: V, then: str, other: str) -> None:
        self.fn.branch(cond, then, other)
        self._dead = True

    # ------------------------------------------------------------------ cells
    def _cell(self, kind: str) -> _Cell:
        elem = F64 if kind == "complex" else kind
        return _Cell(kind, [self.fn.alloca(1, elem, 8) for _ in range(2 if kind == "complex" else 1)])

    def _new_cell(self, x: Value) -> Any:
        if isinstance(x, Array | Matrix | tuple):
            return x
        x = self.value(x)
        cell = self._cell("complex" if isinstance(x, Complex) else x.type)
        self._write(cell, x)
        return cell

    def _read(self, c: Any) -> Value:
        if not isinstance(c, _Cell):
            return c
        values = [self.fn.load(p, F64 if c.kind == "complex" else c.kind, 1 if c.kind == I1 else 8) for p in c.places]
        return Complex(*values) if c.kind == "complex" else values[0]

    def _write(self, c: _Cell, x: Value) -> None:
        x = self.as_(x, c.kind)
        for v, p in zip([x.re, x.im] if isinstance(x, Complex) else [x], c.places, strict=True):
            self.fn.store(v, p, 1 if c.kind == I1 else 8)

    # ------------------------------------------------------------------ types
    def value(self, x: Value) -> Any:
        """Of a Python constant a value."""
        if isinstance(x, bool):
            return self.fn.const(x, I1)
        if isinstance(x, int):
            return self.fn.const(x, I64)
        if isinstance(x, float):
            return self.fn.const(x, F64)
        if isinstance(x, complex):
            return Complex(self.fn.const(x.real, F64), self.fn.const(x.imag, F64))
        return x

    def as_(self, x: Value, kind: str) -> Any:
        """Converted to i1, i64, f64 or "complex", if nothing is lost."""
        x = self.value(x)
        have = "complex" if isinstance(x, Complex) else x.type
        if have == kind:
            return x
        if kind == F64 and have in (I64, I1):
            return self.fn.cast(x, F64)
        if kind == "complex" and have in (I64, F64):
            return Complex(self.as_(x, F64), self.fn.const(0.0, F64))
        raise InternalError(f"a script stores {have} as {kind}")

    def real(self, x: Value) -> V:
        out: V = self.as_(x, F64)
        return out

    def together(self, a: Value, b: Value) -> tuple[Any, Any]:
        """Both as the wider of their kinds."""
        a, b = self.value(a), self.value(b)
        kinds = {"complex" if isinstance(x, Complex) else x.type for x in (a, b)}
        kind = "complex" if "complex" in kinds else F64 if F64 in kinds else kinds.pop() if len(kinds) == 1 else I64
        return self.as_(a, kind), self.as_(b, kind)

    # ------------------------------------------------------------------ statements
    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for s in statements:
            if self._dead:
                return
            getattr(self, f"_{type(s).__name__}")(s)

    def _Expr(self, s: ast.Expr) -> None:
        if not isinstance(s.value, ast.Constant):  # a docstring
            self.eval(s.value)

    def _Pass(self, s: ast.Pass) -> None:
        pass

    def _Assign(self, s: ast.Assign) -> None:
        (target,) = s.targets
        x = self.eval(s.value)
        if isinstance(target, ast.Tuple):
            values = [v if isinstance(v, Array | Matrix) else self.value(v) for v in x]
            for t, v in zip(target.elts, values, strict=True):
                self._assign(t, v)
        else:
            self._assign(target, x)

    def _AnnAssign(self, s: ast.AnnAssign) -> None:
        assert s.value is not None
        self._assign(s.target, self.eval(s.value))

    def _AugAssign(self, s: ast.AugAssign) -> None:
        self._assign(s.target, self._binary(s.op, self.eval(s.target), self.eval(s.value)))

    def _assign(self, target: ast.expr, x: Value) -> None:
        if isinstance(target, ast.Subscript):
            self._element(target, x)
            return
        assert isinstance(target, ast.Name)
        cell = self._scope.names.get(target.id)
        if isinstance(cell, _Cell):
            self._write(cell, x)
        else:
            self._scope.names[target.id] = self._new_cell(x)

    def _If(self, s: ast.If) -> None:
        test = self.eval(s.test)
        if isinstance(test, bool | int):
            self._body(s.body if test else s.orelse)
            return
        then, other, end = self._label(), self._label(), self._label()
        self._branch(test, then, other)
        for label, body in ((then, s.body), (other, s.orelse)):
            self._start(label)
            self._body(body)
            self._jump(end)
        self._start(end)

    def _While(self, s: ast.While) -> None:
        head, body, end = self._label(), self._label(), self._label()
        self._jump(head)
        self._start(head)
        test = self.eval(s.test)
        self._branch(self.value(bool(test)) if isinstance(test, bool | int) else test, body, end)
        self._start(body)
        self._scope.loops.append((head, end))
        self._body(s.body)
        self._scope.loops.pop()
        self._jump(head)
        self._start(end)

    def _For(self, s: ast.For) -> None:
        assert isinstance(s.target, ast.Name)
        if not (isinstance(s.iter, ast.Call) and isinstance(s.iter.func, ast.Name) and s.iter.func.id == "range"):
            for c in self.eval(s.iter):
                self._assign(s.target, c)
                self._body(s.body)
            return
        bounds = [self.eval(a) for a in s.iter.args]
        first, last = bounds[:2] if len(bounds) > 1 else (0, bounds[0])
        step = bounds[2] if len(bounds) > 2 else 1
        at, limit = self._new_cell(self.value(first)), self._new_cell(self.value(last))
        head, body, following, end = (self._label() for _ in range(4))
        self._jump(head)
        self._start(head)
        i = self._read(at)
        self._branch(self.fn.cmp("lt" if step > 0 else "gt", i, self._read(limit)), body, end)
        self._start(body)
        self._assign(s.target, i)
        self._scope.loops.append((following, end))
        self._body(s.body)
        self._scope.loops.pop()
        self._jump(following)
        self._start(following)
        self._write(at, self.fn.add(self._read(at), self.fn.i64(step)))
        self._jump(head)
        self._start(end)

    def _Break(self, s: ast.Break) -> None:
        self._jump(self._scope.loops[-1][1])

    def _Continue(self, s: ast.Continue) -> None:
        self._jump(self._scope.loops[-1][0])

    def _Return(self, s: ast.Return) -> None:
        if s.value is not None:
            x, scope = self.eval(s.value), self._scope
            values = x if isinstance(x, tuple) else (x,)
            if scope.results is None:
                scope.results, scope.single = [self._new_cell(v) for v in values], not isinstance(x, tuple)
            else:
                for c, v in zip(scope.results, values, strict=True):
                    self._write(c, v)
        self._jump(self._scope.end)

    # ------------------------------------------------------------------ expressions
    def eval(self, e: ast.expr) -> Value:
        return getattr(self, f"_{type(e).__name__}")(e)

    def _Constant(self, e: ast.Constant) -> Value:
        return e.value

    def _Name(self, e: ast.Name) -> Value:
        if e.id in self._scope.names:
            return self._read(self._scope.names[e.id])
        if e.id in self._scope.globals:
            return self._scope.globals[e.id]
        return __builtins__[e.id] if isinstance(__builtins__, dict) else getattr(__builtins__, e.id)

    def _Attribute(self, e: ast.Attribute) -> Value:
        return getattr(self.eval(e.value), e.attr)

    def _Tuple(self, e: ast.Tuple) -> Value:
        return tuple(self.eval(x) for x in e.elts)

    def _Subscript(self, e: ast.Subscript) -> Value:
        return self._element(e)

    def _BinOp(self, e: ast.BinOp) -> Value:
        return self._binary(e.op, self.eval(e.left), self.eval(e.right))

    def _UnaryOp(self, e: ast.UnaryOp) -> Value:
        x = self.eval(e.operand)
        if isinstance(x, CONSTANT):
            return -x if isinstance(e.op, ast.USub) else (not x)
        if isinstance(e.op, ast.Not):
            return self.fn.not_(x)
        return Complex(self.fn.neg(x.re), self.fn.neg(x.im)) if isinstance(x, Complex) else self.fn.neg(x)

    def _Compare(self, e: ast.Compare) -> Value:
        ((op,), (right,)) = e.ops, e.comparators
        a, b, how = self.eval(e.left), self.eval(right), _COMPARISONS[type(op)]
        if isinstance(a, CONSTANT) and isinstance(b, CONSTANT):
            return bool(getattr(operator, how)(a, b))
        a, b = self.together(a, b)
        if isinstance(a, Complex):
            parts = self.fn.cmp(how, a.re, b.re), self.fn.cmp(how, a.im, b.im)
            return self.fn.and_(*parts) if how == "eq" else self.fn.or_(*parts)
        return self.fn.cmp(how, a, b)

    def _BoolOp(self, e: ast.BoolOp) -> Value:
        both = isinstance(e.op, ast.And)
        out, end = self._cell(I1), self._label()
        self._write(out, not both)
        for k, part in enumerate(e.values):
            x = self.eval(part)
            if isinstance(x, bool | int):
                x = bool(x)
                if x == both:  # decides nothing
                    if k == len(e.values) - 1:
                        self._write(out, both)
                    continue
            following = self._label()
            x = self.value(x)
            if k == len(e.values) - 1:
                self._write(out, x)
                break
            self._branch(x, *((following, end) if both else (end, following)))
            self._start(following)
        self._jump(end)
        self._start(end)
        return self._read(out)

    def _IfExp(self, e: ast.IfExp) -> Value:
        test = self.eval(e.test)
        if isinstance(test, bool | int):
            return self.eval(e.body if test else e.orelse)
        then, other, end = self._label(), self._label(), self._label()
        self._branch(test, then, other)
        self._start(then)
        first = self.eval(e.body)
        cells = [self._new_cell(x) for x in (first if isinstance(first, tuple) else (first,))]
        self._jump(end)
        self._start(other)
        second = self.eval(e.orelse)
        for c, x in zip(cells, second if isinstance(second, tuple) else (second,), strict=True):
            self._write(c, x)
        self._jump(end)
        self._start(end)
        values = tuple(self._read(c) for c in cells)
        return values if isinstance(first, tuple) else values[0]

    def _Call(self, e: ast.Call) -> Value:
        f, args = self.eval(e.func), [self.eval(a) for a in e.args]
        if f in OPERATIONS:
            return OPERATIONS[f](self, *args)
        if getattr(f, "__script__", False):
            return self.call(f, *args)
        if all(isinstance(a, (*CONSTANT, tuple)) for a in args):
            return f(*args)
        raise InternalError(f"a script can't call {f}")

    # ------------------------------------------------------------------ arithmetic
    def _binary(self, op: ast.operator, a: Value, b: Value) -> Value:
        if isinstance(a, CONSTANT) and isinstance(b, CONSTANT):
            return _constant(op, a, b)
        fn = self.fn
        if isinstance(op, ast.Div):
            a, b = (x if isinstance(x, Complex) else self.real(x) for x in (self.value(a), self.value(b)))
        if isinstance(op, ast.Mult | ast.Div) and isinstance(self.value(a), Complex) != isinstance(self.value(b), Complex):
            a, b = self.value(a), self.value(b)
            if isinstance(a, Complex) and isinstance(op, ast.Mult):
                a, b = b, a
            if isinstance(op, ast.Mult):
                return Complex(fn.mul(self.real(a), b.re), fn.mul(self.real(a), b.im))
            if isinstance(a, Complex):
                return Complex(fn.div(a.re, self.real(b)), fn.div(a.im, self.real(b)))
        a, b = self.together(a, b)
        if isinstance(a, Complex):
            return self._complex(op, a, b)
        if isinstance(op, ast.FloorDiv | ast.Mod) and a.type == I64:  # of what isn't negative
            return (fn.divu if isinstance(op, ast.FloorDiv) else fn.remu)(a, b)
        table: dict[Any, Any] = {ast.Add: fn.add, ast.Sub: fn.sub, ast.Mult: fn.mul, ast.Div: fn.div}
        return table[type(op)](a, b)

    def _complex(self, op: ast.operator, a: Complex, b: Complex) -> Complex:
        fn = self.fn
        if isinstance(op, ast.Add | ast.Sub):
            f = fn.add if isinstance(op, ast.Add) else fn.sub
            return Complex(f(a.re, b.re), f(a.im, b.im))
        if isinstance(op, ast.Mult):
            return Complex(fn.sub(fn.mul(a.re, b.re), fn.mul(a.im, b.im)), fn.add(fn.mul(a.re, b.im), fn.mul(a.im, b.re)))
        # Smith's way, which doesn't overflow where the quotient doesn't
        steep = fn.cmp("lt", fn.unary("fabs", b.re), fn.unary("fabs", b.im))
        big, small = fn.select(steep, b.im, b.re), fn.select(steep, b.re, b.im)
        r = fn.div(small, big)
        d = fn.add(big, fn.mul(small, r))
        x, y = fn.select(steep, a.im, a.re), fn.select(steep, a.re, a.im)
        im = fn.sub(y, fn.mul(x, r))
        re = fn.add(x, fn.mul(y, r))
        return Complex(fn.div(re, d), fn.div(fn.select(steep, fn.neg(im), im), d))

    # ------------------------------------------------------------------ memory
    def _element(self, e: ast.Subscript, stored: Value = None) -> Value:
        """An element, loaded or (if a value is given) stored; or a row, or what begins at an element."""
        base = self.eval(e.value)
        if isinstance(base, tuple):
            return self._constant_element(base, self.eval(e.slice))
        index = e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice]
        if isinstance(base, Matrix):
            start = self.fn.mul(self.value(self.eval(index[0])), base.width)
            base, index = self._from(base.data, start), index[1:]
            if not index:
                return base
        (last,) = index
        if isinstance(last, ast.Slice):
            assert last.lower is not None and last.upper is None
            return self._from(base, self.value(self.eval(last.lower)))
        at = self.value(self.eval(last))
        if stored is None:
            return self._load(base, at)
        self._store(base, at, stored)
        return None

    def _from(self, a: Array, start: V) -> Array:
        step = self.fn.mul(start, 2) if a.paired else start
        im = None if a.im is None else self.fn.gep(a.im, start, a.elem)
        return Array(self.fn.gep(a.p, step, a.elem), a.elem, a.paired, im)

    def _places(self, a: Array, at: V) -> list[V]:
        fn = self.fn
        p = fn.gep(a.p, fn.mul(at, 2) if a.paired else at, a.elem)
        if not a.is_complex:
            return [p]
        return [p, fn.gep(p, 1, a.elem) if a.im is None else fn.gep(a.im, at, a.elem)]

    def _load(self, a: Array, at: V) -> Value:
        wide = F64 if a.elem.startswith("f") else I64
        values = [self.fn.cast(self.fn.load(p, a.elem), wide) for p in self._places(a, at)]
        return Complex(*values) if a.is_complex else values[0]

    def _store(self, a: Array, at: V, x: Value) -> None:
        wide = F64 if a.elem.startswith("f") else I64
        x = self.as_(x, "complex" if a.is_complex else wide)
        for v, p in zip([x.re, x.im] if isinstance(x, Complex) else [x], self._places(a, at), strict=True):
            self.fn.store(self.fn.cast(v, a.elem), p)

    def _constant_element(self, values: tuple[Any, ...], index: Value) -> Value:
        if isinstance(index, int):
            return values[index]
        name = f"table_{hashlib.sha1(repr(values).encode()).hexdigest()[:10]}"
        return vmath_base.table(self.fn, name, values, self.fn.cast(index, "i32"))


def _constant(op: ast.operator, a: Any, b: Any) -> Any:
    table: dict[Any, Callable[[Any, Any], Any]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
    }
    return table[type(op)](a, b)
