"""Attention against torch's in float64: sizes, groups, masks, strides, special values, any split of the work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dhlo.codegen.families.attention.attention import Attention
from dhlo.codegen.families.attention.common import MaskEmitter, Rows
from dhlo.codegen.families.gemm.register_tile import TileSpec, tile_spec
from dhlo.codegen.kernel_ir.builder import F32, I8, I64, Fn, KernelModule, V
from dhlo.passes.quantise_caches import quantise_rows
from tests.codegen import tile_machine
from tests.codegen.harness import Program, TestHost
from tests.codegen.test_matmul_bytes import runs_here
from tests.codegen.test_tiles import AMX, WITHOUT
from tests.targets import TARGET, TILES

SIZES = ("batch", "kv_heads", "group", "sq", "skv")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8}


def bools(first: int) -> MaskEmitter:
    """A mask of bytes [sq, skv], whose address and row stride are arguments from `first` on."""

    def emit(fn: Fn, b: V, h: V, q: V, k0: V, lanes: V) -> V:
        return fn.cmp("ne", fn.masked_load(_mask_row(fn, first, q, "i8", k0), lanes, fn.const(0, fn.vec(I8))), 0)

    return emit


def floats(first: int) -> MaskEmitter:
    """A mask of f32 [sq, skv]."""

    def emit(fn: Fn, b: V, h: V, q: V, k0: V, lanes: V) -> V:
        return fn.masked_load(_mask_row(fn, first, q, F32, k0), lanes, fn.const(0.0, fn.vec(F32)))

    return emit


def emit_alibi(fn: Fn, b: V, h: V, q: V, k0: V, lanes: V) -> V:
    """-(head + 1 + 2 batch) * |query - key| / 8, computed."""
    keys = fn.add(fn.iota(I64), k0)
    d = fn.unary("fabs", fn.cast(fn.sub(keys, q), F32))
    slope = fn.cast(fn.add(fn.add(h, 1), fn.mul(b, 2)), F32)
    return fn.mul(d, fn.mul(slope, -0.125))


def _mask_row(fn: Fn, first: int, q: V, elem: str, k0: V) -> V:
    base, stride = (fn.load(fn.gep(fn.args[0], first + i, I64), I64) for i in range(2))
    return fn.gep(fn.int_to_ptr(base), fn.add(fn.mul(q, stride), k0), elem)


MASKS: dict[str | None, Callable[[int], MaskEmitter | None]] = {
    None: lambda _: None,
    "bool": bools,
    "float": floats,
    "alibi": lambda _: emit_alibi,
}


@functools.cache
def program(
    d: int,
    dv: int,
    elem: str = "f32",
    causal: bool = False,
    mask: str | None = None,
    k: Rows | None = None,
    v: Rows | None = None,
    tiles: TileSpec = TILES,
) -> Program:
    module = KernelModule(tiles.target)
    host = TestHost(module, asked=("tiles_percent",))
    host.machine("tiles_percent")
    p = {x: host.pointer(x) for x in ("q", "k", "v", "o", "workspace")}
    s = {x: host.size(x) for x in SIZES}
    st = {f"{x}_strides": [host.size(f"{x}s{i}") for i in range(3)] for x in "qkvo"}
    extra = [host.size(x) for x in ("mask", "mask_stride")]
    scale = host.fn.cast(host.fn.bitcast(host.size("scale"), "f64"), F32)
    op = Attention(d, dv, elem, causal, name=f"attention_{mask}", k=k, v=v, tiles=tiles)
    op = replace(op, emit_mask=MASKS[mask](op.first_extra))
    scaled = [x for x, rows in (("k", k), ("v", v)) if rows is not None and rows.scaled]
    scales = [a for x in scaled for a in (host.pointer(f"{x}_scales"), *(host.size(f"{x}scale{i}") for i in range(3)))]
    op.emit_kernels(module)
    op.emit_launch(host, **p, **s, **st, scale=scale, scales=scales, extra_args=extra)
    return host.build()


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | str | None = None,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    threads: int = 1,
    seed: int | None = None,
    scales: Sequence[torch.Tensor | None] = (None, None),
    tiles: TileSpec | None = None,
) -> torch.Tensor:
    """The compiled attention of torch tensors [batch, heads, rows, columns] with unit column stride; keys and values may be of
    another dtype than queries, with scales [batch, heads, rows]. `tiles`: products are of a target's that has tiles."""
    elem = next(e for e, t in DTYPES.items() if t == q.dtype)
    d, dv = q.shape[-1], v.shape[-1]
    kind = mask if isinstance(mask, str) else None if mask is None else "bool" if mask.dtype == torch.bool else "float"
    out = torch.full((*q.shape[:3], dv), float("nan"), dtype=q.dtype) if out is None else out
    op = Attention(d, dv, elem, tiles=tiles or TILES)
    ws = torch.full((op.workspace_bytes // 4,), float("nan"))
    at = mask if isinstance(mask, torch.Tensor) else torch.zeros(1, 1)
    params = {f"{n}s{i}": t.stride(i) for n, t in zip("qkvo", (q, k, v, out), strict=True) for i in range(3)}
    stored = []
    for n, t, s in zip("kv", (k, v), scales, strict=True):
        stored.append(None if t.dtype == q.dtype else Rows(next(e for e, x in DTYPES.items() if x == t.dtype), s is not None))
        if s is not None:
            params |= {f"{n}_scales": s.data_ptr(), **{f"{n}scale{i}": s.stride(i) for i in range(3)}}
    bits = int(np.float64(d**-0.5 if scale is None else scale).view(np.int64))
    program(d, dv, elem, causal, kind, *stored, tiles or TILES)(
        tiles_percent=0 if tiles is None else 1600,
        num_threads=threads,
        seed=seed,
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        o=out.data_ptr(),
        workspace=ws.data_ptr(),
        batch=q.shape[0],
        kv_heads=k.shape[1],
        group=q.shape[1] // max(1, k.shape[1]),
        sq=q.shape[2],
        skv=k.shape[2],
        mask=at.data_ptr(),
        mask_stride=at.stride(0),
        scale=bits,
        **params,
    )
    return out


def expect(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | str | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """torch's own attention in float64 (its math path, which materialises the scores)."""
    q, k, v = q.double(), k.double(), v.double()
    if isinstance(mask, str):
        b, h = torch.arange(q.shape[0]).view(-1, 1, 1, 1), torch.arange(q.shape[1]).view(1, -1, 1, 1)
        i, j = torch.arange(q.shape[2]).view(-1, 1), torch.arange(k.shape[2])
        mask = -(h + 1.0 + 2 * b) * (i - j).abs() / 8
        mask = mask.double()
    elif mask is not None and mask.dtype != torch.bool:
        mask = mask.double()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True)


def tensors(
    b: int, hkv: int, g: int, sq: int, skv: int, d: int, dv: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = ((b, hkv * g, sq, d), (b, hkv, skv, d), (b, hkv, skv, dv))
    q, k, v = (torch.randn(s, generator=rng).to(dtype) for s in shapes)
    return q, k, v


def check(got: torch.Tensor, want: torch.Tensor, tol: float = 2e-6) -> None:
    torch.testing.assert_close(got.double(), want, rtol=tol, atol=tol, equal_nan=True)


EDGES = (0, 1, 2, 15, 17, 30, 33, 100, 257)


@pytest.mark.parametrize("sq", EDGES)
@pytest.mark.parametrize("causal", [False, True])
def test_sizes(sq: int, causal: bool) -> None:
    for skv in EDGES:
        q, k, v = tensors(2, 2, 1, sq, skv, 24, 24, seed=sq + skv)
        check(run(q, k, v, causal=causal), expect(q, k, v, causal=causal))


@pytest.mark.parametrize("d,dv", [(1, 1), (7, 5), (64, 64), (80, 80), (64, 40), (128, 128), (33, 257)])
def test_row_sizes(d: int, dv: int) -> None:
    for sq, skv in ((1, 37), (3, 130), (5, 65), (40, 37), (33, 240)):
        q, k, v = tensors(1, 2, 2, sq, skv, d, dv)
        check(run(q, k, v), expect(q, k, v))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("causal", [False, True])
def test_groups_share_kv_heads(group: int, causal: bool) -> None:
    for sq, skv in ((1, 50), (2, 50), (3, 3), (5, 129), (9, 40), (45, 45)):
        q, k, v = tensors(2, 3, group, sq, skv, 16, 16)
        check(run(q, k, v, causal=causal), expect(q, k, v, causal=causal))


@pytest.mark.parametrize("kind", ["bool", "float", "alibi"])
def test_masks(kind: str) -> None:
    for sq, skv in ((1, 1), (1, 300), (4, 33), (17, 17), (37, 113), (64, 257)):
        q, k, v = tensors(2, 2, 2, sq, skv, 24, 24, seed=sq)
        keep = torch.rand(sq, skv, generator=torch.Generator().manual_seed(1)) > 0.4
        keep[:, skv // 3 : skv // 3 + 60] = False
        keep[::3] = False  # rows that may attend to nothing
        mask: torch.Tensor | str = kind
        if kind != "alibi":
            mask = keep if kind == "bool" else torch.where(keep, torch.randn(sq, skv), torch.tensor(float("-inf")))
        got = run(q, k, v, mask=mask)
        check(got, expect(q, k, v, mask=mask))
        if kind != "alibi":
            assert (got[:, :, ::3] == 0).all()


def check_masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: TileSpec) -> None:
    """Keys that a mask hides, all of them for some queries."""
    keep = torch.rand(q.shape[-2], k.shape[-2], generator=torch.Generator().manual_seed(1)) > 0.4
    keep[::3] = False
    got = run(q, k, v, mask=keep, tiles=spec)
    check(got, expect(q, k, v, mask=keep), 1.5e-2)
    assert (got[:, :, ::3] == 0).all()


@pytest.mark.skipif(not TARGET.is_x86 or not runs_here(WITHOUT), reason="beside vectors of 512 bits")
@pytest.mark.parametrize(
    ("d", "dv"),
    [(64, 64), (40, 24), (34, 130), *(pytest.param(d, dv, marks=pytest.mark.slow) for d, dv in ((2, 2), (96, 80), (128, 128)))],
)
def test_blocks_of_rows_in_tiles(d: int, dv: int) -> None:
    """Products of bf16 in tiles, on the emulator where the CPU has none, beside those in vectors: weights are rounded besides."""
    spec = tile_spec(AMX)
    for sq, skv, causal, group in (
        (25, 1, False, 1),
        (33, 33, True, 1),
        (16, 113, False, 2),
        (65, 31, False, 3),
        (31, 240, False, 4),
    ):
        q, k, v = tensors(1, 2, group, sq, skv, d, dv, torch.bfloat16, seed=sq)
        want = expect(q, k, v, causal=causal)
        tile_machine.report()
        got = run(q, k, v, causal=causal, tiles=spec)
        if tile_machine.is_needed(AMX):
            assert tile_machine.report() > 0
        check(got, want, 1.5e-2)
        check(got, run(q, k, v, causal=causal).double(), 1e-2)
        if not causal:
            check_masked(q, k, v, spec)
    v[0, 0, 5] = torch.nan
    assert run(q, k, v, tiles=spec).isnan().equal(run(q, k, v).isnan())


@pytest.mark.skipif(not TARGET.is_x86 or not runs_here(WITHOUT), reason="no dot products of bf16")
@pytest.mark.parametrize(
    ("d", "dv"),
    [(64, 64), (40, 24), (34, 130), *(pytest.param(d, dv, marks=pytest.mark.slow) for d, dv in ((2, 2), (96, 80), (128, 128)))],
)
def test_blocks_of_rows_by_dot_products(d: int, dv: int) -> None:
    """Products of bf16 as dot products, beside those in f32: weights are rounded besides."""
    spec, wide = tile_spec(WITHOUT), replace(tile_spec(WITHOUT), widen=True)
    for sq, skv, causal, group in (
        (25, 1, False, 1),
        (33, 33, True, 1),
        (16, 113, False, 2),
        (65, 31, False, 3),
        (31, 240, False, 4),
        (100, 301, False, 1),
    ):
        q, k, v = tensors(1, 2, group, sq, skv, d, dv, torch.bfloat16, seed=sq)
        got = run(q, k, v, causal=causal, tiles=spec)
        check(got, expect(q, k, v, causal=causal), 1.5e-2)
        check(got, run(q, k, v, causal=causal, tiles=wide).double(), 1e-2)
        for more in (5, 6):  # rows that lie apart
            longer, wider = (F.pad(x, (0, more))[..., :n] for x, n in ((k, d), (v, dv)))
            assert torch.equal(got, run(q, longer, wider, causal=causal, tiles=spec))
        if not causal:
            check_masked(q, k, v, spec)
    for x in (k, v):
        kept = x[0, 0, 5].clone()
        x[0, 0, 5] = torch.nan
        assert run(q, k, v, tiles=spec).isnan().equal(run(q, k, v, tiles=wide).isnan())
        x[0, 0, 5] = kept


def test_strided_operands_and_output() -> None:
    for sq, skv in ((2, 77), (50, 77)):
        base = [torch.randn(2, n, h, 24) for n, h in ((sq, 4), (skv, 2), (skv, 2))]
        q, k, v = (x.transpose(1, 2) for x in base)
        out = torch.full((2, sq, 4, 24), float("nan")).transpose(1, 2)
        check(run(q, k, v, out=out), expect(q, k, v))
        shared = k[:, :1].expand(2, 2, skv, 24)  # stride 0
        check(run(q, shared, v), expect(q, shared, v))


def test_special_values_stay_in_their_rows() -> None:
    inf, nan = float("inf"), float("nan")
    for sq in (4, 40):
        q, k, v = tensors(1, 1, 1, sq, 150, 16, 16)
        q[0, 0, 1, 3] = nan
        q[0, 0, 2, 3] = inf
        check(run(q, k, v), expect(q, k, v))
        q, k, v = tensors(1, 1, 1, sq, 150, 16, 16)
        k[0, 0, 120, 5] = nan
        check(run(q, k, v), expect(q, k, v))
        q, k, v = tensors(1, 1, 1, sq, 150, 16, 16)
        v[0, 0, 7, 2], v[0, 0, 8, 3] = nan, inf
        check(run(q, k, v), expect(q, k, v))
        q, k, v = tensors(1, 1, 1, sq, 150, 16, 16)
        check(run(q * 300, k * 300, v), expect(q * 300, k * 300, v), tol=2e-3)  # scores of 1e5: one key takes all


def test_nan_keys_that_are_masked_do_no_harm() -> None:
    for sq in (4, 40):
        q, k, v = tensors(1, 1, 1, sq, sq, 24, 24)
        want = expect(q, k, v, causal=True)
        k[0, 0, sq - 1] = float("nan")
        got = run(q, k, v, causal=True)
        check(got[:, :, :-1], want[:, :, :-1])
        assert got[:, :, -1].isnan().all()
        keep = torch.ones(sq, sq, dtype=torch.bool).tril()
        check(run(q, k, v, mask=keep)[:, :, :-1], want[:, :, :-1])


def test_scale() -> None:
    for sq in (1, 20):
        q, k, v = tensors(1, 2, 1, sq, 60, 16, 16)
        for scale in (0.0, 1.0, -0.3):
            check(run(q, k, v, scale=scale), expect(q, k, v, scale=scale))


@pytest.mark.parametrize("elem,tol,d", [("bf16", 1e-2, 64), ("f16", 1.5e-3, 40)])
def test_half_precision(elem: str, tol: float, d: int) -> None:
    for sq, skv in ((1, 100), (6, 70), (70, 130), (40, 33)):
        q, k, v = tensors(1, 2, 2, sq, skv, d, d, DTYPES[elem])
        check(run(q, k, v, causal=sq > 6), expect(q, k, v, causal=sq > 6), tol)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_split_keys_on_threads(threads: int, causal: bool) -> None:
    for sq, skv in ((1, 3000), (4, 1111), (3, 700)):
        q, k, v = tensors(1, 1, 2, sq, skv, 16, 24)
        if causal:
            q, k, v = tensors(1, 1, 2, sq, sq, 16, 24)
        check(run(q, k, v, causal=causal, threads=threads), expect(q, k, v, causal=causal))
        check(run(q, k, v, causal=causal, threads=threads, seed=threads), expect(q, k, v, causal=causal))


def test_split_rows_whose_keys_are_all_masked() -> None:
    q, k, v = tensors(1, 1, 1, 2, 2000, 16, 24)
    mask = torch.ones(2, 2000, dtype=torch.bool)
    mask[0] = False
    mask[1, :1500] = False
    check(run(q, k, v, mask=mask, threads=4), expect(q, k, v, mask=mask))


def test_any_split_of_the_tiles() -> None:
    q, k, v = tensors(2, 2, 2, 100, 130, 16, 24)
    for seed in range(4):
        check(run(q, k, v, causal=True, threads=3, seed=seed), expect(q, k, v, causal=True))


def test_workspace_does_not_depend_on_sizes() -> None:
    assert Attention(64, 64, tiles=TILES).workspace_bytes == 4 * 64 * (TILES.nr("f32") * 3 // 4) * (64 + TARGET.lanes("f32"))


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales, and what they stand for."""
    codes, scale = quantise_rows(x, x.shape[-1])
    return codes, scale[..., 0], codes.float() * scale


@pytest.mark.parametrize("d,dv", [(64, 64), (24, 40), (7, 33), (1, 128)])
@pytest.mark.parametrize("sq", EDGES)
def test_keys_and_values_as_codes(sq: int, d: int, dv: int) -> None:
    for skv in EDGES:
        q, k, v = tensors(2, 2, 2, sq, skv, d, dv, seed=sq + skv)
        (kq, ks, kd), (vq, vs, vd) = quantised(k), quantised(v)
        check(run(q, kq, vq, scales=(ks, vs)), expect(q, kd, vd))
        by_position = torch.stack([ks, ks]).permute(1, 2, 3, 0)[..., 0]  # scales that aren't side by side
        check(run(q, kq, v, causal=True, scales=(by_position, None)), expect(q, kd, v, causal=True))
        check(run(q, k, vq, scales=(None, vs.transpose(1, 2).contiguous().transpose(1, 2))), expect(q, k, vd))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_keys_and_values_of_fewer_bits(stored: torch.dtype) -> None:
    for sq, skv, d in ((1, 100, 64), (6, 70, 24), (70, 130, 7), (40, 33, 64), (0, 3, 64), (3, 0, 64)):
        q, k, v = tensors(1, 2, 2, sq, skv, d, d)
        k, v = k.to(stored), v.to(stored)
        check(run(q, k, v, causal=sq > 6), expect(q, k, v, causal=sq > 6))
        check(run(q, k.float(), v), expect(q, k, v))
        half = q.to(stored)
        check(run(half, k, v), expect(half, k, v), 1e-2)


@pytest.mark.parametrize("elem,tol", [("bf16", 1e-2), ("f16", 1.5e-3)])
def test_codes_beside_queries_of_fewer_bits(elem: str, tol: float) -> None:
    for sq, skv in ((1, 100), (6, 70), (70, 130)):
        q, k, v = tensors(1, 2, 2, sq, skv, 64, 64, DTYPES[elem])
        (kq, ks, kd), (vq, vs, vd) = quantised(k), quantised(v)
        check(run(q, kq, vq, scales=(ks, vs)), expect(q, kd, vd), tol)


def test_codes_under_masks_and_splits() -> None:
    for sq, skv in ((1, 3000), (4, 1111), (37, 113)):
        q, k, v = tensors(1, 1, 2, sq, skv, 24, 24)
        (kq, ks, kd), (vq, vs, vd) = quantised(k), quantised(v)
        keep = torch.rand(sq, skv, generator=torch.Generator().manual_seed(1)) > 0.4
        keep[::3] = False
        for mask in (keep, torch.where(keep, torch.randn(sq, skv), torch.tensor(float("-inf"))), "alibi"):
            check(run(q, kq, vq, mask=mask, scales=(ks, vs), threads=3), expect(q, kd, vd, mask=mask))


def test_codes_of_rows_that_are_no_numbers() -> None:
    for sq in (4, 40):
        for bad in (float("nan"), float("inf")):
            q, k, v = tensors(1, 1, 1, sq, sq, 24, 24)
            (kq, ks, kd), (vq, vs, vd) = quantised(k), quantised(v)
            want = expect(q, kd, vd, causal=True)
            k[0, 0, sq - 1, 3] = bad
            kq, ks, _ = quantised(k)
            got = run(q, kq, vq, scales=(ks, vs), causal=True)
            check(got[:, :, :-1], want[:, :, :-1])
            assert got[:, :, -1].isnan().all()
            v[0, 0, 0, 3] = bad
            assert run(q, *quantised(v)[:1], vq, scales=(quantised(v)[1], vs)).isnan().all()
