"""Kernels of ops that stand alone (running combinations, ordering, writing by index) against reference semantics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import sympy
import torch

import dhlo
from dhlo.codegen.families.sort.unique import emit_unique, unique_scratch
from dhlo.codegen.kernel_ir.builder import F32, I64, KernelModule
from dhlo.errors import ContractError
from dhlo.ir.dialect import build
from dhlo.ir.ops.compute import ArgReduce, Scan
from dhlo.ir.ops.lookup import Histogram, Scatter, SearchSorted, Sort, TopK
from dhlo.ir.ops.movement import Weight
from dhlo.ir.ops.sequence import Fft, GroupedMatmul, Gru, Lstm
from dhlo.ir.symbols import evaluate, parse
from dhlo.ir.types import DTYPES, from_mlir
from tests.codegen.harness import TestHost
from tests.programs import Draw, Module, Part, anything, index_below, plain, t, within
from tests.targets import TARGET

SIZES = [(1, 1), (0, 3), (2, 1), (1, 2), (3, 15), (16, 17), (17, 64), (31, 5), (2, 1031)]
ALL = ("f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "ui8", "i1")
SHAPES = ((["n", "m"], 1), (["n", "m"], 0), (["m", "n", 3], 1))
TOL = {"f32": 1e-5, "f64": 1e-12, "f16": 2e-3, "bf16": 1e-2}


def check(parts: Sequence[Part], sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """Compiles all parts as one module and calls it at many sizes, against the interpreter and eager."""
    module = Module(parts)
    model, _ = module.compile()
    for seed, (n, m) in enumerate(sizes):
        module.check(model, {"n": n, "m": m}, seed)


def few(d: Any, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Many equal values, and both zeros and NaN."""
    x = within(-3 if d.name not in ("ui8", "i1") else 0, 3 if not d.is_bool else 1)(d, shape, g)
    if d.is_float:
        x = x.round()
        x = torch.where(torch.rand(shape, generator=g) < 0.02, torch.full_like(x, float("nan")), x)
        x = torch.where((torch.rand(shape, generator=g) < 0.5) & (x == 0), -x, x)
    return x


def op(
    cls: Any,
    attrs: dict[str, Any],
    shape: Sequence[object],
    dtype: str,
    draw: Draw,
    eager: Callable[..., Sequence[torch.Tensor]] | None = None,
    tol: Any = None,
    atol: float = 0.0,
) -> Part:
    def body(x: Any) -> list[Any]:
        return list(build(cls, [x], attrs).results)

    return Part([(t(dtype, *shape), draw)], body, eager, tol, atol, label=f"{cls.OPERATION_NAME} {attrs} {dtype} {list(shape)}")


@pytest.mark.parametrize("how", ["sum", "prod", "max", "min"])
def test_scan(how: str) -> None:
    parts = []
    for d in ALL:
        if d == "i1" and how in ("sum", "prod"):
            continue
        floats = d in ("f32", "f64", "f16", "bf16")
        draw = (
            plain if how == "sum" else within(0.9, 1.1) if how == "prod" and floats else anything if how != "prod" else within(0, 2)
        )
        for shape, dim in SHAPES if d in ("f32", "i64") else SHAPES[:2]:
            parts.append(
                op(
                    Scan,
                    {"how": how, "dim": dim},
                    shape,
                    d,
                    draw,
                    tol=TOL if how in ("sum", "prod") else None,
                    atol=1e-10,
                )
            )
    check(parts)


@pytest.mark.parametrize("how", ["max", "min"])
def test_argreduce(how: str) -> None:
    parts = []
    for d in ALL:
        if d == "i1":
            continue
        for k, (shape, dim) in enumerate(SHAPES if d in ("f32", "i64") else SHAPES[:2]):
            parts.append(op(ArgReduce, {"how": how, "dim": dim}, shape, d, few if k == 1 else anything))
    parts += [op(ArgReduce, {"how": how, "dim": 1}, ["n", "m"], d, few) for d in ("f32", "bf16", "i64")]
    check(parts, [s for s in SIZES if 0 not in s])


