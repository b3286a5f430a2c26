"""A typed builder for kernel and host functions as text in the upstream MLIR dialects llvm, scf, arith and vector.

Functions are `llvm.func` with bare pointers and i64 sizes; loops and branches are `scf`, so that the structure survives until
`codegen/backends/cpu/llvm.py` lowers it. Text rather than the op API: MLIR parses 10,000 lines in about 30 ms, ten times
faster than Python can call the op constructors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dhlo.codegen.kernel_ir.arithmetic import Arithmetic
from dhlo.codegen.kernel_ir.module import KernelModule, Linkage, Symbol
from dhlo.codegen.kernel_ir.values import F32, F64, I1, I8, I32, I64, PTR, Num, V, elem_of, lanes_of, vec
from dhlo.codegen.target import BITS, Target

__all__ = [
    "BITS",
    "EXPLICIT",
    "ONCE",
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
    "Num",
    "Symbol",
    "V",
    "elem_of",
    "lanes_of",
    "vec",
]

EXPLICIT = "dhlo-explicit"
ONCE = "dhlo-once"
"""Attributes of functions by which LLVM IR says what `Fn` calls so."""

_MOST_INDEX = (1 << 31) - 1  # that an address may have as a constant


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


class Fn(Arithmetic):
    """Builds one function. Finish with `done()`, which adds it to the module.

    `args` are (name, type) pairs; `results` at most one type. `inline` functions are always inlined and not exported, `noinline`
    ones never. `explicit` ones, which aren't either, are written as the machine is to run them, as micro-kernels and host programs
    are: LLVM tidies them up and looks for nothing else, which takes half of the time. Loops over places of an image aren't: what
    is the same in several steps is for LLVM to find. What runs `once` a call, a host program, is explicit, and its machine code
    is made with less effort, too.
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
        explicit: bool = False,
        once: bool = False,
    ) -> None:
        super().__init__()
        explicit = explicit or once
        self.module, self.name, self.result = module, name, result
        self._args = [V(f"%{n}", t) for n, t in args]
        self._internal, self._inline = internal, inline
        self._attributes = ["alwaysinline"] * inline + ["noinline"] * (noinline or explicit) + [EXPLICIT] * explicit + [ONCE] * once
        self._lines: list[str] = []
        self._uses: set[str] = set()
        self.halves: set[str] = set()  # names of f32 that are known to be numbers of bf16
        self.plain: set[str] = set()  # names of f32 that are known to have plain NaNs alone (`dhlo.ir.nans`)
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
        attrs = ", ".join(f'"{a}"' for a in self._attributes)
        attr = f" attributes {{passthrough = [{attrs}]}}" if attrs else ""
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
            EXPLICIT in self._attributes,
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

    # ------------------------------------------------------------------ memory
    def gep(self, p: V, i: Num, elem: str) -> V:
        """Address of element `i` (a constant, an i64, or a vector of i64 giving a vector of pointers)."""
        if isinstance(i, int):
            if i == 0:
                return p
            if -_MOST_INDEX <= i <= _MOST_INDEX:
                return self.op(PTR, f"llvm.getelementptr {p.name}[{i}] : (!llvm.ptr) -> !llvm.ptr, {elem}")
            i = self.i64(i)
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
        x, a = self._as_narrow(x), max(1, BITS[x.elem] // 8)
        self.raw(
            f"llvm.intr.masked.store {x.name}, {p.name}, {mask.name} {{alignment = {a} : i32}}"
            f" : {x.type}, {mask.type} into !llvm.ptr"
        )

    def _as_narrow(self, x: V) -> V:
        """The same vector, whose elements LLVM can't take for wider ones that are truncated: where one lane alone is stored, and it
        knows which, it would store all of the wider element (LLVM 22, AVX-512)."""
        if not self.target.mask_registers or x.elem not in (I8, "i16", I32, "bf16"):
            return x
        if x.elem == "bf16":
            x = self.bitcast(x, "i16")
        return self.opaque(x) if self.target.holds(x.lanes * BITS[x.elem]) else x

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

    def permutes(self, elem: str) -> bool:
        """Can `permute` take a whole vector of such elements?"""
        narrow = BITS[elem] == 32 or self.target.mask_registers and BITS[elem] < 32  # AVX2 masks loads of whole words alone
        return bool(self.target.lane_lookup) and narrow

    def permute(self, a: V, idx: V) -> V:
        """Lane `idx[l]` (i32, its lowest bits) of `a` in lane l: a whole vector of elements of up to 32 bits."""
        words = self.bitcast(a, I32) if BITS[a.elem] == 32 else self.cast(self.bitcast(a, f"i{BITS[a.elem]}"), I32, signed=False)
        found = self.intrinsic(self.target.lane_lookup, words.type, words, idx)
        return self.bitcast(found if BITS[a.elem] == 32 else self.cast(found, f"i{BITS[a.elem]}"), a.elem)

    def prefetch(self, p: V, locality: int = 3, *, write: bool = False) -> None:
        """Prefetch into the data cache, for reading or to `write`; locality 3 = all levels, 0 = non-temporal."""
        kind = f"rw = {int(write)} : i32, hint = {locality} : i32, cache = 1 : i32"
        self.raw(f'"llvm.intr.prefetch"({p.name}) <{{{kind}}}> : (!llvm.ptr) -> ()')

    def alloca(self, count: int | V, elem: str, align: int = 64) -> V:
        """Stack memory for the whole call (placed in the entry block, as a `count` that isn't a constant has to be)."""
        n, r = self.const(count, I64) if isinstance(count, int) else count, self.fresh(PTR)
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

    def opaque(self, x: V) -> V:
        """The same address, or vector that fills a register, in a register of its own: it passes through an empty inline assembly,
        behind which LLVM can't see what it is."""
        register = "r" if x.type == PTR else self.target.constraint
        return self.op(x.type, f'llvm.inline_asm "", "={register},0" {x.name} : ({x.type}) -> {x.type}')
