"""Adaptive pooling (aten.adaptive_avg_pool*d, aten.adaptive_max_pool*d) with run-time input and output sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.pool.adaptive_rows import AdaptiveRows, rows_scratch
from dhlo.codegen.families.pool.rows import accumulator, load_float
from dhlo.codegen.kernel_ir.builder import F32, I1, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args

__all__ = ["AdaptivePool"]

# Simple operations that a point of a window takes, and points that finding the window takes as long as.
_POINT_WORK, _WINDOW_POINTS = 2, 16
_CHAINS = 4


@dataclass(frozen=True)
class AdaptivePool:
    """Output o of a dim reduces the inputs floor(o*I/O) .. ceil((o+1)*I/O). `kind`, `indices`, `elem` as in `Pool`."""

    kind: str
    indices: bool = False
    elem: str = F32

    def __post_init__(self) -> None:
        if self.kind not in ("max", "avg") or (self.indices and self.kind != "max"):
            raise ValueError("kind is max (with or without indices) or avg")

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        return f"pool_adaptive_{self.kind}_{self.elem}{'_indices' if self.indices else ''}"

    @property
    def rows_name(self) -> str:
        """The symbol of the kernel of rows of several outputs, of values alone."""
        return f"pool_adaptive_{self.kind}_{self.elem}_rows"

    def emit_kernels(self, module: KernelModule) -> None:
        """Adds the kernels to the module, once."""
        if self.name not in module.functions:
            _AdaptiveKernel(self, module).emit()
        if not self.indices and self.rows_name not in module.functions:
            AdaptiveRows(self, module).emit()

    def emit_launch(
        self,
        host: HostContext,
        *,
        x: V,
        out: V,
        planes: V,
        spatial: Sequence[V],
        out_spatial: Sequence[V],
        indices: V | None = None,
    ) -> None:
        """Pools `planes` dense planes of sizes `spatial` at x to `out` of sizes `out_spatial`, if that is not empty."""
        f, ones = host.fn, [host.fn.i64(1)] * (3 - len(spatial))
        sizes, outs = [*ones, *spatial], [*ones, *out_spatial]
        count = f.mul(f.mul(f.mul(planes, outs[0]), outs[1]), outs[2])
        with f.when(f.cmp("gt", count, 0)):
            elements = f.mul(f.mul(sizes[0], sizes[1]), sizes[2])
            windows = f.mul(f.mul(outs[0], outs[1]), outs[2])
            work = f.mul(f.add(f.divu(elements, windows), _WINDOW_POINTS), _POINT_WORK)
            if self.indices:
                pointers = [x, out, indices if indices is not None else out]
                host.launch(self.name, [*pointers, *sizes, *outs], count, grain_of(host, work))
                return

            def one() -> list[V]:
                host.launch(self.name, [x, out, out, *sizes, *outs], count, grain_of(host, work))
                return []

            def several() -> list[V]:
                column, beside = rows_scratch(self, host.module.target.lanes(accumulator(self.elem)))
                scratch = f.add(f.mul(sizes[2], column), beside)
                grain = grain_of(host, f.mul(work, outs[2]))
                host.launch(self.rows_name, [x, out, *sizes, *outs], f.divu(count, outs[2]), grain, scratch)
                return []

            f.if_else(f.cmp("eq", outs[2], 1), one, several, [])


class _AdaptiveKernel:
    """Emits one kernel; items are outputs (plane, z, y, x), each a window read in vectors along its rows."""

    def __init__(self, pool: AdaptivePool, module: KernelModule) -> None:
        self.pool = pool
        self.acc = accumulator(pool.elem)
        self.lanes = module.target.lanes(self.acc)
        self.other = float("-inf") if pool.kind == "max" else 0.0
        self.f: Fn = kernel_fn(module, pool.name)

    def emit(self) -> None:
        f, elem = self.f, self.pool.elem
        x, out, indices, *sizes = load_args(f, [PTR] * 3 + [I64] * 6)
        sizes, outs = sizes[:3], sizes[3:]
        plane_size = f.mul(f.mul(sizes[0], sizes[1]), sizes[2])
        _, begin, end, *_ = f.args
        with f.loop(begin, end) as items:
            rest = items.iv
            o: list[V] = []
            for n in reversed(outs):
                o.insert(0, f.remu(rest, n))
                rest = f.divu(rest, n)
            lo = [f.divu(f.mul(i, n), m) for i, n, m in zip(o, sizes, outs, strict=True)]
            hi = [f.divu(f.add(f.mul(f.add(i, 1), n), f.sub(m, 1)), m) for i, n, m in zip(o, sizes, outs, strict=True)]
            src = f.gep(x, f.mul(rest, plane_size), elem)
            value, index = self.window(src, sizes, outs, lo, hi)
            if self.pool.kind == "avg":
                count = f.i64(1)
                for a, b in zip(lo, hi, strict=True):
                    count = f.mul(count, f.sub(b, a))
                value = f.div(value, f.cast(count, self.acc))
            f.store(f.cast(value, elem), f.gep(out, items.iv, elem))
            if self.pool.indices:
                f.store(index, f.gep(indices, items.iv, I64))
        f.done()

    def window(self, src: V, sizes: list[V], outs: list[V], lo: list[V], hi: list[V]) -> tuple[V, V]:
        """Value and plane index of a window. Full rows, then full planes, are read as one contiguous run."""
        f, lanes = self.f, self.lanes
        columns, rows, planes = (f.sub(hi[d], lo[d]) for d in (2, 1, 0))
        one = f.i64(1)
        full_rows = f.cmp("eq", outs[2], 1)
        full_planes = f.and_(full_rows, f.cmp("eq", outs[1], 1))
        run = f.mul(columns, f.select(full_rows, rows, one))
        run = f.mul(run, f.select(full_planes, planes, one))
        rows, planes = f.select(full_rows, one, rows), f.select(full_planes, one, planes)
        first = f.add(f.mul(f.add(f.mul(lo[0], sizes[1]), lo[1]), sizes[2]), lo[2])
        other = f.const(self.other, vec(self.acc, lanes))
        state = [other, f.splat(f.cast(first, I32), lanes)]
        # Sums of long runs go in several chains, to cover the latency of an addition.
        more = _CHAINS - 1 if self.pool.kind == "avg" else 0
        state += [other] * more
        with f.loop(0, planes, 1, state) as lz:
            with f.loop(0, rows, 1, lz.carried) as ly:
                start = f.add(first, f.mul(f.add(f.mul(lz.iv, sizes[1]), ly.iv), sizes[2]))
                chains, done = ly.carried, f.i64(0)
                if more:
                    wide = _CHAINS * lanes
                    done = f.mul(f.divu(run, wide), wide)
                    with f.loop(0, done, wide, chains) as lw:
                        lw.yield_(*self.add_chains(f.gep(src, f.add(start, lw.iv), self.pool.elem), lw.carried))
                    chains = lw.results
                with f.loop(done, run, lanes, chains[:2]) as lx:
                    at = f.add(start, lx.iv)
                    mask = f.tail_mask(f.sub(run, lx.iv), lanes)
                    lx.yield_(*self.step(src, at, mask, lx.carried))
                ly.yield_(*lx.results, *chains[2:])
            lz.yield_(*ly.results)
        value, index, *others = lz.results
        for x in others:
            value = f.add(value, x)
        return self.combine(value, index)

    def add_chains(self, p: V, state: list[V]) -> list[V]:
        """Adds a vector to each chain; `state` is the first chain, the unused index, the other chains."""
        f, everything = self.f, self.f.const(1, vec(I1, self.lanes))
        values = [load_float(f, f.gep(p, i * self.lanes, self.pool.elem), everything, 0.0, self.pool.elem) for i in range(_CHAINS)]
        sums = [f.add(a, b) for a, b in zip([state[0], *state[2:]], values, strict=True)]
        return [sums[0], state[1], *sums[1:]]

    def step(self, src: V, at: V, mask: V, state: list[V]) -> list[V]:
        """One vector of a row."""
        f = self.f
        value = load_float(f, f.gep(src, at, self.pool.elem), mask, self.other, self.pool.elem)
        if self.pool.kind == "avg":
            return [f.add(state[0], value), state[1]]
        take = f.or_(f.cmp("gt", value, state[0]), f.cmp("uno", value, value))
        index = f.add(f.splat(f.cast(at, I32), self.lanes), f.iota(I32, self.lanes))
        return [f.select(take, value, state[0]), f.select(take, index, state[1])]

    def combine(self, value: V, index: V) -> tuple[V, V]:
        """Reduces the lanes: the first index of the maximum, or the last NaN's, as a scan in order gives."""
        f = self.f
        if self.pool.kind == "avg":
            return f.reduce("add", value), f.i64(0)
        best = f.reduce("maximumf", value)
        if not self.pool.indices:
            return best, f.i64(0)
        nan = f.cmp("uno", value, value)
        last_nan = f.reduce("maxsi", f.select(nan, index, -1))
        first = f.reduce("minsi", f.select(f.cmp("eq", value, best), index, (1 << 31) - 1))
        return best, f.cast(f.select(f.cmp("ge", last_nan, 0), last_nan, first), I64)