LONG = [*SIZES, (3, 129), (2, 700), (140, 3)]


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending: bool) -> None:
    parts = []
    for d in ALL:
        for k, (shape, dim) in enumerate(SHAPES if d in ("f32", "i64") else SHAPES[:1]):
            draw = anything if (k + descending) % 2 else few
            parts.append(op(Sort, {"dim": dim, "descending": descending}, shape, d, draw))
    parts.append(op(Sort, {"dim": 1, "descending": descending}, ["n", 64], "f32", anything))
    parts.append(op(Sort, {"dim": 0, "descending": descending}, [200, "m"], "bf16", few))
    check(parts, LONG)


def topk(shape: Sequence[object], dim: int, k: object, largest: bool, dtype: str, draw: Draw) -> Part:
    def body(x: Any) -> list[Any]:
        y = from_mlir(x)
        y = y.with_shape([k if d == dim else s for d, s in enumerate(y.shape)])
        return list(build(TopK, [x], {"dim": dim, "largest": largest}, results=[y, y.with_dtype("i64")]).results)

    return Part([(t(dtype, *shape), draw)], body, label=f"topk {shape} {dim} {k} {largest} {dtype}")


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool) -> None:
    ordered = lambda d, shape, g: anything(d, shape, g).sort(-1, descending=not largest)[0]
    parts = [
        topk(["n", 64], 1, 8, largest, "f32", few),
        topk(["n", "m+9"], 1, 9, largest, "f32", anything),
        topk(["n", "m"], 1, "m", largest, "i64", few),
        topk(["n+20", "m"], 0, 20, largest, "bf16", few),
        topk(["n", "m+3000"], 1, 50, largest, "f32", plain),
        topk(["n", "m+3000"], 1, 50, largest, "i64", ordered),
        topk(["n", "m+3000"], 1, 7, largest, "f32", few),
        topk(["n", "m+3000", 2], 1, 1, largest, "f16", anything),
        topk(["n", "m"], 1, 0, largest, "f32", plain),
        topk(["n", "4*m"], 1, "m", largest, "f64", anything),
    ]
    check(parts, LONG)


def scatter(
    how: str,
    dtype: str,
    x: Sequence[object],
    index: Sequence[object],
    dims: Sequence[int],
    at: int,
    *,
    below: str,
    draw: Draw = plain,
    unique: bool = False,
    index_type: str = "i64",
) -> Part:
    """`below` is the size of the indexed dims, as an expression over the index's dims d0, d1 ...; `unique` ones don't
    repeat."""
    rest = [s for d, s in enumerate(x) if d not in dims]

    def places(d: Any, shape: list[int], g: torch.Generator) -> torch.Tensor:
        i = index_below(below)(d, shape, g)
        if unique and i.numel():
            n = evaluate(parse(below), {f"d{k}": s for k, s in enumerate(shape)})
            i = torch.randperm(n, generator=g)[: i.numel()].reshape(shape) - n * torch.randint(0, 2, shape, generator=g)
        return i.to(d.torch)

    def body(*args: Any) -> list[Any]:
        return [build(Scatter, list(args), {"dims": list(dims), "at": at, "how": how, "wrap": True}).results[0]]

    src = [*rest[:at], *index, *rest[at:]]
    return Part(
        [(t(dtype, *x), draw), *[(t(index_type, *index), places)] * len(dims), (t(dtype, *src), draw)],
        body,
        tol=TOL,
        atol=1e-5,
        label=f"scatter {how} {dtype} {x} {index} {dims} {at}",
    )


