"""Building blocks that lowered groups share: named kernels without duplicates, launches, iteration over rows and vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import sympy

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs, Slot
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.kernel_ir.builder import I64, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import KERNEL_ARGS
from dhlo.ir.dialect import Op, defining
from dhlo.ir.function import argument_name
from dhlo.ir.ops.control import Group
from dhlo.ir.types import from_mlir

__all__ = ["Checks", "GroupKernel", "Launch", "finish", "rows", "vectors"]

_PLACEHOLDER = "dhlo_kernel_in_progress"


@dataclass
class Launch:
    """One launch; sizes are expressions, `work` is what an item takes, priced as by `element_work`. Beside what `Slot` says, a slot
    may be ("view", View), the address of a view's first element, ("constant", offset in bytes), or ("workspace", offset in bytes):
    of what the group asked for."""

    kernel: str
    slots: list[Slot]
    count: sympy.Expr
    work: sympy.Expr | int
    scratch: sympy.Expr = field(default_factory=lambda: sympy.Integer(0))
    lookups: dict[int, Op] = field(default_factory=dict)  # number of an index check -> the op that it is about


class Checks(list[tuple[str, int, str]]):
    """The model's checks: (kind, input index or -1, text). The position in the list is the check's number."""

    def add(self, kind: str, text: str, input_index: int = -1) -> int:
        entry = (kind, input_index, text)
        if entry in self:
            return self.index(entry)
        self.append(entry)
        return len(self) - 1

    def index_check(self, op: Op) -> int:
        """The check that an op's indices are in range."""
        source = _index_source(op)
        return self.add("INDEX", f"{op.OPERATION_NAME} at {where(op)}: index out of range" + (f" in '{source}'" if source else ""))


class GroupKernel:
    """A kernel under construction for one group: function, arguments, emitter."""

    def __init__(
        self,
        module: KernelModule,
        group: Group,
        checks: Checks,
        args: Sequence[tuple[str, str]] = KERNEL_ARGS,
        first_arg: int = 0,
        slots: Sequence[Slot] = (),
        noinline: bool = False,
    ) -> None:
        self.module, self.group, self.checks = module, group, checks
        block = group.operation.regions[0].blocks[0]
        self.ops = [op for op in block.operations][:-1]
        self.yields = list(list(block.operations)[-1].operands)
        self.fn = Fn(module, _PLACEHOLDER, args, noinline=noinline)
        self.args = KernelArgs(self.fn, self.fn.args[0], first_arg, slots)
        self.em = Emitter(self.fn, self.args, {op.operation for op in self.ops}, self._check_of)
        self.lookups: dict[int, Op] = {}

    def _check_of(self, op: Op) -> int:
        n = self.checks.index_check(op)
        self.lookups[n] = op
        return n

    def result_pointer(self, i: int) -> V:
        return self.args.get(("pointer", self.group.results[i]))


def where(op: Op) -> str:
    """The op's source location as users know it."""
    text = str(op.location)
    return text.removeprefix("loc(").removesuffix(")").replace('"', "")


def _index_source(op: Op) -> str | None:
    """The argument that an op's indices come from; None where that isn't one alone, or its name isn't known."""
    work = [v for v in list(op.operands)[1:] if from_mlir(v).dtype.is_int]
    seen, found = set(work), set[str]()
    while work:
        value = work.pop()
        made_by = defining(value)
        if made_by is None:
            found.add(argument_name(value))
        elif list(made_by.operation.regions):  # another group's result
            found.add("")
        else:
            new = set(made_by.operands) - seen
            seen |= new
            work += new
    return next(iter(found)) or None if len(found) == 1 else None


def finish(k: GroupKernel, family: str) -> str:
    """Ends the function and names it by its content, so that equal kernels are one."""
    k.fn.done()
    made = k.module.functions.pop(_PLACEHOLDER)
    name = f"{family}_{hashlib.sha1(made.body.encode()).hexdigest()[:10]}"
    if name not in k.module.functions:
        k.module.functions[name] = made.renamed(_PLACEHOLDER, name)
    return name


@contextmanager
def rows(em: Emitter, begin: V, end: V, sizes: Sequence[sympy.Expr]) -> Iterator[list[Index]]:
    """Iterates items [begin, end) of the row-major space `sizes`, counting the index up instead of dividing at every item."""
    fn = em.fn
    start = em.split(Index(begin), sizes) if sizes else []
    init = [fn.i64(i.base) for i in start]
    if len(sizes) <= 1:
        with fn.loop(begin, end, 1) as lp, em.scope():
            yield [Index(lp.iv)] if sizes else []
        return
    with fn.loop(begin, end, 1, init) as lp:
        with em.scope():
            yield [Index(c) for c in lp.carried]
        nxt: list[V] = []
        carry: V | None = None
        for k in range(len(sizes) - 1, -1, -1):
            i = fn.add(lp.carried[k], 1) if carry is None else fn.add(lp.carried[k], fn.cast(carry, I64))
            if k:
                carry = fn.cmp("ge", i, em.size(sizes[k]))
                i = fn.select(carry, fn.const(0, I64), i)
            nxt.append(i)
        lp.yield_(*reversed(nxt))


def vectors(em: Emitter, lo: V | int, hi: V, body: Callable[[Index], None], anywhere: bool = False) -> None:
    """Runs `body` over [lo, hi) a vector at a time: full vectors, then the rest under a mask. `lo` is a multiple of the lanes, but
    where it may be `anywhere`."""
    fn, multiple = em.fn, 1 if anywhere else em.fn.lanes
    n = fn.sub(hi, lo) if not (isinstance(lo, int) and lo == 0) else hi
    full = fn.add(fn.i64(lo), fn.and_(n, -fn.lanes))
    with fn.loop(lo, full, fn.lanes) as lp, em.scope():
        body(Index(lp.iv, 1, multiple=multiple))
    with fn.when(fn.cmp("lt", full, hi)), em.scope(fn.tail_mask(fn.sub(hi, full))):
        body(Index(full, 1, multiple=multiple))
