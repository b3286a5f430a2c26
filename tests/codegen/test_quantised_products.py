"""Kernels of products with codes by themselves: every kind of target, any split and cache, and elements of extreme sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import sympy
import torch

from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.quantised import COLUMNS, FORMS, QuantisedMatrix
from dhlo.codegen.families.gemm.quantised_dots import has_dots
from dhlo.codegen.families.gemm.quantised_outliers import most_outliers
from dhlo.codegen.families.gemm.quantised_product import QuantisedMatmul
from dhlo.codegen.families.gemm.register_tile import BF16, TileSpec, tile_spec
from dhlo.codegen.kernel_ir.builder import F32, I64, KernelModule
from dhlo.ir.ops.quantised import ROUNDED, round_rows
from tests.codegen.harness import Program, TestHost, aligned, build_hosts
from tests.codegen.test_matmul import emit_epilogue
from tests.codegen.test_matmul_bytes import targets
from tests.codegen.test_quantised import draw_codes
from tests.targets import TARGET

# Of targets with vectors of one size, one with dot products of bytes and one without.
SPECS = [tile_spec(t) for t in {(t.vector_bits, "i8" in t.dots or "ui8" in t.dots): t for t in targets()}.values()]
MOST_BITS = max(s.target.vector_bits for s in SPECS)
every_target = pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s}")
# By default vectors of the most bits with dot products and those of fewer without; `-m slow` crosses them.
CROSSED = [s for s in SPECS if len(SPECS) > 2 and ("i8" in s.target.dots) != (s.target.vector_bits == MOST_BITS)]
every_target_or_slow = pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=pytest.mark.slow if s in CROSSED else ()) for s in SPECS], ids=lambda s: f"{s}"
)
AS_BYTES = ("i8", "ui8", "i4", "ui4", "f4e2m1fn")
"""Codes that are multiplied as bytes. Kernels of the others are the same with dot products of bytes and without."""
NAMES = ("m", "c", "batch", "a0", "am", "ak", "b0", "l2_bytes", "bf16_percent")
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def numbers(code: str, q: torch.Tensor) -> torch.Tensor:
    """What codes stand for."""
    if code == "f4e2m1fn":
        return torch.where(q >= 8, -1.0, 1.0).double() * _E2M1[(q & 7).long()]
    floats = {"f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
    return (q.view(floats[code]) if code in floats else q).double()


@dataclass(frozen=True)
class Product:
    """Of A [batch, m, k], f32 or bf16, with codes [k, n] or [batch, k, n]."""

    spec: TileSpec
    code: str
    q: torch.Tensor
    scale: torch.Tensor | None = None
    zero: torch.Tensor | None = None
    elem: str = F32
    block: int = 0

    @cached_property
    def matrix(self) -> QuantisedMatrix:
        return QuantisedMatrix(self.code, self.q, self.scale, self.zero)

    @cached_property
    def packed(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        data = self.matrix.pack()
        out = aligned(len(data))
        out[:] = data
        return out

    @cached_property
    def kernels(self) -> QuantisedMatmul:
        rest = self.matrix.n % self.spec.nr(F32)
        return QuantisedMatmul(self.elem, self.spec, self.matrix, 0 < rest <= self.spec.lanes(F32), self.block)

    @cached_property
    def program(self) -> Program:
        return self.host(KernelModule(self.spec.target)).build()

    def host(self, module: KernelModule, name: str = "test_host") -> TestHost:
        """The product as a function of a module."""
        host = TestHost(module, name, asked=["bf16_percent", "l2_bytes"])
        p = {x: host.size(x) for x in NAMES}
        a, b, workspace = (host.pointer(x) for x in ("a", "b", "ws"))
        fn, n, k = host.fn, host.fn.i64(self.matrix.n), host.fn.i64(self.matrix.k)
        zero, one, eargs = fn.i64(0), fn.i64(1), fn.alloca(4, I64)
        for i, x in enumerate((p["c"], p["m"], n, p["c"])):
            fn.store(x, fn.gep(eargs, i, I64))
        epilogue = fn.address_of(emit_epilogue(module, F32, self.spec.lanes(F32), bias_relu=False))
        strides = [p["a0"], zero, p["am"], p["ak"]]
        self.kernels.emit_kernels(module)
        operands = Operands(a, b, p["m"], n, k, strides, [p["b0"], zero], [p["batch"], one], epilogue, eargs, workspace=workspace)
        self.kernels.emit_launch(host, operands)
        return host

    def __call__(
        self, a: torch.Tensor, *, threads: int = 1, seed: int | None = None, l2_bytes: int = 1 << 20, bf16_percent: int = 0
    ) -> torch.Tensor:
        batch, m, _ = a.shape
        assert a.dtype == (torch.bfloat16 if self.elem == BF16 else torch.float32)
        c = aligned(max(1, batch * m * self.matrix.n) * 4).view(np.float32)
        ws = aligned(int(self.kernels.workspace_bytes(sympy.Integer(batch * m))) + 64)
        a0, am, ak = a.stride()
        b0 = self.matrix.matrix_bytes if self.matrix.batch else 0
        sizes = {"m": m, "batch": batch, "a0": a0, "am": am, "ak": ak, "b0": b0}
        sizes |= {"l2_bytes": l2_bytes, "bf16_percent": bf16_percent}
        self.program(num_threads=threads, seed=seed, a=a.data_ptr(), b=self.packed, c=c, ws=ws, **sizes)
        assert (ws[-64:] == 0xFF).all(), "wrote past the workspace"
        return torch.from_numpy(c[: batch * m * self.matrix.n].reshape(batch, m, self.matrix.n))

    @cached_property
    def weights(self) -> torch.Tensor:
        """In f64."""
        w = numbers(self.code, self.q)
        scale, zero = (x if x is None else _spread(x, w.shape[-2]) for x in (self.scale, self.zero))
        w = w if zero is None else w - zero
        return w if scale is None else w * scale


def _spread(p: torch.Tensor, k: int) -> torch.Tensor:
    return p.double().repeat_interleave(k // p.shape[-2], -2)


def together(products: Iterable[Product]) -> list[Product]:
    """Compiles products for one target as one module: most kernels are those of several."""
    made = list(products)
    module = KernelModule(made[0].spec.target)
    hosts = [p.host(module, f"test_host_{i}") for i, p in enumerate(made)]
    for p, program in zip(made, build_hosts(hosts), strict=True):
        p.__dict__["program"] = program  # instead of one of its own
    return made


def forms(g: torch.Generator, shape: Sequence[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Dense, transposed, every other element."""
    *lead, m, k = shape
    dense = torch.randn(tuple(shape), generator=g).to(dtype)
    return [
        dense,
        torch.randn((*lead, k, m), generator=g).to(dtype).transpose(-1, -2),
        torch.randn((*lead, m, 2 * k), generator=g).to(dtype)[..., ::2],
    ]