@pytest.mark.parametrize("how", ["set", "add", "mul", "max", "min"])
def test_scatter(how: str) -> None:
    once = how == "set"
    parts = []
    for d in ALL if how in ("set", "add") else ("f32", "bf16", "i64", "ui8"):
        draw = within(0, 2) if how == "mul" and d not in ("f16", "bf16") else plain
        parts.append(scatter(how, d, ["2*n", "m"], ["n"], [0], 0, below="2*d0", draw=draw, unique=once))
    if not once:
        parts.append(scatter(how, "f32", ["n+2", 4], ["m", 2], [0, 1], 0, below="2", draw=within(0.5, 1.5)))
        parts.append(scatter(how, "i64", ["n"], ["n"], [0], 0, below="d0", index_type="i32"))
    for d in ("f32", "i64") if how == "set" else ("f32",) if how == "add" else ():
        parts.append(scatter(how, d, ["m", "3*n"], ["n"], [1], 1, below="3*d0", unique=True))
        parts.append(scatter(how, d, ["m", "n", 5], ["n"], [1], 0, below="d0", unique=True))
        parts.append(scatter(how, d, [3, "m", "n", 5, 2], ["n"], [2], 1, below="d0", unique=True))
        parts.append(scatter(how, d, [3, "n", 2, "n", "m"], ["n"], [1, 3], 2, below="d0", unique=True))
        parts.append(scatter(how, d, ["n*m", 2000], ["n", "m"], [0], 0, below="d0*d1", unique=True, index_type="i32"))
    check(parts)


def test_scatter_last_write_wins() -> None:
    part = scatter("set", "f32", ["n", 40], ["m"], [0], 0, below="d0")
    module = Module([part])
    model, _ = module.compile()
    x, src = torch.zeros(3, 40), torch.randn(5, 40)
    got = model(x, torch.tensor([0, 2, 0, -1, 0]), src)
    assert torch.equal(got, torch.stack([src[4], x[1], src[3]]))


@pytest.mark.parametrize("bad", [3, -4])
def test_scatter_out_of_range(bad: int) -> None:
    model, _ = Module([scatter("add", "f32", ["n", 40], ["m"], [0], 0, below="d0")]).compile()
    with pytest.raises(ContractError, match="out of range"):
        model(torch.zeros(3, 40), torch.tensor([0, bad]), torch.zeros(2, 40))
    assert torch.equal(model(torch.zeros(3, 40), torch.tensor([0, 2]), torch.ones(2, 40)).sum(1), torch.tensor([40.0, 0, 40]))


