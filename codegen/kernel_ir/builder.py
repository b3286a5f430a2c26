"""A typed builder for kernel and host functions as text in the upstream MLIR dialects llvm, scf, arith and vector.

Functions are `llvm.func` with bare pointers and i64 sizes; loops and branches are `scf`, so that the structure survives until
`codegen/backends/cpu/llvm.py` lowers it. Text rather than the op API: MLIR parses 10,000 lines in about 30 ms, ten times
faster than Python can call the op constructors. Values know their type, so that one `add` serves integers, floats, scalars and
vectors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from dhlo.codegen.target import BITS, Target

__all__ = [
    "BITS",
    "F32",
    "F64",
    "I1",
    "I8",
    "I32",
    "I64",
    "PTR",
    "Fn",
    "KernelModule",
    "Linkage",
    "Loop",
    "Symbol",
    "V",
    "elem_of",
    "lanes_of",
    "vec",
]

I1, I8, I32, I64, F32, F64, PTR = "i1", "i8", "i32", "i64", "f32", "f64", "!llvm.ptr"
_VEC = "vector<"
_FLOATS = ("f16", "bf16", "f32", "f64")


def vec(elem: str, lanes: int) -> str:
    """The MLIR type of a vector of `lanes` elements."""
    return f"vector<{lanes}x{elem}>"


def elem_of(ty: str) -> str:
    """The element type of a vector type; a scalar type is its own."""
    return ty.partition("x")[2][:-1] if ty.startswith(_VEC) else ty


def lanes_of(ty: str) -> int:
    """Lanes of a vector type, 0 for a scalar."""
    return int(ty[len(_VEC) :].partition("x")[0]) if ty.startswith(_VEC) else 0


@dataclass(frozen=True, slots=True)
class V:
    """An SSA value: its name in the text and its MLIR type."""

    name: str
    type: str

    @property
    def elem(self) -> str:
        return elem_of(self.type)

    @property
    def lanes(self) -> int:
        return lanes_of(self.type)

    @property
    def is_float(self) -> bool:
        return self.elem in _FLOATS


Num = V | int | float


@dataclass
class Loop:
    """A `scf.for` under construction: induction variable, carried values inside, results after."""

    iv: V
    carried: list[V]
    results: list[V]
    yielded: list[V] = field(default_factory=list)

    def yield_(self, *values: V) -> None:
        """Sets the values carried into the next iteration."""
        self.yielded = list(values)


class Linkage(Enum):
    """Who sees a symbol: its module alone (INLINE: and only as a part of what calls it), the program around it, or it is
    defined elsewhere."""

    INTERNAL = "internal"
    INLINE = "inline"
    EXPORTED = "exported"
    DECLARED = "declared"


@dataclass(frozen=True)
class Symbol:
    """A function or a constant of a module.

    head         "llvm.func", "llvm.mlir.global"
    body         MLIR from the symbol's name on
    declaration  MLIR of a function for modules that don't hold it, from the symbol's name on
    uses         names of the module that the body refers to
    """

    head: str
    body: str
    declaration: str
    linkage: Linkage
    uses: frozenset[str] = frozenset()

    def text(self, *, visible: bool = False) -> str:
        """The definition; `visible` to other modules of the program, whatever its linkage."""
        hidden = self.linkage in (Linkage.INTERNAL, Linkage.INLINE) and not visible
        return f"{self.head} {'internal ' if hidden else ''}{self.body}"

    def declared(self) -> str:
        """The declaration for a module that doesn't hold the definition."""
        return f"{self.head} {self.declaration}"

    def renamed(self, old: str, new: str) -> Symbol:
        """With another name for itself and for what it uses."""
        uses = frozenset(u.replace(old, new) for u in self.uses)
        return replace(self, body=self.body.replace(old, new), declaration=self.declaration.replace(old, new), uses=uses)


