"""Matrix products against float64 references: odd and empty sizes, strides, batches, epilogues, any split."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sympy
import torch

from dhlo.codegen.backends.cpu.llvm import emit_assembly, lower_to_llvm_ir
from dhlo.codegen.elementwise.rules import narrow
from dhlo.codegen.families.gemm.gemv import BESIDE, FROM_MEMORY
from dhlo.codegen.families.gemm.matmul import DOTS_PAY, Matmul, workspace_bytes
from dhlo.codegen.families.gemm.microkernel import SHARING_PANELS, emit_microkernel, emit_shared_table
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.pack import emit_pack_b_kernel, pack_b
from dhlo.codegen.families.gemm.panels import Chunk
from dhlo.codegen.families.gemm.parts import may_split, parts_bytes
from dhlo.codegen.families.gemm.register_tile import BF16, F16, TileSpec, accumulator, depth, result_type, tile_spec
from dhlo.codegen.kernel_ir.abi import MACHINE, MACHINE_RANGES
from dhlo.codegen.kernel_ir.builder import F32, F64, I8, I32, I64, PTR, Fn, KernelModule, Linkage, V, vec
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS
from dhlo.codegen.target import LINE_BYTES, native, parse_target
from tests.codegen.harness import Program, TestHost, aligned
from tests.targets import TARGET, TILES

Array = npt.NDArray[Any]
SIZES = (0, 1, 2, 3, 7, 13, 14, 15, 16, 17, 29, 31, 32, 33, 64, 100, 257)
DTYPES = {F32: np.float32, F64: np.float64, BF16: np.uint16, I8: np.int8, I32: np.int32}
LEVEL = parse_target(TARGET.name.partition("+")[0])
"""The target without extensions."""
PLAIN = tile_spec(LEVEL)
STRIDES = ("sa0", "sa1", "sam", "sak", "sb0", "sb1", "sbk", "sbn")
NAMES = ("a", "b", "c", "bias", "ws", "m", "n", "k", "bt0", "bt1", *STRIDES)
MEASURED = {name: least for name, (least, _) in MACHINE_RANGES.items() if name not in ("l2_bytes", "bf16_percent")}
"""Facts of the machine that are parameters of every program, and what they are where a test says nothing."""
_FMAS = dict.fromkeys(("fma128_per_us", "fma256_per_us", "fma512_per_us"), 7600)
ZEN5 = {
    **_FMAS,
    "l1d_bytes": 48 << 10, "l3_bytes": 32 << 20,
    "l2_bytes_per_us": 124_000, "l3_bytes_per_us": 92_000, "memory_bytes_per_us": 41_000,
}  # fmt: skip
"""What is measured of one."""
SLOW_CACHE = {**_FMAS, "l3_bytes": 400 << 20, "l2_bytes_per_us": 100_000, "l3_bytes_per_us": 30_000, "memory_bytes_per_us": 18_000}
"""Of a machine whose third-level cache is as slow as memory."""


def emit_epilogue(module: KernelModule, elem: str, lanes: int, *, bias_relu: bool, to: str | None = None) -> str:
    """eargs: c, m, n, bias. Stores the tile to dense c[batch][m][n], or its biased and clamped values, perhaps rounded."""
    name = "bias_relu" if bias_relu else "store"
    fn = Fn(module, name, EPILOGUE_ARGS)
    eargs, tile, ld, batch, m0, n0, mr, nr = fn.args
    c, m, n, bias = (fn.load(fn.gep(eargs, i, I64), I64) for i in range(4))
    c, bias = fn.int_to_ptr(c), fn.int_to_ptr(bias)
    zero = fn.const(0.0, vec(elem, lanes))
    with fn.loop(0, mr) as i, fn.loop(0, nr, lanes) as j:
        mask = fn.tail_mask(fn.sub(nr, j.iv), lanes)
        x = fn.load(fn.gep(tile, fn.add(fn.mul(i.iv, ld), j.iv), elem), vec(elem, lanes))
        if bias_relu:
            x = fn.add(x, fn.masked_load(fn.gep(bias, fn.add(n0, j.iv), elem), mask, zero))
            x = fn.select(fn.cmp("lt", x, 0.0), 0.0, x)
        row = fn.add(fn.mul(batch, m), fn.add(m0, i.iv))
        at = fn.gep(c, fn.add(fn.mul(row, n), fn.add(n0, j.iv)), to or elem)
        fn.masked_store(x if to is None else fn.bitcast(narrow(fn, x, to), "i16"), at, mask)
    fn.done()
    return name


@functools.cache
def program(elem: str, packed: bool, bias_relu: bool, spec: TileSpec, splits: bool = False, rounded: bool = False) -> Program:
    module = KernelModule(spec.target)
    host = TestHost(module, asked=["bf16_percent", "l2_bytes", *MEASURED])
    p = {x: host.size(x) for x in (*NAMES, "l2_bytes", *MEASURED)}
    pointer = {x: host.pointer(x) for x in ("a", "b", "ws", *(["parts"] if splits else []))}
    fn = host.fn
    eargs = fn.alloca(4, I64)
    for i, x in enumerate(("c", "m", "n", "bias")):
        fn.store(p[x], fn.gep(eargs, i, I64))
    to = result_type(elem) if rounded else None
    epilogue = fn.address_of(emit_epilogue(module, accumulator(elem), spec.lanes(elem), bias_relu=bias_relu, to=to))
    matmul = Matmul(elem, spec, narrow=not bias_relu, splits=splits)
    matmul.emit_kernels(module, packed=packed)
    operands = Operands(
        a=pointer["a"],
        b=pointer["b"],
        m=p["m"],
        n=p["n"],
        k=p["k"],
        a_strides=[p[x] for x in ("sa0", "sa1", "sam", "sak")],
        b_strides=[p[x] for x in (("sb0", "sb1") if packed else ("sb0", "sb1", "sbk", "sbn"))],
        batch=(p["bt0"], p["bt1"]),
        epilogue=epilogue,
        epilogue_args=eargs,
        workspace=None if packed else pointer["ws"],
        parts=pointer.get("parts"),
        result=None if bias_relu or not rounded and result_type(elem) != accumulator(elem) else fn.int_to_ptr(p["c"]),
    )
    matmul.emit_launch(host, operands)
    return host.build()


def element_strides(x: Array) -> list[int]:
    """In elements; of an empty array those that PyTorch gives it, where NumPy has zeros."""
    if x.size == 0:
        return [int(np.prod([max(n, 1) for n in x.shape[i + 1 :]])) for i in range(x.ndim)]
    return [s // x.itemsize for s in x.strides]


def run(
    a: Array,
    b: Array,
    *,
    packed: bool,
    bias: Array | None = None,
    num_threads: int = 1,
    seed: int | None = None,
    spec: TileSpec = TILES,
    bf16_percent: int = 200,
    l2_bytes: int = 1 << 20,
    machine: Mapping[str, int] | None = None,
    splits: bool = False,
    rounded: bool = False,
    beforehand: bool | None = None,
) -> Array:
    """a (B0, B1, M, K) and b (B0, B1, K, N) of any strides, broadcast dims with stride 0; returns c (B0, B1, M, N).

    `beforehand`: whether B is to be packed by a launch of its own.
    """
    elem = next(e for e, d in DTYPES.items() if d == b.dtype)
    bt0, bt1, m, k = a.shape
    n = b.shape[-1]
    dtype = np.dtype(DTYPES[elem if rounded else accumulator(elem)])
    size = bt0 * bt1 * m * n
    out = aligned(size * dtype.itemsize + 64)
    c = out[: size * dtype.itemsize].view(dtype)
    sb = element_strides(b)
    distinct = (bt0 if sb[0] else 1) * (bt1 if sb[1] else 1)
    ws = aligned(workspace_bytes(distinct, n, k, elem, spec) + 64)
    if packed:
        b = pack_b(b, False, spec.panel(elem), step=depth(elem))
        unit = b.itemsize * depth(elem)
        sb = [b.strides[0] // unit, b.strides[1] // unit, 0, 0]
    strides = dict(zip(STRIDES, element_strides(a) + sb, strict=True))
    facts = {"l2_bytes": l2_bytes} | ({"bf16_percent": bf16_percent} if elem == BF16 and spec.bf16_dot else {})
    built = program(elem, packed, bias is not None, spec, splits, rounded)
    memory = {"parts": aligned(parts_bytes(elem, spec) + 64)} if splits else {}
    built(
        num_threads=num_threads,
        seed=seed,
        a=a,
        b=b,
        c=out,
        bias=np.zeros(n, dtype) if bias is None else bias,
        ws=ws,
        m=m,
        n=n,
        k=k,
        bt0=bt0,
        bt1=bt1,
        **strides,
        **facts,
        **memory,
        **MEASURED | dict(machine or {}),
    )
    assert all((x[-64:] == 0xFF).all() for x in memory.values()), "wrote past the memory of the parts"
    assert (out[-64:] == 0xFF).all(), "wrote past the result"
    assert (ws[-64:] == 0xFF).all(), "wrote past the workspace"
    assert beforehand is None or (ws == 0xFF).all() != beforehand
    return c.reshape(bt0, bt1, m, n)


def tensor(rng: np.random.Generator, shape: tuple[int, ...], elem: str = F32) -> Array:
    x = rng.standard_normal(shape)
    if elem == BF16:
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(DTYPES[elem])


def to_f64(x: Array) -> npt.NDArray[np.float64]:
    if x.dtype == np.uint16:
        x = np.ascontiguousarray(x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def check(got: Array, a: Array, b: Array, bias: Array | None = None) -> None:
    a, b = to_f64(a), to_f64(b)
    want, bound = a @ b, np.abs(a) @ np.abs(b)
    if bias is not None:
        want, bound = np.maximum(want + bias, 0), bound + np.abs(bias)
    eps = float(np.finfo(got.dtype).eps)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= (a.shape[-1] + 2) * eps * bound + np.finfo(got.dtype).tiny).all()


def cases(count: int, seed: int) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    return [(rng.choice(SIZES), rng.choice(SIZES), rng.choice(SIZES)) for _ in range(count)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("elem", [F32, F64])
def test_every_row_count_and_random_sizes(elem: str, packed: bool) -> None:
    rng = np.random.default_rng(1)
    sizes = [*((m, n, 33) for m in range(1, 32) for n in (31, 161)), *cases(60, 1), *itertools.product((0, 1, 15), repeat=3)]
    for i, (m, n, k) in enumerate(sizes):
        a, b = tensor(rng, (1, 1, m, k), elem), tensor(rng, (1, 1, k, n), elem)
        check(run(a, b, packed=packed, seed=i if i % 2 else None, num_threads=1 + i % 3), a, b)


@pytest.mark.parametrize(("m", "n", "k"), [(257, 257, 257), (700, 100, 1500), (3, 1030, 2048), (129, 33, 4096), (29, 480, 768)])
def test_larger_sizes_on_any_split(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(2)
    a, b = tensor(rng, (1, 1, m, k)), tensor(rng, (1, 1, k, n))
    for threads, seed in ((1, None), (2, None), (7, None), (2, 5), (3, 6)):
        check(run(a, b, packed=True, num_threads=threads, seed=seed), a, b)
    check(run(a, b, packed=False, num_threads=2), a, b)


def test_strided_and_transposed_operands() -> None:
    rng = np.random.default_rng(3)
    for i, (m, n, k) in enumerate([*cases(40, 3), (20, 200, 40), (100, 300, 64)]):
        a_forms = [
            tensor(rng, (1, 1, m, k + 5))[..., 2 : k + 2],
            tensor(rng, (1, 1, k, m)).swapaxes(2, 3),
            tensor(rng, (1, 1, m, 3 * k))[..., ::3],
            tensor(rng, (1, 1, 2 * m, k))[..., ::2, :],
            tensor(rng, (1, 1, m, 1024))[..., :k],
        ]
        b_forms = [
            tensor(rng, (1, 1, n, k)).swapaxes(2, 3),
            tensor(rng, (1, 1, k, n + 3))[..., 1 : n + 1],
            tensor(rng, (1, 1, k, 2 * n))[..., ::2],
        ]
        a, b = a_forms[i % 5], b_forms[i % 3]
        check(run(a, b, packed=False, seed=i), a, b)
        check(run(a, b, packed=True), a, b)


@pytest.mark.parametrize("packed", [True, False])
def test_batches_and_broadcast(packed: bool) -> None:
    rng = np.random.default_rng(4)
    for i, (m, n, k) in enumerate([(5, 40, 17), (1, 33, 64), (16, 16, 16), (31, 200, 3), (1, 0, 4), (40, 170, 20)]):
        for b0, b1 in ((3, 2), (1, 4), (2, 1), (0, 3), (3, 0)):
            a = tensor(rng, (b1, b0, m, k)).swapaxes(0, 1)
            for shape in ((b0, b1), (1, b1), (b0, 1), (1, 1)):
                b = np.broadcast_to(tensor(rng, (*shape, k, n)), (b0, b1, k, n))
                check(run(a, b, packed=packed, seed=i), a, b)
            a_shared = np.broadcast_to(tensor(rng, (1, 1, m, k)), (b0, b1, m, k))
            check(run(a_shared, b, packed=packed, num_threads=2), a_shared, b)


def test_epilogue_sees_every_element_once() -> None:
    rng = np.random.default_rng(5)
    for i, (m, n, k) in enumerate([*cases(25, 5), (15, 33, 0), (300, 65, 8)]):
        a, b, bias = tensor(rng, (2, 1, m, k)), tensor(rng, (2, 1, k, n)), tensor(rng, (n,))
        check(run(a, b, packed=i % 2 == 0, bias=bias, seed=i, num_threads=2), a, b, bias)


def test_non_finite_values_pass() -> None:
    rng = np.random.default_rng(6)
    for m, n, k in ((3, 40, 20), (20, 200, 33), (20, 33, 1024)):
        a, b = tensor(rng, (1, 1, m, k)), np.abs(tensor(rng, (1, 1, k, n))) + 1
        a[0, 0, 1, 2], a[0, 0, 2, k - 1], b[0, 0, 0, n - 1] = np.nan, np.inf, -np.inf
        with np.errstate(invalid="ignore"):
            want = a.astype(np.float64) @ b.astype(np.float64)
        for packed in (True, False):
            got = run(a, b, packed=packed)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])


@pytest.mark.parametrize("elem", [F32, pytest.param(F64, marks=pytest.mark.slow), BF16])
def test_few_rows_stream_b_in_place(elem: str) -> None:
    rng = np.random.default_rng(10)
    sizes = [*itertools.product((1, 2, 3, 4, 5, 7, 9, 12), (64, 65, 255, 500, 1100), (0, 1, 37), (1, 3))]
    narrow = itertools.product((1, 3, 4, 6, 8, 11), (1, 15, 33, 63, 66, 200), (0, 1, 50), (1, 3))
    for m, n, k, batch in [
        *sizes[:: 1 if elem == F32 else 2],
        *narrow,
        (1, 8300, 19, 1),
        (2, 4500, 9, 2),
        (4, 2090, 17, 1),
        (3, 1031, 70, 1),
        (1, 2070, 35, 1),
        (3, 3333, 43, 2),
        # Groups of rows take several parts of k, and strips of columns.
        (12, 1500, 130, 1),
        (5, 3300, 50, 1),
        (7, 75, 1000, 1),
        (9, 130, 700, 2),
        (3, 0, 5, 1),
        (8, 0, 5, 2),
        (5, 130, 90, 3),
        (8, 520, 64, 4),
        (12, 100, 200, 5),
        # More rows of much depth.
        (13, 170, 1024, 1),
        (24, 260, 1100, 2),
        (17, 33, 1030, 1),
        (19, 403, 1040, 1),
        # More rows by a B that stays in a cache.
        *((m, n, k, 1 + m % 2) for m, n in ((13, 70), (25, 33), (36, 500), (37, 130)) for k in (1, 16, 70)),
    ]:
        a, b = tensor(rng, (batch, 1, m, k), elem), tensor(rng, (batch, 1, k, n + 3), elem)[..., 2 : n + 2]
        got = run(a, b, packed=False, seed=n, num_threads=1 + m % 3)
        check(got, a, b)
        np.testing.assert_array_equal(run(a, b, packed=False, num_threads=2), got)
        for l3 in (0, 64 << 20):  # strips of larger ones, prefetched or not
            strips = run(a, b, packed=False, num_threads=1 + n % 2, l2_bytes=16 << 10, machine={"l3_bytes": l3})
            np.testing.assert_array_equal(strips, got)
        near = run(a, b, packed=False, l2_bytes=4 * max(b.nbytes, 4 << 10), machine=SLOW_CACHE)
        np.testing.assert_array_equal(near, got)
        dense = np.ascontiguousarray(b)  # parts of which are prefetched in the order of memory
        np.testing.assert_array_equal(run(a, dense, packed=False, l2_bytes=64 << 10, num_threads=1 + n % 2, machine=ZEN5), got)
        bias = tensor(rng, (n,), accumulator(elem))  # sums that aren't the result wait in a tile
        check(run(a, b, packed=False, bias=bias, l2_bytes=(16 << 10) << 8 * (n % 2), machine={"l3_bytes": 0}), a, b, bias)


def test_how_few_rows_read_b() -> None:
    """As from memory where prefetches have somewhere to reach; else in passes, of which more than 4 rows fetch the next one's
    columns. Where the third cache is slow, sizes decide."""
    order, passes = 14, 0  # the kernel's argument
    for elem, m, n, k, batch, fast, slow in (
        (F32, 8, 391, 422, 3, FROM_MEMORY, FROM_MEMORY),
        (F32, 8, 391, 64, 3, FROM_MEMORY, BESIDE),
        (F32, 8, 3000, 64, 1, BESIDE, BESIDE),
        (F32, 8, 3000, 65, 3, FROM_MEMORY, FROM_MEMORY),
        (F32, 5, 30, 64, 3, FROM_MEMORY, passes),
        (F32, 5, 30, 64, 1, BESIDE, passes),
        (F32, 4, 391, 422, 1, passes, passes),
        (F32, 4, 391, 422, 3, FROM_MEMORY, passes),
        (F32, 4, 30, 18000, 3, passes, FROM_MEMORY),
        (F16, 4, 391, 422, 1, FROM_MEMORY, passes),
        (F16, 4, 30, 422, 1, passes, passes),
    ):
        strides = dict(zip(STRIDES, (0, m * k, k, 1, 0, k * n, n, 1), strict=True))
        sizes = {"m": m, "n": n, "k": k, "bt0": 1, "bt1": batch, "l2_bytes": 1 << 20}
        none = dict.fromkeys(("a", "b", "c", "bias", "ws"), 0)
        for facts, want in ((ZEN5, fast), (SLOW_CACHE, slow)):
            (launch,) = program(elem, False, False, TILES).record(**none, **sizes, **strides, **MEASURED | facts)
            assert launch.args[order] == want, (elem, m, n, k, batch, want)


def test_which_products_are_streamed() -> None:
    """Up to 36 rows by a B that stays in half of the second-level cache, up to 24 by a deeper one: how deep, the third says."""
    built = program(F32, False, False, TILES)

    def kernels(m: int, n: int, k: int, batch: int, facts: Mapping[str, int]) -> list[int]:
        strides = dict(zip(STRIDES, (0, m * k, k, 1, 0, k * n, n, 1), strict=True))
        sizes = {"m": m, "n": n, "k": k, "bt0": 1, "bt1": batch, "l2_bytes": 1 << 20}
        none = dict.fromkeys(("a", "b", "c", "bias", "ws"), 0)
        return [x.address for x in built.record(**none, **sizes, **strides, **MEASURED | facts)]

    stream = kernels(5, 100, 100, 1, {})
    for m, n, k, batch, fast, slow in (
        (36, 300, 400, 1, True, True),
        (37, 300, 400, 1, False, False),
        (36, 700, 700, 1, False, False),
        (24, 500, 300, 1, False, True),
        (24, 500, 1100, 1, True, True),
        (24, 2000, 200, 1, False, False),
        (24, 2000, 300, 1, False, True),
        (21, 387, 199, 58, False, True),
        (14, 45, 7958, 7, True, True),
    ):
        for facts, streamed in ((ZEN5, fast), (SLOW_CACHE, slow)):
            assert (kernels(m, n, k, batch, facts) == stream) == streamed, (m, n, k, batch, streamed)


@pytest.mark.parametrize("spec", [TILES, *({PLAIN} - {TILES})], ids=str)
@pytest.mark.parametrize("packed", [True, False])
def test_bf16(spec: TileSpec, packed: bool) -> None:
    rng = np.random.default_rng(9)
    sizes = [*((m, 40, k) for m in range(1, 30, 2) for k in (32, 35)), *cases(30, 9), (300, 300, 257), (1, 0, 3)]
    for i, (m, n, k) in enumerate(sizes):
        a_forms = [
            tensor(rng, (2, 1, m, k), BF16),
            tensor(rng, (2, 1, k, m), BF16).swapaxes(2, 3),
            tensor(rng, (2, 1, m, 3 * k), BF16)[..., ::3],
        ]
        b_forms = [
            tensor(rng, (2, 1, k, n), BF16),
            tensor(rng, (2, 1, n, k), BF16).swapaxes(2, 3),
            tensor(rng, (2, 1, k, 2 * n), BF16)[..., ::2],
        ]
        a, b = a_forms[i % 3], b_forms[(i // 3) % 3]
        slow_dots = 49 if i % 5 > 2 else 200
        got = run(a, b, packed=packed, seed=i if i % 2 else None, num_threads=1 + i % 2, spec=spec, bf16_percent=slow_dots)
        check(got, a, b)


@pytest.mark.parametrize("spec", [TILES, *({PLAIN} - {TILES})], ids=str)
@pytest.mark.parametrize("packed", [True, False])
def test_bf16_rows_in_place_are_summed_as_packed_ones(packed: bool, spec: TileSpec) -> None:
    """Odd depths, in one chunk and in several; beside A there is a NaN that isn't part of it."""
    rng = np.random.default_rng(13)
    shallow = [(15, 33, 1), (29, 40, 3), (30, 70, 21), (14, 64, 69)]
    for m, n, k in (
        *shallow,
        (7, 40, 129),
        (15, 33, 131),
        (61, 70, 257),
        (40, 16, 128),
        (100, 37, 1501),
        (29, 600, 999),
        (20, 5, 3),
    ):
        wide = tensor(rng, (1, 1, m, k + 1), BF16)
        wide[..., k] = 0x7FC0
        a, b = wide[..., :k], tensor(rng, (1, 1, k, n), BF16)
        packed_a = np.ascontiguousarray(a.swapaxes(2, 3)).swapaxes(2, 3)
        for l2_bytes in (128 << 10, 1 << 20):
            got = run(a, b, packed=packed, num_threads=2, l2_bytes=l2_bytes, spec=spec)
            check(got, a, b)
            np.testing.assert_array_equal(got, run(packed_a, b, packed=packed, l2_bytes=l2_bytes, spec=spec))