def ascending(d: Any, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return few(d, shape, g).nan_to_num(3.0).sort(-1)[0] if d.is_float else few(d, shape, g).sort(-1)[0]


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    def body(edges: Any, x: Any) -> list[Any]:
        return [build(SearchSorted, [edges, x], {"right": right}).results[0]]

    parts = [Part([(t(d, "m"), ascending), (t(d, "n", 7), few)], body, label=f"searchsorted {d}") for d in ALL if d != "i1"]
    parts += [
        Part([(t(d, "n", "m"), ascending), (t(d, "n", "n+5"), few)], body, label=f"searchsorted lines {d}") for d in ("f32", "i64")
    ]
    parts += [Part([(t("f32", "m"), ascending), (t("f32"), few)], body, label="searchsorted scalar")]
    check(parts, [*SIZES, (5, 0)])


def test_histogram() -> None:
    parts = [
        op(Histogram, {"bins": bins, "low": lo, "high": hi}, ["n", "m"], d, plain)
        for d in ("f32", "f64")
        for bins, lo, hi in ((10, 0.0, 0.0), (1, -2.0, 2.0), (7, -3.5, 4.25), (100, 0.0, 1.0))
    ]
    check(parts)


def offsets(d: Any, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Ends of groups, some of them empty; the last may lie before or after the last row."""
    return torch.randint(0, 4, shape, generator=g).cumsum(-1).to(d.torch)


def test_grouped_matmul() -> None:
    weights = {"w": torch.randn(6, 9, 20), "u": torch.randn(5, 8, 20).bfloat16()}

    def body(x: Any, *rest: Any) -> list[Any]:
        if len(rest) == 2:
            w = rest[0]
        else:
            v = weights["w" if from_mlir(x).dtype.name == "f32" else "u"]
            w = build(
                Weight,
                [],
                {"name_": "w" if v.dtype == torch.float32 else "u"},
                results=[t(from_mlir(x).dtype.name, *v.shape)],
            ).results[0]
        return [build(GroupedMatmul, [x, w, rest[-1]]).results[0]]

    tol = {"f32": 1e-5, "f64": 1e-12, "bf16": 2e-2}
    parts = [
        Part([(t("f32", "n", 9), plain), (t("i32", 6), offsets)], body, tol=tol, atol=1e-4, label="constant"),
        Part([(t("bf16", "n", 8), plain), (t("i64", 5), offsets)], body, tol=tol, atol=0.1, label="constant bf16"),
        Part(
            [(t("f32", "m", "n"), plain), (t("f32", 4, "n", 33), plain), (t("i64", 4), offsets)],
            body,
            tol=tol,
            atol=1e-3,
            label="argument",
        ),
        Part(
            [(t("f64", "m", 3), plain), (t("f64", "n", 3, "m"), plain), (t("i32", "n"), offsets)],
            body,
            tol=tol,
            atol=1e-9,
            label="groups",
        ),
    ]
    module = Module(parts, weights)
    model, _ = module.compile()
    for seed, (n, m) in enumerate([(1, 1), (0, 3), (2, 0), (3, 15), (16, 17), (31, 5)]):
        module.check(model, {"n": n, "m": m}, seed)


@pytest.mark.parametrize(("cls", "reverse"), [(Lstm, False), (Lstm, True), (Gru, True)])
def test_recurrent(cls: Any, reverse: bool) -> None:
    count = 4 if cls is Lstm else 3
    weights = {"w": torch.randn(count * 20, 20) / 4, "v": torch.randn(count * 7, 7, dtype=torch.float64)}

    def part(dtype: str, batch: object, hidden: object, constant: str | None, atol: float) -> Part:
        def body(gates: Any, *rest: Any) -> list[Any]:
            if constant:
                w = build(Weight, [], {"name_": constant}, results=[t(dtype, *weights[constant].shape)]).results[0]
            else:
                w, *rest = rest
            return list(build(cls, [gates, w, *rest], {"reverse": reverse}).results)

        small = within(-1.0, 1.0)
        args = [(t(dtype, "n", batch, f"{count}*({hidden})"), plain)]
        args += [] if constant else [(t(dtype, f"{count}*({hidden})", hidden), small)]
        args += (
            [(t(dtype, batch, hidden), small)] * 2
            if cls is Lstm
            else [(t(dtype, f"{count}*({hidden})"), small), (t(dtype, batch, hidden), small)]
        )
        return Part(args, body, tol=TOL, atol=atol, label=f"{cls.OPERATION_NAME} {dtype} {hidden} {constant}")

    module = Module([part("f32", "m", 20, "w", 1e-5), part("f64", 1, 7, "v", 1e-10), part("f32", 2, "m", None, 1e-4)], weights)
    model, _ = module.compile()
    for seed, (n, m) in enumerate([(1, 1), (0, 3), (2, 1), (5, 2), (9, 17), (3, 40)]):
        module.check(model, {"n": n, "m": m}, seed)


@pytest.mark.parametrize("inverse", [False, True])
def test_fft(inverse: bool) -> None:
    def part(dtype: str, shape: Sequence[object], dims: Sequence[int]) -> Part:
        def body(re: Any, im: Any) -> list[Any]:
            return list(build(Fft, [re, im], {"dims": list(dims), "inverse": inverse}).results)

        return Part(
            [(t(dtype, *shape), plain)] * 2,
            body,
            tol=TOL,
            atol=2e-3 if dtype == "f32" else 1e-9,
            label=f"fft {dtype} {shape} {dims}",
        )

    parts = [
        part("f32", ["n", "m"], [1]),
        part("f64", ["n", "m"], [1]),
        part("f32", ["m", "n"], [0]),
        part("f32", ["n", 3, "m"], [0, 2]),
        part("f64", ["n", "m"], [0, 1]),
        *(part("f32", ["n", k], [1]) for k in (1, 2, 8, 60, 128)),
        part("f64", [49, "m"], [0]),
    ]
    check(parts, [(1, 1), (0, 3), (2, 1), (3, 15), (16, 17), (17, 64), (31, 5), (2, 1031), (7, 1024), (20, 90)])


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "i8", "ui8", "i1", "bf16"])
def test_unique(dtype: str) -> None:
    module = KernelModule(TARGET)
    host = TestHost(module)
    d, n = DTYPES[dtype], sympy.Symbol("n", integer=True)
    find, fill = emit_unique(module, d)
    x, inverse, cell, values, counts = (host.pointer(p) for p in ("x", "inverse", "cell", "values", "counts"))
    size, scratch = host.size("n"), host.size("scratch")
    host.launch(find, [x, size, inverse, cell], 1, 1, scratch)
    host.launch(fill, [x, size, inverse, host.fn.load(cell, I64), values, counts], 1, 1)
    program = host.build()
    for seed, count in enumerate((0, 1, 2, 15, 16, 17, 100, 2000)):
        data = few(d, [count], torch.Generator().manual_seed(seed))
        raw = data.view(torch.uint8).numpy() if count else np.zeros(1, np.uint8)
        places, found, numbers = np.empty(count + 1, np.int64), np.zeros(1, np.int64), np.full(count + 1, -1, np.int64)
        out = np.full((count + 1) * d.bytes, 0x55, np.uint8)
        program(
            x=raw,
            n=count,
            inverse=places,
            cell=found,
            values=out,
            counts=numbers,
            scratch=int(unique_scratch(d, n, TARGET.lanes(F32)).subs(n, count)),
        )
        want = torch.unique(data, sorted=True, return_inverse=True, return_counts=True)
        distinct = int(found[0])
        assert distinct == want[0].numel()
        got = torch.from_numpy(out[: distinct * d.bytes]).view(d.torch) if distinct else want[0]
        assert torch.equal(got.nan_to_num(9), want[0].nan_to_num(9))
        assert torch.equal(got[torch.from_numpy(places[:count])].nan_to_num(9), data.nan_to_num(9))
        assert numbers[:distinct].tolist() == want[2].tolist() and numbers[distinct] == -1
        assert (out[distinct * d.bytes :] == 0x55).all()
        if not data.is_floating_point():
            assert torch.equal(torch.from_numpy(places[:count]), want[1])


class Mixed(torch.nn.Module):
    """What real models do with these ops."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 16, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(4, 8)
        self.edges = torch.nn.Buffer(torch.linspace(-2, 2, 11))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        best, experts = x.softmax(-1).topk(4)
        order = index.argsort(stable=True)
        routed = torch.zeros_like(x).scatter(1, experts, best)
        summed = torch.zeros_like(x).index_add(0, index, x)
        steps = x.view(-1, 3, 4)
        spectrum = torch.fft.fft(x, dim=-1).imag
        return [
            x.cumsum(0),
            x.cumsum(1),
            x.cumprod(1),
            x.argmax(-1),
            x.argmin(0),
            best,
            experts,
            order,
            x[order],
            routed,
            summed,
            torch.bucketize(x, self.edges),
            x.sort(stable=True, dim=0, descending=True)[0],
            self.lstm(steps)[0],
            self.gru(steps.transpose(0, 1))[1],
            spectrum,
            torch.histc(x, 5, -1.0, 1.0),
            x.index_put((index,), x * 2, accumulate=True),
            x.msort(),
        ]


def test_exported_module() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = Mixed().eval()
    n = torch.export.Dim("n", min=1, max=4096)
    program = torch.export.export(module, (torch.randn(6, 12), torch.arange(6)), dynamic_shapes=({0: n}, {0: n}))
    model = dhlo.compile(program)
    for rows in (1, 2, 7, 16, 33, 300):
        x, index = torch.randn(rows, 12), torch.randint(0, rows, (rows,))
        for k, (got, want) in enumerate(zip(model(x, index), module(x, index), strict=True)):
            assert got.dtype == want.dtype and got.shape == want.shape, k
            assert torch.allclose(got, want, rtol=1e-5, atol=2e-4), f"output {k} at {rows} rows"