class _Functions(dict[str, Symbol]):
    """Functions by name. Emitters look for a function before they add it: `asked` is told both."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __setitem__(self, name: str, symbol: Symbol) -> None:
        self.asked.add(name)
        super().__setitem__(name, symbol)


class KernelModule:
    """Functions and globals by name, in order, for one target; the unit that is lowered and optimised together.

    Names are plain. In the text they end with the target's tag, so that code for several targets fits into one program;
    what is exported or declared keeps its name, which others know.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.functions = _Functions()
        self.globals: dict[str, Symbol] = {}

    def text(self) -> str:
        return "module {\n" + "\n".join(s.text() for s in [*self.globals.values(), *self.functions.values()]) + "\n}\n"

    @contextmanager
    def asked(self) -> Iterator[set[str]]:
        """The names of functions that emitters add to the module inside, or would if they weren't there."""
        outer, inner = self.functions.asked, set[str]()
        self.functions.asked = inner
        yield inner
        outer |= inner
        self.functions.asked = outer

    def tagged(self, name: str) -> str:
        """The name as this module's texts spell it."""
        known = self.functions.get(name)
        keeps = known is not None and known.linkage in (Linkage.EXPORTED, Linkage.DECLARED)
        return name if keeps or not self.target.tag else f"{name}.{self.target.tag}"

    def declare(self, name: str, args: Sequence[str], result: str | None = None) -> None:
        """Declares an external function (libm, say) once; before it is called."""
        if name not in self.functions:
            ret = f" -> {result}" if result else ""
            signature = f"@{name}({', '.join(args)}){ret}"
            self.functions[name] = Symbol("llvm.func", signature, signature, Linkage.DECLARED)

    def add_constant(self, name: str, text: str, uses: Sequence[str] = ()) -> None:
        """Adds a constant: MLIR from what follows its name on, with the names in `uses` as `tagged` spells them."""
        body = f"constant @{self.tagged(name)}{text}"
        self.globals[name] = Symbol("llvm.mlir.global", body, "", Linkage.INTERNAL, frozenset(uses))