def check(product: Product, g: torch.Generator, rows: Sequence[int]) -> None:
    """Right, and the same bits on any split and cache."""
    batch = product.q.shape[0] if product.q.dim() == 3 else 1
    dtype = torch.bfloat16 if product.elem == BF16 else torch.float32
    for m in rows:
        for a in forms(g, (batch, m, product.matrix.k), dtype):
            first = product(a, l2_bytes=64 << 20)
            want = a.double() @ product.weights
            bound = a.double().abs() @ product.weights.abs()
            assert ((first - want).abs() <= 1e-5 * bound + 1e-30).all(), product.code
            for threads, seed, l2_bytes in ((2, None, 1 << 20), (3, m, 64 << 10)):
                assert torch.equal(product(a, threads=threads, seed=seed, l2_bytes=l2_bytes), first), product.code


def codes_of(spec: TileSpec) -> Iterable[str]:
    """Of which the target's kernels are no other target's that is tested."""
    return FORMS if spec == next(s for s in SPECS if s.target.vector_bits == spec.target.vector_bits) else AS_BYTES


def products_of(spec: TileSpec, code: str) -> Iterator[Product]:
    """Of all forms that a code has."""
    g = torch.Generator().manual_seed(1)
    if code in ("f16", "bf16"):
        dtype = torch.float16 if code == "f16" else torch.bfloat16
        yield Product(spec, code, torch.randn((1027, 33), generator=g).to(dtype))
        return
    for k, n, groups, elem in ((7, 31, 1, F32), (1320, 33, 5, F32), (48, 65, 3, BF16)):
        scale = torch.rand((groups, n), generator=g) * 0.1 + 0.01
        zero = torch.randint(0, 16, (groups, n), generator=g).float() - 0.5
        yield Product(spec, code, draw_codes(code, (k, n), g), scale, zero, elem)
    yield Product(spec, code, draw_codes(code, (3, 64, 33), g), torch.rand((3, 2, 33), generator=g), elem=BF16)


@pytest.mark.sampled(2)
@every_target_or_slow
def test_any_split(spec: TileSpec) -> None:
    g = torch.Generator().manual_seed(1)
    for product in together(p for code in codes_of(spec) for p in products_of(spec, code)):
        check(product, g, (0, 1, 4, 9, 33) if product.q.dim() == 2 else (1, 4, 40))


