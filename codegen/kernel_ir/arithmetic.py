"""What functions compute from values: constants, arithmetic, conversions and vectors, in the upstream dialects arith and vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dhlo.codegen.kernel_ir.values import F32, FLOATS, I1, I32, I64, Num, V, elem_of, float_text, lanes_of, vec
from dhlo.codegen.target import BITS

__all__ = ["Arithmetic"]


class Arithmetic(ABC):
    """Operations that have no effect but their results. Values know their type, so that one `add` serves integers, floats, scalars
    and vectors."""

    def __init__(self) -> None:
        self._consts: dict[tuple[str, str], V] = {}
        self._entry: list[str] = []  # lines of the block that comes first

    @property
    @abstractmethod
    def lanes(self) -> int:
        """How many elements kernels compute at once."""

    @abstractmethod
    def fresh(self, ty: str) -> V:
        """A value that nothing defines yet."""

    @abstractmethod
    def op(self, ty: str, text: str) -> V:
        """Adds an operation with one result of type `ty`."""

    # ------------------------------------------------------------------ constants and coercion
    def const(self, value: int | float | bool, ty: str) -> V:
        """A constant (splat for vector types), placed in the entry block once."""
        elem = elem_of(ty)
        if elem in FLOATS:
            text = float_text(float(value), elem)
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
        text = ", ".join(float_text(float(v), elem) if elem in FLOATS else str(int(v)) for v in values)
        key = (f"[{text}]", ty)
        if key not in self._consts:
            r = self.fresh(ty)
            self._entry.append(f"  {r.name} = arith.constant dense<[{text}]> : {ty}")
            self._consts[key] = r
        return self._consts[key]

    def constant(self, x: V) -> int | None:
        """The integer that a constant, or each element of one, is; None of any other value."""
        texts = [text for (text, _), c in self._consts.items() if c.name == x.name]
        return int(texts[0]) if texts and x.elem.startswith("i") and texts[0].lstrip("-").isdigit() else None

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
        ty, known = vec(x.type, lanes or self.lanes), self.constant(x)
        return self.op(ty, f"vector.broadcast {x.name} : {x.type} to {ty}") if known is None else self.const(known, ty)

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

    def maxu(self, a: Num, b: Num) -> V:
        """Maximum of integers without a sign."""
        return self._bin("maxui", "", a, b)

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
        if src in FLOATS and elem in FLOATS:
            if BITS[src] == BITS[elem]:
                return self._conv("truncf", self._conv("extf", a, F32), elem)
            return self._conv("extf" if BITS[elem] > BITS[src] else "truncf", a, elem)
        if src in FLOATS:
            return self._conv("fptosi" if signed else "fptoui", a, elem)
        if elem in FLOATS:
            return self._conv("uitofp" if src == I1 or not signed else "sitofp", a, elem)
        if BITS[elem] < BITS[src]:
            return self._conv("trunci", a, elem)
        return self._conv("extui" if src == I1 or not signed else "extsi", a, elem)

    def freeze(self, a: V) -> V:
        """The same, or some number of its type where LLVM takes it for undefined."""
        return self.op(a.type, f"llvm.freeze {a.name} : {a.type}")

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
        """Horizontally: add mul min(s,u)i max(s,u)i minimumf maximumf minnumf maxnumf and or xor. Float sums are reassociated."""
        fm = " fastmath<reassoc>" if a.is_float and kind in ("add", "mul") else ""
        return self.op(a.elem, f"vector.reduction <{kind}>, {a.name}{fm} : {a.type} into {a.elem}")

    def tail_mask(self, n: V, lanes: int = 0) -> V:
        """Lanes below `n` (i64, may exceed the lane count)."""
        lanes = lanes or self.lanes
        n32 = self.cast(self.min(n, lanes), I32)
        return self.cmp("lt", self.iota(I32, lanes), self.splat(n32, lanes))