class Fn:
    """Builds one function. Finish with `done()`, which adds it to the module.

    `args` are (name, type) pairs; `results` at most one type. `inline` functions are always inlined and not exported.
    """

    def __init__(
        self,
        module: KernelModule,
        name: str,
        args: Sequence[tuple[str, str]],
        result: str | None = None,
        *,
        internal: bool = True,
        inline: bool = False,
        noinline: bool = False,
    ) -> None:
        self.module, self.name, self.result = module, name, result
        self._args = [V(f"%{n}", t) for n, t in args]
        self._internal, self._inline, self._noinline = internal, inline, noinline
        self._lines: list[str] = []
        self._consts: dict[tuple[str, str], V] = {}
        self._entry: list[str] = []
        self._uses: set[str] = set()
        self._n = 0
        self._indent = 1

    # ------------------------------------------------------------------ the target
    @property
    def target(self) -> Target:
        return self.module.target

    @property
    def lanes(self) -> int:
        """How many elements kernels compute at once: those of a vector register of f32."""
        return self.module.target.lanes(F32)

    def vec(self, elem: str) -> str:
        """The MLIR type of as many elements as kernels compute at once."""
        return vec(elem, self.lanes)

    # ------------------------------------------------------------------ structure
    @property
    def args(self) -> list[V]:
        return self._args

    def fresh(self, ty: str) -> V:
        self._n += 1
        return V(f"%{self._n}", ty)

    def raw(self, line: str) -> None:
        """Adds a line of MLIR as it is."""
        self._lines.append("  " * self._indent + line)

    def op(self, ty: str, text: str) -> V:
        """Adds an operation with one result of type `ty`."""
        r = self.fresh(ty)
        self._lines.append(f"{'  ' * self._indent}{r.name} = {text}")
        return r

    def ret(self, value: V | None = None) -> None:
        self.raw(f"llvm.return {value.name} : {value.type}" if value else "llvm.return")

    def done(self) -> None:
        """Adds the function to its module; a body without `ret` returns nothing."""
        if not self._lines or "llvm.return" not in self._lines[-1]:
            self.ret()
        attrs = ['"alwaysinline"'] if self._inline else ['"noinline"'] if self._noinline else []
        attr = f" attributes {{passthrough = [{', '.join(attrs)}]}}" if attrs else ""
        sig = ", ".join(f"{a.name}: {a.type}" for a in self._args)
        ret = f" -> {self.result}" if self.result else ""
        linkage = Linkage.INLINE if self._inline else Linkage.INTERNAL if self._internal else Linkage.EXPORTED
        symbol = self.module.tagged(self.name) if self._internal else self.name
        body = "\n".join([*self._entry, *self._lines])
        self.module.functions[self.name] = Symbol(
            "llvm.func",
            f"@{symbol}({sig}){ret}{attr} {{\n{body}\n}}",
            f"@{symbol}({', '.join(a.type for a in self._args)}){ret}",
            linkage,
            frozenset(self._uses),
        )

    @contextmanager
    def loop(self, lo: Num, hi: Num, step: Num = 1, init: Sequence[V] = ()) -> Iterator[Loop]:
        """`for iv in range(lo, hi, step)` over i64 with loop-carried values; call `yield_` at its end if there are any."""
        a, b, s = self.i64(lo), self.i64(hi), self.i64(step)
        iv = self.fresh(I64)
        carried = [self.fresh(x.type) for x in init]
        res_name = f"%{self._n + 1}"
        self._n += 1
        results = [V(res_name if len(init) == 1 else f"{res_name}#{k}", x.type) for k, x in enumerate(init)]
        head = f"scf.for {iv.name} = {a.name} to {b.name} step {s.name}"
        if init:
            tys = ", ".join(x.type for x in init)
            its = ", ".join(f"{c.name} = {x.name}" for c, x in zip(carried, init, strict=True))
            head = f"{res_name}{f':{len(init)}' if len(init) > 1 else ''} = {head} iter_args({its}) -> ({tys})"
        self.raw(f"{head} : i64 {{")
        loop = Loop(iv, carried, results)
        self._indent += 1
        yield loop
        if len(loop.yielded) != len(init):
            raise AssertionError(f"loop carries {len(init)} values but {len(loop.yielded)} were yielded")
        if init:
            self.raw(f"scf.yield {', '.join(v.name for v in loop.yielded)} : {', '.join(v.type for v in loop.yielded)}")
        self._indent -= 1
        self.raw("}")

    @contextmanager
    def when(self, cond: V) -> Iterator[None]:
        """A branch without results."""
        self.raw(f"scf.if {cond.name} {{")
        self._indent += 1
        yield
        self._indent -= 1
        self.raw("}")

    def if_else(self, cond: V, then: Callable[[], Sequence[V]], other: Callable[[], Sequence[V]], types: Sequence[str]) -> list[V]:
        """A branch whose two sides each return values of `types`; returns the merged values."""
        name = f"%{self._n + 1}"
        self._n += 1
        n = len(types)
        head = f"{name}{f':{n}' if n > 1 else ''} = " if n else ""
        self.raw(f"{head}scf.if {cond.name}{' -> (' + ', '.join(types) + ')' if n else ''} {{")
        for k, side in enumerate((then, other)):
            self._indent += 1
            values = side()
            if n:
                self.raw(f"scf.yield {', '.join(v.name for v in values)} : {', '.join(types)}")
            self._indent -= 1
            self.raw("} else {" if k == 0 else "}")
        return [V(name if n == 1 else f"{name}#{k}", t) for k, t in enumerate(types)]

    def label(self, name: str) -> None:
        """Starts a basic block; only outside `loop`, `when` and `if_else`."""
        self._lines.append(f"^{name}:")

    def jump(self, name: str) -> None:
        self.raw(f"llvm.br ^{name}")

    def branch(self, cond: V, then: str, other: str) -> None:
        """Ends the block: goes to one of two labels."""
        self.raw(f"llvm.cond_br {cond.name}, ^{then}, ^{other}")

    # ------------------------------------------------------------------ constants and coercion
    def const(self, value: int | float | bool, ty: str) -> V:
        """A constant (splat for vector types), placed in the entry block once."""
        elem = elem_of(ty)
        if elem in _FLOATS:
            text = _float_text(float(value), elem)
        elif elem == I1:
            text = "true" if value else "false"
        else:
            text = str(int(value))
        key = (text, ty)
        if key not in self._consts:
            r = self.fresh(ty)
            lit = f"dense<{text}>" if lanes_of(ty) else text
            suffix = "" if elem == I1 and not lanes_of(ty) else f" : {ty}"
            self._entry.append(f"  {r.name} = arith.constant {lit}{suffix}")
            self._consts[key] = r
        return self._consts[key]

    def dense(self, values: Sequence[int | float], elem: str) -> V:
        """A constant vector with the given elements."""
        ty = vec(elem, len(values))
        text = ", ".join(_float_text(float(v), elem) if elem in _FLOATS else str(int(v)) for v in values)
        key = (f"[{text}]", ty)
        if key not in self._consts:
            r = self.fresh(ty)
            self._entry.append(f"  {r.name} = arith.constant dense<[{text}]> : {ty}")
            self._consts[key] = r
        return self._consts[key]

    def iota(self, elem: str = I64, lanes: int = 0) -> V:
        return self.dense(range(lanes or self.lanes), elem)

    def i64(self, x: Num) -> V:
        return x if isinstance(x, V) else self.const(int(x), I64)

    def _pair(self, a: Num, b: Num) -> tuple[V, V]:
        """Brings two operands to one type: numbers become constants, scalars are splat against vectors."""
        if not isinstance(a, V):
            if not isinstance(b, V):
                return self.const(a, I64), self.const(b, I64)
            return self.const(a, b.type), b
        if not isinstance(b, V):
            return a, self.const(b, a.type)
        if a.lanes and not b.lanes:
            b = self.splat(b, a.lanes)
        elif b.lanes and not a.lanes:
            a = self.splat(a, b.lanes)
        if a.type != b.type:
            raise AssertionError(f"operands of different types {a.type} and {b.type}")
        return a, b

    def splat(self, x: V, lanes: int = 0) -> V:
        ty = vec(x.type, lanes or self.lanes)
        return self.op(ty, f"vector.broadcast {x.name} : {x.type} to {ty}")

    # ------------------------------------------------------------------ arithmetic
    @contextmanager
    def wrapping(self) -> Iterator[None]:
        """Integer arithmetic in here is modulo 2^64, as everywhere in kernels; in host functions it is for estimates."""
        yield

    def assume(self, x: V, lo: int | None = None, hi: int | None = None) -> V:
        """Says that an integer lies in lo..hi; of use in host functions only, which prove with it that sizes fit."""
        return x

    def interval(self, x: Num) -> tuple[int, int]:
        """Where an integer lies, as far as that is known."""
        return -(1 << 63), (1 << 63) - 1

    def _bin(self, int_op: str, float_op: str, a: Num, b: Num) -> V:
        x, y = self._pair(a, b)
        name = float_op if x.is_float else int_op
        if not name:
            raise AssertionError(f"no such operation on {x.type}")
        # Which of 0 and -0 is larger is left open, as PyTorch leaves it: half the instructions on x86.
        flags = " fastmath<nsz>" if name in ("maximumf", "minimumf") else ""
        return self.op(x.type, f"arith.{name} {x.name}, {y.name}{flags} : {x.type}")

    def add(self, a: Num, b: Num) -> V:
        if isinstance(b, int) and b == 0 and isinstance(a, V):
            return a
        return self._bin("addi", "addf", a, b)

    def sub(self, a: Num, b: Num) -> V:
        if isinstance(b, int) and b == 0 and isinstance(a, V):
            return a
        return self._bin("subi", "subf", a, b)

    def mul(self, a: Num, b: Num) -> V:
        if isinstance(b, int) and b == 1 and isinstance(a, V):
            return a
        return self._bin("muli", "mulf", a, b)

    def div(self, a: Num, b: Num) -> V:
        """Float division, or signed division rounded towards zero."""
        return self._bin("divsi", "divf", a, b)

    def rem(self, a: Num, b: Num) -> V:
        """Remainder with the sign of the dividend."""
        return self._bin("remsi", "remf", a, b)

    def divu(self, a: Num, b: Num) -> V:
        """Division of values known to be non-negative (cheaper than the signed one by powers of two)."""
        return self._bin("divui", "", a, b)

    def remu(self, a: Num, b: Num) -> V:
        return self._bin("remui", "", a, b)

    def ceildivu(self, a: Num, b: int | V) -> V:
        return self.divu(self.add(a, b - 1 if isinstance(b, int) else self.sub(b, 1)), b)

    def floordiv(self, a: Num, b: Num) -> V:
        return self._bin("floordivsi", "", a, b)

    def min(self, a: Num, b: Num) -> V:
        """Minimum; a NaN operand gives NaN, zeros of either sign are equal."""
        return self._bin("minsi", "minimumf", a, b)

    def max(self, a: Num, b: Num) -> V:
        """Maximum; a NaN operand gives NaN, zeros of either sign are equal."""
        return self._bin("maxsi", "maximumf", a, b)

    def maxnum(self, a: Num, b: Num) -> V:
        """Maximum that ignores NaN (one instruction on x86)."""
        return self._bin("maxsi", "maxnumf", a, b)

    def minnum(self, a: Num, b: Num) -> V:
        return self._bin("minsi", "minnumf", a, b)

    def and_(self, a: Num, b: Num) -> V:
        return self._bin("andi", "", a, b)

    def or_(self, a: Num, b: Num) -> V:
        return self._bin("ori", "", a, b)

    def xor(self, a: Num, b: Num) -> V:
        return self._bin("xori", "", a, b)

    def shl(self, a: Num, b: Num) -> V:
        return self._bin("shli", "", a, b)

    def shr(self, a: Num, b: Num) -> V:
        """Arithmetic shift right."""
        return self._bin("shrsi", "", a, b)

    def not_(self, a: V) -> V:
        return self.xor(a, self.const(1 if a.elem == I1 else -1, a.type))

    def neg(self, a: V) -> V:
        if a.is_float:
            return self.op(a.type, f"arith.negf {a.name} : {a.type}")
        return self.sub(self.const(0, a.type), a)

    def fma(self, a: V, b: V, c: V) -> V:
        """a * b + c, rounded once."""
        a, b = self._pair(a, b)
        a, c = self._pair(a, c)
        if a.lanes:
            return self.op(a.type, f"vector.fma {a.name}, {b.name}, {c.name} : {a.type}")
        return self.op(a.type, f"llvm.intr.fma({a.name}, {b.name}, {c.name}) : ({a.type}, {a.type}, {a.type}) -> {a.type}")

    def cmp(self, pred: str, a: Num, b: Num) -> V:
        """Comparison: eq ne lt le gt ge; floats ordered except `ne` (true on NaN); `uno` is true if one is NaN. Ints signed."""
        x, y = self._pair(a, b)
        ty = vec(I1, x.lanes) if x.lanes else I1
        if x.is_float:
            p = {"ne": "une", "uno": "uno"}.get(pred, "o" + pred)
            return self.op(ty, f"arith.cmpf {p}, {x.name}, {y.name} : {x.type}")
        p = pred if pred in ("eq", "ne") or pred[0] == "u" else "s" + pred
        return self.op(ty, f"arith.cmpi {p}, {x.name}, {y.name} : {x.type}")

    def select(self, c: V, a: Num, b: Num) -> V:
        x, y = self._pair(a, b)
        if c.lanes and not x.lanes:
            x, y = self.splat(x, c.lanes), self.splat(y, c.lanes)
        cond = f"{c.name} : {c.type + ', ' if c.lanes else ''}{x.type}"
        head, _, ty = cond.partition(" : ")
        return self.op(x.type, f"arith.select {head}, {x.name}, {y.name} : {ty}")

    def unary(self, intrinsic: str, a: V) -> V:
        """An LLVM intrinsic with one float operand, e.g. sqrt, floor, ceil, trunc, rint/nearbyint, fabs, roundeven."""
        return self.op(a.type, f"llvm.intr.{intrinsic}({a.name}) : ({a.type}) -> {a.type}")

    def intrinsic(self, name: str, ty: str, *args: V) -> V:
        """Any LLVM intrinsic by full name, e.g. llvm.x86.avx512bf16.dpbf16ps.512."""
        names, tys = ", ".join(a.name for a in args), ", ".join(a.type for a in args)
        return self.op(ty, f'llvm.call_intrinsic "{name}"({names}) : ({tys}) -> {ty}')

    # ------------------------------------------------------------------ conversion
    def _conv(self, name: str, a: V, elem: str) -> V:
        ty = vec(elem, a.lanes) if a.lanes else elem
        return self.op(ty, f"arith.{name} {a.name} : {a.type} to {ty}")

    def cast(self, a: V, elem: str, *, signed: bool = True) -> V:
        """Value conversion to another element type; floats to ints truncate, i1 is 0 or 1, to i1 means != 0."""
        src = a.elem
        if src == elem:
            return a
        if elem == I1:
            return self.cmp("ne", a, self.const(0, a.type))
        if src in _FLOATS and elem in _FLOATS:
            if BITS[src] == BITS[elem]:
                return self._conv("truncf", self._conv("extf", a, F32), elem)
            return self._conv("extf" if BITS[elem] > BITS[src] else "truncf", a, elem)
        if src in _FLOATS:
            return self._conv("fptosi" if signed else "fptoui", a, elem)
        if elem in _FLOATS:
            return self._conv("uitofp" if src == I1 or not signed else "sitofp", a, elem)
        if BITS[elem] < BITS[src]:
            return self._conv("trunci", a, elem)
        return self._conv("extui" if src == I1 or not signed else "extsi", a, elem)

    def bitcast(self, a: V, elem: str) -> V:
        return self._conv("bitcast", a, elem)

    # ------------------------------------------------------------------ vectors
    def extract(self, a: V, i: int) -> V:
        return self.op(a.elem, f"vector.extract {a.name}[{i}] : {a.elem} from {a.type}")

    def insert(self, x: V, a: V, i: int) -> V:
        return self.op(a.type, f"vector.insert {x.name}, {a.name}[{i}] : {x.type} into {a.type}")

    def shuffle(self, a: V, b: V, idx: Sequence[int]) -> V:
        ty = vec(a.elem, len(idx))
        return self.op(ty, f"vector.shuffle {a.name}, {b.name} [{', '.join(map(str, idx))}] : {a.type}, {b.type}")

    def reduce(self, kind: str, a: V) -> V:
        """Horizontal reduction: add mul minsi maxsi minimumf maximumf minnumf maxnumf and or. Float sums are reassociated."""
        fm = " fastmath<reassoc>" if a.is_float and kind in ("add", "mul") else ""
        return self.op(a.elem, f"vector.reduction <{kind}>, {a.name}{fm} : {a.type} into {a.elem}")

    def tail_mask(self, n: V, lanes: int = 0) -> V:
        """Lanes below `n` (i64, may exceed the lane count)."""
        lanes = lanes or self.lanes
        n32 = self.cast(self.min(n, lanes), I32)
        return self.cmp("lt", self.iota(I32, lanes), self.splat(n32, lanes))

    # ------------------------------------------------------------------ memory
    def gep(self, p: V, i: Num, elem: str) -> V:
        """Address of element `i` (a constant, an i64, or a vector of i64 giving a vector of pointers)."""
        if isinstance(i, int):
            return p if i == 0 else self.op(PTR, f"llvm.getelementptr {p.name}[{i}] : (!llvm.ptr) -> !llvm.ptr, {elem}")
        assert isinstance(i, V)
        out = vec(PTR, i.lanes) if i.lanes else PTR
        return self.op(out, f"llvm.getelementptr {p.name}[{i.name}] : (!llvm.ptr, {i.type}) -> {out}, {elem}")

    def load(self, p: V, ty: str, align: int | None = None) -> V:
        """Loads a scalar or a whole vector; element alignment unless said otherwise."""
        a = align or max(1, BITS.get(elem_of(ty), 64) // 8)
        return self.op(ty, f"llvm.load {p.name} {{alignment = {a} : i64}} : !llvm.ptr -> {ty}")

    def store(self, x: V, p: V, align: int | None = None, *, nontemporal: bool = False) -> None:
        a = align or max(1, BITS.get(x.elem, 64) // 8)
        nt = ", nontemporal" if nontemporal else ""
        self.raw(f"llvm.store {x.name}, {p.name} {{alignment = {a} : i64{nt}}} : {x.type}, !llvm.ptr")

    def masked_load(self, p: V, mask: V, other: V) -> V:
        """Lanes of memory where `mask` holds, of `other` elsewhere; memory of the other lanes isn't touched."""
        a = max(1, BITS[other.elem] // 8)
        return self.op(
            other.type,
            f"llvm.intr.masked.load {p.name}, {mask.name}, {other.name} {{alignment = {a} : i32}}"
            f" : (!llvm.ptr, {mask.type}, {other.type}) -> {other.type}",
        )

    def masked_store(self, x: V, p: V, mask: V) -> None:
        a = max(1, BITS[x.elem] // 8)
        self.raw(
            f"llvm.intr.masked.store {x.name}, {p.name}, {mask.name} {{alignment = {a} : i32}}"
            f" : {x.type}, {mask.type} into !llvm.ptr"
        )

    def store_first(self, x: V, p: V, n: V) -> None:
        """Stores a vector's lanes below `n` (i64, may exceed the lane count), whole vectors without a mask where that is dear."""
        mask = self.tail_mask(n, x.lanes)
        if self.target.mask_registers:
            self.masked_store(x, p, mask)
            return

        def whole() -> list[V]:
            self.store(x, p)
            return []

        def part() -> list[V]:
            self.masked_store(x, p, mask)
            return []

        self.if_else(self.cmp("ge", n, x.lanes), whole, part, [])

    def gather(self, ptrs: V, mask: V, other: V, align: int | None = None) -> V:
        """Lanes of memory where `mask` holds, of `other` elsewhere; element alignment unless said otherwise."""
        a = align or max(1, BITS[other.elem] // 8)
        return self.op(
            other.type,
            f"llvm.intr.masked.gather {ptrs.name}, {mask.name}, {other.name} {{alignment = {a} : i32}}"
            f" : ({ptrs.type}, {mask.type}, {other.type}) -> {other.type}",
        )

    def scatter(self, x: V, ptrs: V, mask: V) -> None:
        a = max(1, BITS[x.elem] // 8)
        self.raw(
            f"llvm.intr.masked.scatter {x.name}, {ptrs.name}, {mask.name} {{alignment = {a} : i32}}"
            f" : {x.type}, {mask.type} into {ptrs.type}"
        )

    def prefetch(self, p: V, locality: int = 3, *, write: bool = False) -> None:
        """Prefetch into the data cache, for reading or to `write`; locality 3 = all levels, 0 = non-temporal."""
        kind = f"rw = {int(write)} : i32, hint = {locality} : i32, cache = 1 : i32"
        self.raw(f'"llvm.intr.prefetch"({p.name}) <{{{kind}}}> : (!llvm.ptr) -> ()')

    def alloca(self, count: int, elem: str, align: int = 64) -> V:
        """Stack memory for the whole call (placed in the entry block)."""
        n, r = self.const(count, I64), self.fresh(PTR)
        self._entry.append(f"  {r.name} = llvm.alloca {n.name} x {elem} {{alignment = {align} : i64}} : (i64) -> !llvm.ptr")
        return r

    def ptr_to_int(self, p: V) -> V:
        return self.op(I64, f"llvm.ptrtoint {p.name} : !llvm.ptr to i64")

    def int_to_ptr(self, x: V) -> V:
        return self.op(PTR, f"llvm.inttoptr {x.name} : i64 to !llvm.ptr")

    def entry_load(self, array: V, i: int, ty: str) -> V:
        """Element `i` of an array of 64-bit words (an argument array), loaded in the entry block, as i64, f64 or a pointer."""
        p, r = self.fresh(PTR), self.fresh(ty)
        self._entry.append(f"  {p.name} = llvm.getelementptr {array.name}[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
        self._entry.append(f"  {r.name} = llvm.load {p.name} {{alignment = 8 : i64}} : !llvm.ptr -> {ty}")
        return r

    def entry_store(self, x: V, array: V, i: int) -> None:
        """Stores a constant to element `i` of stack memory, in the entry block."""
        p = self.fresh(PTR)
        self._entry.append(f"  {p.name} = llvm.getelementptr {array.name}[{i}] : (!llvm.ptr) -> !llvm.ptr, {x.type}")
        self._entry.append(f"  llvm.store {x.name}, {p.name} {{alignment = 8 : i64}} : {x.type}, !llvm.ptr")

    # ------------------------------------------------------------------ calls
    def call(self, fn: str, args: Sequence[V], result: str | None = None) -> V | None:
        """Calls a function of the module by name."""
        sig = f"({', '.join(a.type for a in args)}) -> {result or '()'}"
        self._uses.add(fn)
        text = f"llvm.call @{self.module.tagged(fn)}({', '.join(a.name for a in args)}) : {sig}"
        if result is None:
            self.raw(text)
            return None
        return self.op(result, text)

    def call_ptr(self, fn: V, args: Sequence[V], result: str | None = None) -> V | None:
        """Calls through a function pointer."""
        sig = f"!llvm.ptr, ({', '.join(a.type for a in args)}) -> {result or '()'}"
        text = f"llvm.call {fn.name}({', '.join(a.name for a in args)}) : {sig}"
        if result is None:
            self.raw(text)
            return None
        return self.op(result, text)

    def address_of(self, symbol: str) -> V:
        self._uses.add(symbol)
        return self.op(PTR, f"llvm.mlir.addressof @{self.module.tagged(symbol)} : !llvm.ptr")


def _float_text(x: float, elem: str) -> str:
    """MLIR takes decimal literals only for finite values; the others are written as bits."""
    if elem in ("f16", "bf16") and (x != x or x in (float("inf"), float("-inf"))):
        table = {"f16": ("0x7E00", "0x7C00", "0xFC00"), "bf16": ("0x7FC0", "0x7F80", "0xFF80")}[elem]
        return table[0] if x != x else table[1] if x > 0 else table[2]
    if elem == "f32":
        if x == x and abs(x) > 3.4028235677973366e38 and abs(x) != float("inf"):
            x = float("inf") if x > 0 else float("-inf")
        return f"0x{struct.unpack('<I', struct.pack('<f', x))[0]:08X}"
    if elem == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
    mantissa, e, exponent = repr(float(x)).partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + e + exponent