@pytest.mark.parametrize("packed", [True, False])
def test_bf16_without_dot_products_is_f32(packed: bool) -> None:
    """The same tiles, and the same sums where there is one for each element: half a tile's rows and more."""
    rng = np.random.default_rng(12)
    spec = PLAIN
    assert spec.left_parts(BF16) == 2 and spec.rows(BF16) == spec.rows(F32) and spec.left_parts(F32) == spec.left_parts(I8) == 1
    for m, n, k in ((spec.mr, 40, 7), (spec.mr - 1, 33, 64), (4 * spec.mr + 1, 71, 131), (3 * spec.mr, 5, 1), (100, 37, 30)):
        a, b = tensor(rng, (1, 1, m, k), BF16), tensor(rng, (1, 1, k, n), BF16)
        got = run(a, b, packed=packed, spec=spec, num_threads=2, bf16_percent=0)
        want = run(*(to_f64(x).astype(np.float32) for x in (a, b)), packed=packed, spec=spec)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("spec", [TILES, *({PLAIN} - {TILES})], ids=str)
@pytest.mark.parametrize("elem", [F32, F64, BF16])
def test_depths_and_widths_of_packing(elem: str, spec: TileSpec) -> None:
    """k around multiples of a vector of units, where transposed blocks overlap; n around those of a vector, where masks begin."""
    rng = np.random.default_rng(14)
    block, lanes = spec.lanes(elem) * depth(elem), spec.lanes(elem)
    for k in sorted({max(0, x + d) for x in (0, block, 2 * block, 3 * block) for d in (-2, -1, 0, 1, 2, block // 2)}):
        for m, n in ((7, 2 * lanes + 1), (13, lanes - 1), (13, spec.panel(elem) + lanes), (14, spec.panel(elem))):
            a, rows = tensor(rng, (1, 1, m, 1024), elem)[..., :k], tensor(rng, (1, 1, k, n), elem)
            columns = tensor(rng, (1, 1, n, k + 1), elem)[..., :k].swapaxes(2, 3)
            for b in (rows, columns):
                check(run(a, b, packed=False, spec=spec, bf16_percent=0), a, b)


@pytest.mark.parametrize(("spec", "packed"), [(TILES, False), *((s, True) for s in {PLAIN} - {TILES})], ids=str)
def test_sums_of_bf16_are_rounded_from_registers_as_from_memory(spec: TileSpec, packed: bool) -> None:
    """Of whole tiles and what is left beside them, in one chunk, in several and in parts, with a last unit of one element."""
    rng = np.random.default_rng(15)
    sizes = [*((m, 96, 18) for m in range(1, 16)), (33, 100, 257), (20, 40, 1), (29, 65, 0), (40, 330, 999), (5, 35, 4099)]
    for i, (m, n, k) in enumerate(sizes):
        a, b = tensor(rng, (1, 1, m, k), BF16), tensor(rng, (1, 1, k, n), BF16)
        if k > 1:
            a[0, 0, 0, 0], a[0, 0, m - 1, 1], b[0, 0, 0, 3] = 0x7FC1, 0x7F80, 0xFF80
        how = {"packed": packed, "spec": spec, "splits": True, "l2_bytes": 128 << 10 if i % 3 else 1 << 20}
        sums = run(a, b, **how)
        got = run(a, b, **how, num_threads=1 + i % 2, rounded=True)
        want = torch.from_numpy(sums).bfloat16()
        torch.testing.assert_close(torch.from_numpy(got.view(np.int16)).view(torch.bfloat16), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("percent", [0, DOTS_PAY - 1, DOTS_PAY, 200])
def test_slow_dot_products_of_bf16_are_not_used(percent: int) -> None:
    """The machine decides; the product by f32 multiply-adds rounds like that of a target without the instruction."""
    rng = np.random.default_rng(3)
    dots = tile_spec(parse_target("x86-64-v4+bf16"))
    assert dots.bf16_dot is not None and Matmul(BF16, PLAIN).widened is None and Matmul(F32, dots).widened is None
    if not {dots.bf16_dot.feature} <= native().extras:
        pytest.skip("this machine has no dot products of bf16")
    a, b = tensor(rng, (1, 1, 20, 300), BF16), tensor(rng, (1, 1, 300, 70), BF16)
    got = run(a, b, packed=True, spec=dots, bf16_percent=percent)
    check(got, a, b)
    plain = run(a, b, packed=True, spec=tile_spec(parse_target("x86-64-v4")))
    assert np.array_equal(got, plain) == (percent < DOTS_PAY)


def test_splits_and_threads_do_not_change_bits() -> None:
    rng = np.random.default_rng(7)
    for m, n, k in ((61, 190, 300), (61, 190, 1024), *((m, n, 400) for m in (13, 15, 19, 29, 31) for n in (10, 24, 70))):
        a, b = tensor(rng, (1, 1, m, k)), tensor(rng, (1, 1, k, n))
        whole = run(a, b, packed=True)
        for seed in range(4):
            np.testing.assert_array_equal(run(a, b, packed=True, seed=seed, num_threads=1 + 3 * seed), whole)
            np.testing.assert_array_equal(run(a, b, packed=False, num_threads=1 + 3 * seed), whole)
        few = run(a[:, :, :3], b, packed=False)
        np.testing.assert_array_equal(run(a[:, :, :3], b, packed=False, num_threads=5), few)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("elem", [F32, pytest.param(F64, marks=pytest.mark.slow), BF16])
def test_few_tiles_are_split_over_k(elem: str, packed: bool) -> None:
    """Into parts that sizes decide: threads and their share change no bit, and where there is no split, nothing changes."""
    rng = np.random.default_rng(12)
    height, width = TILES.rows(elem), TILES.panel(elem)
    sizes = [(m, n, 4099) for m in (height, height + 1, 2 * height) for n in (1, width - 1, width, width + 3)]
    whole_depth = [(2 * height, 2 * width + 1, 4096), (height, width, 64), (3, 5, 7), (0, 5, 9000), (5, 0, 9000), (5, 5, 0)]
    for i, (m, n, k) in enumerate([*sizes, (1, width, 40001), (4 * height, 5, 2001), *whole_depth]):
        a_forms = [tensor(rng, (1, 1, m, k), elem), tensor(rng, (1, 1, k, m), elem).swapaxes(2, 3)]
        b_forms = [tensor(rng, (1, 1, k, n), elem), tensor(rng, (1, 1, n, k), elem).swapaxes(2, 3)]
        a, b = a_forms[i % 2], b_forms[i // 2 % 2]
        got = run(a, b, packed=packed, splits=True)
        check(got, a, b)
        for threads, seed in ((2, None), (7, None), (3, i)):
            np.testing.assert_array_equal(run(a, b, packed=packed, num_threads=threads, seed=seed, splits=True), got)
        if (m, n, k) in whole_depth:
            np.testing.assert_array_equal(run(a, b, packed=packed), got)


@pytest.mark.parametrize("elem", [F32, pytest.param(F64, marks=pytest.mark.slow), pytest.param(BF16, marks=pytest.mark.slow)])
def test_few_rows_that_stream_b_take_parts_of_k(elem: str) -> None:
    """As many as sizes say: chunks of columns, threads and how B is read change no bit; parts needn't be of one depth."""
    rng = np.random.default_rng(16)
    sizes = itertools.product((1, 4, 7, 12), (1, 33, 66, 130), (600, 4099))
    for i, (m, n, k) in enumerate(
        [*sizes, (1, 300, 9001), (3, 64, 30011), (8, 66, 9240), (36, 17, 1000), (5, 0, 9000), (0, 5, 9000)]
    ):
        wide = tensor(rng, (1, 1, k, n + 3), elem)
        a, b = tensor(rng, (1, 1, m, k), elem), wide[..., 2 : n + 2]
        got = run(a, b, packed=False, splits=True)
        check(got, a, b)
        for threads, seed, l3 in ((2, None, 0), (7, i, 64 << 20), (16, None, 32 << 20)):
            facts = {"l2_bytes": 64 << 10 << i % 2, "machine": {"l3_bytes": l3}}
            other = run(a, b, packed=False, num_threads=threads, seed=seed, splits=True, **facts)
            np.testing.assert_array_equal(other, got)
        far = run(a, b, packed=False, splits=True, l2_bytes=4 * max(b.nbytes, 4 << 10), machine=SLOW_CACHE)
        np.testing.assert_array_equal(far, got)
        bias = tensor(rng, (n,), accumulator(elem))
        check(run(a, b, packed=False, splits=True, bias=bias, num_threads=2), a, b, bias)


def test_which_rows_that_stream_b_take_parts_of_k() -> None:
    """Those of which a part has enough to do: its sums are added up by a second launch."""
    built = program(F32, False, False, TILES, True)
    room = 16 * TILES.rows(F32) * TILES.panel(F32)
    for m, n, k, split in (
        (8, 16, 16384, True),
        (1, 33, 9001, True),
        (8, 66, 300, False),
        (1, 400, 300, False),
        (12, room // 12, 9001, False),
        (0, 5, 9000, False),
        (5, 0, 9000, False),
    ):
        strides = dict(zip(STRIDES, (0, m * k, k, 1, 0, k * n, n, 1), strict=True))
        sizes = {"m": m, "n": n, "k": k, "bt0": 1, "bt1": 1, "l2_bytes": 1 << 20}
        none = dict.fromkeys(("a", "b", "c", "bias", "ws", "parts"), 0)
        launches = built.record(**none, **sizes, **strides, **MEASURED)
        assert len([x for x in launches if x.count]) == (2 if split else 1 if m and n else 0), (m, n, k)


def test_which_sizes_may_be_split_over_k() -> None:
    s, large = sympy.Symbol("s", integer=True, nonnegative=True), sympy.Integer(16384)
    assert may_split(s, s, s, F32, TILES) and may_split(s, sympy.Integer(32), large, F32, TILES)
    assert may_split(sympy.Integer(1), sympy.Integer(1), large, F32, TILES)
    assert not may_split(s, sympy.Integer(768), large, F32, TILES)
    assert not may_split(sympy.Integer(500), s, large, F32, TILES)
    assert not may_split(s, s, sympy.Integer(64), F32, TILES)


@pytest.mark.parametrize("elem", [F32, pytest.param(F64, marks=pytest.mark.slow), BF16])
def test_whole_right_sides_are_packed_in_pieces(elem: str) -> None:
    """Of rows and panels that fill none of them."""
    rng = np.random.default_rng(13)
    a = tensor(rng, (3, 2, 33, 150), elem)
    for shape in ((1, 2), (1, 1)):
        b = np.broadcast_to(tensor(rng, (*shape, 150, 1200), elem)[..., 3:1194], (3, 2, 150, 1191))
        for threads, seed in ((1, None), (2, 4), (3, 5)):
            check(run(a, b, packed=False, num_threads=threads, seed=seed), a, b)


@pytest.mark.skipif(TARGET.vector_bits < 512, reason="the facts are of a machine with vectors of 512 bits")
def test_b_that_tiles_could_pack_on_their_way_is_rarely_packed_before() -> None:
    """Packing it first costs its way through memory, which shallow products of a few row panels don't earn back."""
    rng = np.random.default_rng(11)
    for m, k, n, beforehand in ((39, 50, 2999, False), (50, 143, 9048, False), (128, 64, 8000, False), (1000, 8, 640, True)):
        a, b = tensor(rng, (1, 1, m, k)), tensor(rng, (1, 1, k, n))
        check(run(a, b, packed=False, machine=ZEN5, beforehand=beforehand), a, b)
    # For several blocks, as long as B stays in the third-level cache.
    a, b = tensor(rng, (1, 1, 2000, 100)), tensor(rng, (1, 1, 100, 400))
    for l3, beforehand in ((32 << 20, False), (512 << 10, True)):
        check(run(a, b, packed=False, l2_bytes=128 << 10, machine={**ZEN5, "l3_bytes": l3}, beforehand=beforehand), a, b)


def test_a_large_b_is_packed_before_past_slow_caches() -> None:
    """Where the third-level cache is as slow as memory, for many row panels; stores then pass the caches. A block alone of fewer
    packs it for itself, in short chunks of k that change no bit."""
    rng = np.random.default_rng(31)
    rows = 45 * TILES.rows(F32)
    a, b = tensor(rng, (1, 1, rows, 500)), tensor(rng, (1, 1, 500, 600))
    for l3_bytes_per_us in (30_000, 120_000):
        facts = {**_FMAS, "l3_bytes": 32 << 20, "l3_bytes_per_us": l3_bytes_per_us, "memory_bytes_per_us": 30_000}
        whole = run(a, b, packed=False, l2_bytes=256 << 10, machine=facts, beforehand=l3_bytes_per_us == 30_000)
        check(whole, a, b)
        for few in (20, rows // 4):
            part = run(a[..., :few, :], b, packed=False, l2_bytes=256 << 10, machine=facts, beforehand=False)
            np.testing.assert_array_equal(part, whole[..., :few, :])
    if TILES.target.fence:
        module = KernelModule(TILES.target)
        emit_pack_b_kernel(module, F32, TILES)
        text = module.text()
        assert "nontemporal" in text and text.count(f'"{TILES.target.fence}"') == 1


@pytest.mark.parametrize("elem", [BF16, I8])
def test_a_large_b_of_units_is_packed_past_slow_caches(elem: str) -> None:
    """Of whole panels and not, of units that are whole and not."""
    rng = np.random.default_rng(32)
    facts = {**_FMAS, "l3_bytes": 32 << 20, "l3_bytes_per_us": 30_000, "memory_bytes_per_us": 30_000}
    for m, n, k in ((700, 608, 400), (650, 611, 403)):
        a, b = tensor(rng, (1, 1, m, k), elem), tensor(rng, (1, 1, k, n), elem)
        got = run(a, b, packed=False, l2_bytes=16 << 10, machine=facts, beforehand=True)
        if elem == I8:
            np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))
        else:
            check(got, a, b)
    if TILES.target.fence:
        module = KernelModule(TILES.target)
        emit_pack_b_kernel(module, elem, TILES)
        assert "nontemporal" in module.text()


@pytest.mark.skipif(TARGET.vector_bits < 512, reason="the facts are of a machine with vectors of 512 bits")
def test_b_is_packed_before_for_many_rows_where_its_rows_crowd_few_sets_of_a_cache() -> None:
    """Tiles that pack it would take k in short chunks, for each of which rows of A are packed anew."""
    rng = np.random.default_rng(24)
    for m, stride, beforehand in ((450, 1024, True), (450, 1040, False), (300, 1024, False)):
        a, b = tensor(rng, (1, 1, m, 64)), tensor(rng, (1, 1, 64, stride))[..., :96]
        check(run(a, b, packed=False, l2_bytes=128 << 10, machine=ZEN5, beforehand=beforehand), a, b)


def test_b_of_bytes_is_packed_before_where_its_rows_crowd_few_sets_of_a_cache() -> None:
    """A panel takes half of a line, and finds none of what the one before has read."""
    rng = np.random.default_rng(12)
    a = tensor(rng, (1, 1, 20, 300), I8)
    for stride, beforehand in ((4096, True), (4160, False)):
        b = tensor(rng, (1, 1, 300, stride), I8)[..., :70]
        got = run(a, b, packed=False, l2_bytes=1 << 20, beforehand=beforehand)
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("elem", [F32, F64])
@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3"])
def test_tiles_that_pack_prefetch_each_line_once(name: str, elem: str) -> None:
    """Those of panels ask for one a second time, which of rows in place would be columns that were read before; tiles that don't
    span a panel do, too."""
    target = parse_target(name)
    module, spec = KernelModule(target), tile_spec(target)
    symbols = [emit_microkernel(module, elem, spec.rows(elem), spec, packing=packing) for packing in (False, True)]
    twice, once = (re.findall(r"llvm\.intr\.prefetch", module.functions[symbol].text()) for symbol in symbols)
    assert 0 < len(once) <= len(twice)
    assert (len(once) < len(twice)) == (spec.per_panel == 1)


@pytest.mark.parametrize("elem", [F32, F64])
def test_many_row_panels_share_what_they_prefetch(elem: str) -> None:
    """Their tiles ask for one line in a step of k, and first for those of a row of theirs, and keep sums in registers; those in the
    table are as high as nearly equal row panels are."""
    target = parse_target("x86-64-v4")
    spec = tile_spec(target)
    for packing in (False, True):
        module = KernelModule(target)
        emit_shared_table(module, elem, placed=elem, spec=spec, packing=packing)
        names = [x for x in module.functions if x.endswith("_shared")]
        high, least = spec.rows(elem), spec.rows(elem)
        for m in range((SHARING_PANELS - 1) * high + 1, 400):
            least = min(least, m // -(-m // high))
        assert {f"ukr_{elem}_{mr}_" for mr in range(least, high + 1)} == {"_".join(x.split("_")[:3]) + "_" for x in names}
        for name in names:
            first, then = 1 + spec.row_bytes(elem) // LINE_BYTES, 1
            assert len(re.findall(r"llvm\.intr\.prefetch", module.functions[name].text())) == first + then
            module.functions[name] = replace(module.functions[name], linkage=Linkage.EXPORTED)
        text = emit_assembly(lower_to_llvm_ir(module.text(), target), target)
        loops = [x for x in re.split(r"^\.LBB.*$", text, flags=re.MULTILINE) if len(re.findall("vfmadd", x)) >= least]
        assert len(loops) >= len(names)
        for loop in loops:
            assert not re.search(r"%[xyz]mm.*%rsp|%rsp.*%[xyz]mm", loop), "a spill"


@pytest.mark.parametrize("elem", [F32, F64])
def test_tiles_pack_what_belongs_to_b(elem: str) -> None:
    """Whichever row panel is first, its tiles read no column beyond B's, and sum as those of a B that is packed beforehand."""
    rng = np.random.default_rng(14)
    for i, (m, n, k) in enumerate(itertools.product((3, 5, 14, 15, 100), (1, 17, 33, 95), (1, 40))):
        around = np.full((1, 1, k, n + 9), np.nan, DTYPES[elem])
        b = around[..., 4 : n + 4]
        b[:] = tensor(rng, b.shape, elem)
        a = [tensor(rng, (1, 1, m, k), elem), tensor(rng, (1, 1, k, m), elem).swapaxes(2, 3)][i % 2]
        turned = np.ascontiguousarray(b.swapaxes(2, 3)).swapaxes(2, 3)
        got = run(a, b, packed=False, num_threads=1 + i % 2)
        check(got, a, b)
        if m > 12 or i % 2:  # fewer rows are streamed, unless they are columns
            np.testing.assert_array_equal(got, run(a, turned, packed=False))


@pytest.mark.parametrize("elem", [F32, F64])
def test_rows_of_b_that_share_sets_are_taken_in_short_chunks(elem: str) -> None:
    """Of k, which change no bit."""
    rng = np.random.default_rng(23)
    for m, n, k, stride in (
        (15, 500, 200, 512),
        (43, 1000, 130, 1024),
        (60, 250, 700, 256),
        (100, 400, 333, 500),
        (14, 500, 200, 512),
    ):
        a, b = tensor(rng, (1, 1, m, k), elem), tensor(rng, (1, 1, k, stride), elem)[..., :n]
        whole = run(a, b, packed=False, l2_bytes=64 << 20)
        check(whole, a, b)
        for l2_bytes in (64 << 10, 256 << 10):
            np.testing.assert_array_equal(run(a, b, packed=False, num_threads=2, l2_bytes=l2_bytes, machine=SLOW_CACHE), whole)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("elem", [F32, F64, BF16])
def test_chunks_of_k_do_not_change_bits(elem: str, packed: bool) -> None:
    """A small second-level cache cuts k, groups of panels and rows; what is added to waiting sums keeps its order."""
    rng = np.random.default_rng(11)
    sizes = [(m, 33 + 16 * (m % 5), k) for m in (1, 6, 7, 12, 13, 14, 15, 29, 61) for k in (512, 513, 700)]
    for i, (m, n, k) in enumerate([*sizes, (129, 330, 1025), (40, 257, 2049), (300, 32, 600)]):
        a_forms = [tensor(rng, (2, 1, m, k), elem), tensor(rng, (2, 1, k, m), elem).swapaxes(2, 3)]
        b_forms = [tensor(rng, (2, 1, n, k), elem).swapaxes(2, 3), tensor(rng, (1, 1, k, n), elem)]
        a, b = a_forms[i % 2], np.broadcast_to(b_forms[i // 2 % 2], (2, 1, k, n))
        whole = run(a, b, packed=packed, l2_bytes=64 << 20)
        check(whole, a, b)
        for threads, seed in ((1, None), (2, None), (3, i)):
            got = run(a, b, packed=packed, num_threads=threads, seed=seed, l2_bytes=128 << 10)
            np.testing.assert_array_equal(got, whole)


class Halves:
    """Panels packed as half of what they stand for: a source that makes chunks in scratch. Argument: address."""

    name, args, in_place = "_halves", (PTR,), False

    def matrix(self, fn: Fn, elem: str, args: Sequence[V], i0: V, i1: V) -> Sequence[V]:
        return args

    def chunk(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> V:
        columns = spec.panel(elem)
        panel = fn.gep(matrix[0], fn.add(fn.mul(c.n0, c.steps), fn.mul(c.first, columns)), elem)
        with fn.loop(0, fn.mul(c.units, columns), spec.lanes(elem)) as at:
            x = fn.load(fn.gep(panel, at.iv, elem), vec(elem, spec.lanes(elem)))
            fn.store(fn.add(x, x), fn.gep(c.scratch, at.iv, elem))
        return c.scratch

    def ahead(self, fn: Fn, elem: str, spec: TileSpec, matrix: Sequence[V], c: Chunk) -> tuple[V, V]:
        return c.scratch, fn.i64(0)


def test_other_sources_of_panels() -> None:
    module = KernelModule(TILES.target)
    host = TestHost(module, asked=["l2_bytes"])
    p = {x: host.size(x) for x in ("m", "n", "k", "c", "l2_bytes")}
    a, b, fn = host.pointer("a"), host.pointer("b"), host.fn
    eargs = fn.alloca(4, I64)
    for i, x in enumerate(("c", "m", "n", "c")):
        fn.store(p[x], fn.gep(eargs, i, I64))
    epilogue = fn.address_of(emit_epilogue(module, F32, TILES.lanes(F32), bias_relu=False))
    product, zero, one = Matmul(F32, TILES), fn.i64(0), fn.i64(1)
    product.emit_kernels_from(module, Halves())
    x = Operands(a, b, p["m"], p["n"], p["k"], [zero, zero, p["k"], one], [], [one, one], epilogue, eargs)
    product.launch_from(host, x, Halves(), [b])
    built, rng = host.build(), np.random.default_rng(12)
    for i, (m, n, k) in enumerate([(1, 33, 700), (14, 64, 5), (31, 100, 700), (40, 257, 2049), (5, 7, 0)]):
        left, right = tensor(rng, (1, 1, m, k)), tensor(rng, (1, 1, k, n))
        c = aligned(max(1, m * n) * 4).view(np.float32)
        packed = pack_b(right / 2, False, TILES.panel(F32))
        built(num_threads=1 + i % 2, seed=i, a=left, b=packed, c=c, m=m, n=n, k=k, l2_bytes=128 << 10)
        check(c[: m * n].reshape(1, 1, m, n), left, right)


@pytest.mark.parametrize("packed", [True, False])
def test_what_is_measured_changes_no_bit(packed: bool) -> None:
    """Only what bf16 dot products and tiles are worth may choose between orders of sums."""
    rng = np.random.default_rng(21)
    timed = [name for name in MACHINE_RANGES if MACHINE[name] > MACHINE["bf16_percent"] and name != "tiles_percent"]
    least, most = ({name: MACHINE_RANGES[name][end] for name in timed} for end in (0, 1))
    slow = least | {"wake_ns": 2000, "fma256_per_us": 40_000, "fma512_per_us": 40_000}
    near = most | {"ahead_few": 256, "ahead_one": 256}
    sizes = ((1, 70, 300), (3, 700, 65), (6, 33, 1000), (14, 257, 40), (15, 96, 700), (130, 100, 2100), (0, 5, 3), (2, 3, 0))
    for m, n, k in sizes:
        for elem in (F32, BF16):
            a, b = tensor(rng, (1, 2, m, k), elem), tensor(rng, (1, 2, k, n), elem)
            runs = [
                run(a, b, packed=packed, num_threads=2, seed=i, l2_bytes=128 << 10, machine=facts)
                for i, facts in enumerate((least, most, slow, near))
            ]
            check(runs[0], a, b)
            assert all(x.tobytes() == runs[0].tobytes() for x in runs)


def test_pack_b_layout() -> None:
    rng = np.random.default_rng(8)
    for k, n in ((5, 70), (3, 32), (1, 1), (4, 0), (0, 5), (64, 31)):
        w = tensor(rng, (2, k, n))
        panels = -(-n // 32)
        padded = np.zeros((2, k, panels * 32), np.float32)
        padded[..., :n] = w
        want = padded.reshape(2, k, panels, 32).swapaxes(1, 2)
        np.testing.assert_array_equal(pack_b(w, False, 32), want)
        np.testing.assert_array_equal(pack_b(np.ascontiguousarray(w.swapaxes(1, 2)), True, 32), want)


def test_all_targets_read_the_same_panels() -> None:
    for target in ("x86-64-v3", "x86-64-v4", "x86-64-v4+bf16", "aarch64", "aarch64+bf16"):
        spec = tile_spec(parse_target(target))
        assert [spec.panel(elem) for elem in (F32, F64, BF16)] == [32, 16, 32]
        assert workspace_bytes(2, 33, 5, BF16, spec) == 2 * 2 * 3 * 32 * 4
        for elem in (F32, F64, BF16):
            assert spec.columns(elem, 1) == spec.panel(elem) and spec.panel(elem) % spec.nr(elem) == 0
            assert spec.tile_elements(elem) == spec.rows(elem) * spec.nr(elem)


def test_workspace_bytes_of_symbols() -> None:
    b, n, k = sympy.symbols("b n k", integer=True, nonnegative=True)
    size = workspace_bytes(b, n, k, F32, TILES)
    for values in ((1, 33, 5), (2, 32, 7), (3, 0, 4)):
        assert int(size.subs(dict(zip((b, n, k), values, strict=True)))) == workspace_bytes(*values, F32, TILES)