@every_target_or_slow
def test_large_and_small_elements(spec: TileSpec) -> None:
    """What the numbers that codes stand for keep finite is finite, and small rows are not lost; a row is what it is alone."""
    g = torch.Generator().manual_seed(2)
    scale, zero = torch.full((3, 1), 1e-4), torch.full((3, 1), 3.0)
    codes = [c for c in ("i8", "f4e2m1fn", "f8e4m3fn") if c in codes_of(spec)]
    for product in together(Product(spec, c, draw_codes(c, (192, 40), g), scale, zero) for c in codes):
        for size in (1e38, 1e36, 1e20, 1e-20, 1e-34, 1e-37):
            for m in (1, 3, 40):
                a = (torch.rand((1, m, 192), generator=g) - 0.5) * 2 * size
                a[0, 0, 96:] = 0
                got, want = product(a), a.double() @ product.weights
                bound = (a.double().abs() @ product.weights.abs()).clamp_min(1e-38 if size < 1 else 0)
                assert ((got - want).abs() <= 2e-5 * bound).all(), (product.code, size)
        mixed = torch.randn((1, 4, 192), generator=g) * torch.tensor([1e37, 1.0, 1e-36, 0.0])[None, :, None]
        got, want = product(mixed), mixed.double() @ product.weights
        assert ((got - want).abs() <= 2e-5 * (mixed.double().abs() @ product.weights.abs()) + 1e-43).all(), product.code


@every_target
def test_outliers_that_codes_leave_out(spec: TileSpec) -> None:
    """A column whose codes are 0 where elements are huge is as good as if they weren't there."""
    g = torch.Generator().manual_seed(3)
    q = draw_codes("i4", (256, 40), g)
    q[5], q[200, ::2] = 0, 0
    for product in together(Product(spec, "i4", q, torch.full((groups, 1), 0.02)) for groups in (1, 8)):
        for size in (1e2, 1e3, 1e6, 1e30):
            for m in (1, 3, 40):
                a = torch.randn((1, m, 256), generator=g)
                a[0, 0, 5] = size
                a[0, m - 1, 200] = -size
                got, want = product(a)[..., ::2], (a.double() @ product.weights)[..., ::2]
                assert ((got - want).abs().amax(-1) <= 1e-4 * want.abs().amax(-1)).all(), (size, m)


@pytest.mark.sampled(2)
@every_target_or_slow
@pytest.mark.parametrize("code", ["i8", "ui4", "f4e2m1fn"])  # signed, with signs to flip, looked up
def test_elements_far_above_the_others(spec: TileSpec, code: str) -> None:
    """As many as a row's list holds and more, infinities and NaN among them: other elements count as much as without them, and so
    do other rows."""
    g = torch.Generator().manual_seed(7)
    k = 520
    places = torch.randperm(k, generator=g)[: most_outliers(k) + 1]
    places[0], places[1] = k - 1, 0
    q = draw_codes(code, (k, 40), g)
    q[places, ::2] = 0
    scale, zero = torch.rand((1, 40), generator=g) * 0.1 + 0.01, torch.full((1, 40), 3.5)
    plain, shifted = together([Product(spec, code, q, scale), Product(spec, code, q, scale, zero)])
    usual = torch.randn((1, 9, k), generator=g)
    for count in (1, len(places) - 1, len(places)):
        for size in (1e4, 1e30):
            a = usual.clone()
            a[:, ::2, places[:count]] = -size
            bound = a.double().abs() @ plain.weights.abs()
            assert ((plain(a) - a.double() @ plain.weights).abs()[..., ::2] <= 1e-5 * bound[..., ::2]).all(), (count, size)
            bound = a.double().abs() @ shifted.weights.abs()
            assert ((shifted(a) - a.double() @ shifted.weights).abs() <= 1e-5 * bound).all(), (count, size)
        a = usual.clone()
        a[0, 3, places[:count]], a[0, 5, places[0]] = torch.inf, torch.nan
        got = plain(a)
        assert torch.equal(got[0, 3].isnan(), (plain.weights[places[:count]] * torch.inf).sum(0).isnan())
        assert not got[0, 3].isfinite().any() and got[0, 5].isnan().all()
        kept = [r for r in range(9) if r not in (3, 5)]
        assert ((got - plain(usual))[0, kept].abs() <= 1e-5 * (usual.double().abs() @ plain.weights.abs())[0, kept]).all()
        for threads, seed, l2_bytes in ((2, None, 1 << 20), (3, count, 64 << 10)):
            assert torch.equal(plain(a, threads=threads, seed=seed, l2_bytes=l2_bytes).nan_to_num(), got.nan_to_num())


@every_target
def test_many_rows_of_wide_matrices(spec: TileSpec) -> None:
    """Blocks of rows whose bytes fit a cache; some rows are multiplied in f32, and change nothing of the others'."""
    g = torch.Generator().manual_seed(4)
    product = Product(spec, "i4", draw_codes("i4", (256, 1055), g), torch.rand((2, 1055), generator=g) * 0.1 + 0.01)
    for m in (9, 43, 130):
        usual = torch.randn((1, m, 256), generator=g)
        a = usual.clone()
        a[0, m // 2, 7], a[0, 3, 200] = 1e9, torch.inf
        first = product(usual, l2_bytes=64 << 20)
        bound = usual.double().abs() @ product.weights.abs()
        assert ((first - usual.double() @ product.weights).abs() <= 1e-5 * bound).all()
        mixed = product(a, l2_bytes=64 << 20)
        assert torch.equal(mixed[0, 3].isnan(), product.weights[200] == 0) and not mixed[0, 3].isfinite().any()
        assert ((mixed[0, m // 2] - a[0, m // 2].double() @ product.weights).abs() <= 1e-5 * 1e9).all()
        kept = [r for r in range(m) if r not in (3, m // 2)]
        assert ((mixed - first)[0, kept].abs() <= 1e-5 * bound[0, kept]).all()
        for threads, seed, l2_bytes in ((2, None, 1 << 20), (3, m, 64 << 10)):
            assert torch.equal(product(usual, threads=threads, seed=seed, l2_bytes=l2_bytes), first)
            assert torch.equal(product(a, threads=threads, seed=seed, l2_bytes=l2_bytes).nan_to_num(), mixed.nan_to_num())


@pytest.mark.skipif(tile_spec(TARGET).bf16_dot is None, reason="the target has no dot products of bf16")
@pytest.mark.parametrize(
    "code", ["i8", pytest.param("ui4", marks=pytest.mark.slow), pytest.param("f4e2m1fn", marks=pytest.mark.slow), "f8e4m3fn"]
)
def test_rows_of_bf16(code: str) -> None:
    """Where dot products of bf16 pay, many rows are multiplied by numbers rounded to bf16, as the program says."""
    g = torch.Generator().manual_seed(5)
    products = []
    for k, n, groups in ((7, 31, 1), (1320, 65, 5), (96, 1055, 3)):
        scale, zero = torch.rand((groups, n), generator=g) * 0.1 + 0.01, torch.randint(0, 16, (groups, n), generator=g).float()
        products.append(Product(tile_spec(TARGET), code, draw_codes(code, (k, n), g), scale, zero, BF16))
    for product in together(products):
        rounded = product.weights.float().bfloat16().double()
        for m in (1, 33, 70):
            for a in forms(g, (1, m, product.matrix.k), torch.bfloat16):
                got = product(a, bf16_percent=200)
                bound = a.double().abs() @ rounded.abs()
                assert ((got - a.double() @ rounded).abs() <= (1e-5 if m > 32 else 4e-3) * bound).all()
                for threads, seed, l2_bytes in ((2, None, 1 << 20), (3, m, 64 << 10)):
                    assert torch.equal(product(a, threads=threads, seed=seed, l2_bytes=l2_bytes, bf16_percent=200), got)


@every_target_or_slow
def test_scales_that_are_powers_of_two(spec: TileSpec) -> None:
    """MXFP4: a byte each, of short groups, for rows of any number."""
    g = torch.Generator().manual_seed(6)
    scale = 2.0 ** torch.randint(-60, 20, (10, 40), generator=g)
    product = Product(spec, "f4e2m1fn", draw_codes("f4e2m1fn", (320, 40), g), scale)
    assert product.matrix.coding.scale == "e8m0"
    assert product.matrix.bytes == 2 * 10 * (32 + 32 * 32 // 2)
    check(product, g, (1, 3, 40))


ROUNDED_CASES = ((7, 31, 1, F32), (1320, 33, 5, F32), (48, 65, 3, BF16), (600, 40, 1, F32))


def rounded_products(spec: TileSpec, code: str) -> Iterator[tuple[Product, int]]:
    """Products of rows that are rounded to int8, and steps of a group."""
    g = torch.Generator().manual_seed(8)
    for k, n, groups, elem in ROUNDED_CASES:
        scale = torch.rand((groups, n), generator=g) * 0.1 + 0.01
        zero = torch.randint(0, 16, (groups, n), generator=g).float() - 0.5 if groups == 5 else None
        group = k // groups
        yield Product(spec, code, draw_codes(code, (k, n), g), scale, zero, elem, min(group, ROUNDED)), group
    scale = torch.rand((3, 2, 33), generator=g)
    yield Product(spec, code, draw_codes(code, (3, 64, 33), g), scale, elem=BF16, block=32), 32


@every_target_or_slow
@pytest.mark.parametrize(
    "code", ["i8", "ui4", *(pytest.param(c, marks=pytest.mark.slow) for c in AS_BYTES if c not in ("i8", "ui4"))]
)
def test_rows_of_int8(spec: TileSpec, code: str) -> None:
    """Products of rounded rows equal those of what their integers stand for, on any split and cache."""
    g = torch.Generator().manual_seed(9)
    made, groups = zip(*rounded_products(spec, code), strict=True)
    for product, group in zip(together(made), groups, strict=True):
        dtype = torch.bfloat16 if product.elem == BF16 else torch.float32
        batch = product.q.shape[0] if product.q.dim() == 3 else 1
        for m in (0, 1, 13, 40):
            for a in forms(g, (batch, m, product.matrix.k), dtype):
                first = product(a, l2_bytes=64 << 20)
                rounded = round_rows(a, group).double()
                bound = rounded.abs() @ product.weights.abs()
                assert ((first - rounded @ product.weights).abs() <= 1e-6 * bound + 1e-30).all(), (code, m)
                for threads, seed, l2_bytes in ((2, None, 1 << 20), (3, m, 64 << 10)):
                    assert torch.equal(product(a, threads=threads, seed=seed, l2_bytes=l2_bytes), first), (code, m)


@every_target
def test_integer_sums_of_rounded_rows_are_exact(spec: TileSpec) -> None:
    """Where all scales are powers of two, so are results, of the largest integers, too."""
    g = torch.Generator().manual_seed(10)
    q = draw_codes("i8", (512, 40), g)
    q[:, 0], q[:, 1] = -128, 127
    product = Product(spec, "i8", q, torch.full((1, 40), 0.25), block=256)
    for m in (1, 5, 30):
        a = torch.randint(-127, 128, (1, m, 512), generator=g).float()
        a[..., 0] = a[..., 256] = 127
        a[0, 0] = 127
        a = a * 2.0 ** torch.randint(-40, 40, (1, m, 1), generator=g)
        assert torch.equal(product(a).double(), a.double() @ product.weights)


@every_target
def test_rounded_rows_of_extreme_sizes(spec: TileSpec) -> None:
    """Blocks that hold what isn't finite are NaN, and only their rows; the largest and smallest numbers are rounded like others."""
    g = torch.Generator().manual_seed(11)
    product = Product(spec, "i4", draw_codes("i4", (128, 40), g), torch.rand((2, 40), generator=g) * 1e-3, block=64)
    for m in (8, 33):
        a = torch.randn((1, m, 128), generator=g)
        a[0, 1] *= 1e37
        a[0, 2] *= 1e-33
        a[0, 3] = 0
        a[0, 4, :64] *= 1e-30
        a[0, 5, 70], a[0, 6, 3], a[0, 7, 127] = torch.inf, torch.nan, -torch.inf
        a[0, 0, 9] = 3.4e38
        got, rounded = product(a), round_rows(a, 64).double()
        assert got[0, 5:8].isnan().all() and not got[0, :5].isnan().any() and not got[0, 8:].isnan().any()
        kept = [r for r in range(m) if r not in (5, 6, 7)]
        bound = (rounded.abs() @ product.weights.abs())[0, kept]
        assert ((got - rounded @ product.weights).abs()[0, kept] <= 1e-6 * bound + 1e-38).all()


@pytest.mark.skipif(not has_dots(TARGET, FORMS["i8"]), reason="no dot products of bytes")
def test_threads_have_as_many_shares_of_prepared_rows() -> None:
    """Three of 32 panels would keep one of two threads waiting for the other."""
    product = Product(tile_spec(TARGET), "i8", torch.randint(-128, 128, (64, 96 * COLUMNS), dtype=torch.int8))
    sizes = dict.fromkeys(NAMES, 0) | {"m": 64, "batch": 1, "am": 64, "ak": 1, "l2_bytes": 1 << 20}
    for threads, shares in ((1, 3), (2, 2), (3, 3), (4, 4)):
        (launch,) = product.program.record(num_threads=threads, a=0, b=0, ws=0, **sizes)
        assert (launch.count, launch.count // launch.grain) == (96, shares)
