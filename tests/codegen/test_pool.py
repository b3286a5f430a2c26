"""Pooling kernels against PyTorch: windows, padding, ceil mode, divisors, indices, NaN, adaptive sizes, types."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F

from dhlo.codegen.families.pool.adaptive import AdaptivePool
from dhlo.codegen.families.pool.pool import Pool
from dhlo.codegen.kernel_ir.builder import F32, F64, KernelModule
from tests.codegen.harness import Launch, Program, TestHost
from tests.targets import TARGET
from tests.unreadable import check_beside_unreadable

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, F32: torch.float32, F64: torch.float64}
SIZES = {
    1: [(2, 3, 9), (1, 1, 1), (1, 2, 70), (0, 3, 8)],
    2: [(2, 3, 9, 7), (1, 2, 33, 50), (1, 1, 1, 1), (1, 2, 4, 37), (0, 3, 8, 8)],
    3: [(1, 2, 5, 6, 19), (2, 1, 3, 3, 3)],
}


@functools.cache
def build(pool: Pool | AdaptivePool, rank: int) -> Program:
    module = KernelModule(TARGET)
    pool.emit_kernels(module)
    host = TestHost(module)
    pointers = {"x": host.pointer("x"), "out": host.pointer("out"), "indices": host.pointer("indices")}
    planes, spatial = host.size("planes"), [host.size(f"n{i}") for i in range(rank)]
    outs = [host.size(f"o{i}") for i in range(rank)]
    pool.emit_launch(host, **pointers, planes=planes, spatial=spatial, out_spatial=outs)
    return host.build()


def arguments(pool: Pool | AdaptivePool, x: torch.Tensor, outs: list[int]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Output (filled with 77) and indices (-7), and the host function's parameters."""
    out = torch.full((*x.shape[:2], *outs), 77, dtype=x.dtype)
    indices = torch.full(out.shape, -7, dtype=torch.int64)
    params: dict[str, Any] = {"x": x.data_ptr(), "out": out.data_ptr(), "indices": indices.data_ptr()}
    params |= {"planes": x.shape[0] * x.shape[1], **{f"n{i}": n for i, n in enumerate(x.shape[2:])}}
    params |= {f"o{i}": n for i, n in enumerate(outs)}
    return [out, indices], params


def run(pool: Pool | AdaptivePool, x: torch.Tensor, outs: list[int], seed: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and indices."""
    (out, indices), params = arguments(pool, x, outs)
    build(pool, x.ndim - 2)(num_threads=2, seed=seed, **params)
    return out, indices


def launches_of(pool: Pool | AdaptivePool, x: torch.Tensor, outs: list[int]) -> tuple[list[torch.Tensor], list[Launch]]:
    """The launches of a call, to be timed, and the tensors that they write."""
    tensors, params = arguments(pool, x, outs)
    return tensors, build(pool, x.ndim - 2).record(num_threads=2, **params)


def data(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def close(out: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(out, expected, equal_nan=True)


def max_pool(pool: Pool, x: torch.Tensor) -> Any:
    fn = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3]
    return fn(x, pool.kernel, pool.stride, pool.padding, pool.dilation, pool.ceil_mode, return_indices=True)


MAX = [
    Pool("max", (3, 3), (2, 2), (1, 1), (1, 1), indices=True),
    Pool("max", (2, 2), (2, 2), (0, 0), (1, 1), ceil_mode=True, indices=True),
    Pool("max", (3, 4), (1, 3), (1, 2), (2, 1), ceil_mode=True, indices=True),
    Pool("max", (5, 3), (1, 1), (2, 1), (1, 3), indices=True),
    Pool("max", (7, 7), (1, 1), (3, 3), (1, 1), indices=True),
    Pool("max", (4,), (1,), (2,), (1,), indices=True),
    Pool("max", (3,), (5,), (1,), (2,), ceil_mode=True, indices=True),
    Pool("max", (2, 3, 3), (1, 2, 2), (1, 1, 0), (1, 1, 1), indices=True),
]


def fits(pool: Pool, shape: tuple[int, ...]) -> bool:
    return min(pool.output_size([*shape[2:]])) >= 1


@pytest.mark.parametrize("pool", MAX, ids=lambda p: p.name)
def test_max_pool_matches_pytorch(pool: Pool) -> None:
    """Values and indices, with NaN and -inf among the inputs."""
    for shape in SIZES[len(pool.kernel)]:
        if not fits(pool, shape):
            continue
        x = data(shape, torch.float32)
        flat = x.view(-1)
        flat[3::29], flat[5::31] = float("nan"), float("-inf")
        if shape[0] == 2:
            x[0] = float("-inf")
        values, indices = max_pool(pool, x) if x.numel() else (x.new_zeros(0), x.new_zeros(0, dtype=torch.int64))
        for seed in (None, 1):
            out, where = run(pool, x, pool.output_size(shape[2:]), seed)
            if x.numel():
                close(out, values)
                assert (where == indices).all()
            out, where = run(replace(pool, indices=False), x, pool.output_size(shape[2:]), seed)
            if x.numel():
                close(out, values)
            assert (where == -7).all()


INTEGERS = {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}


@pytest.mark.parametrize("elem", [*INTEGERS, "unsigned"])
@pytest.mark.parametrize("pool", [replace(p, indices=False) for p in MAX if len(p.kernel) > 1], ids=lambda p: p.name)
def test_maxima_of_integers(pool: Pool, elem: str) -> None:
    """Of the least and largest, too; rows are around one and two vectors of bytes."""
    dtype = INTEGERS.get(elem, torch.uint8)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    pool = replace(pool, elem="i8" if elem == "unsigned" else elem, unsigned=elem == "unsigned")
    wide = [(1, 2, 6, n) for n in (31, 32, 63, 64, 65, 127, 128, 129, 300)] if len(pool.kernel) == 2 else []
    for shape in [*SIZES[len(pool.kernel)], *wide]:
        if not fits(pool, shape):
            continue
        x = torch.randint(least, most, shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
        if x.numel():
            x.view(-1)[::7], x.view(-1)[3::5] = least, most
            x[:, 0] = least
        for seed in (None, 1):
            out, _ = run(pool, x, pool.output_size(shape[2:]), seed)
            if x.numel():
                assert torch.equal(out, max_pool(pool, x)[0])


def test_rows_longer_than_a_block() -> None:
    """A row of outputs is computed in blocks of columns; the windows of neighbours overlap."""
    for kernel, stride in ((5, 1), (9, 2), (40, 3), (7, 6)):
        pool = Pool("max", (2, kernel), (1, stride), (1, kernel // 2), (1, 1))
        for n in (4096 * stride, 4096 * stride + 37, 9001):
            x = data((2, 1, 3, n), torch.float32)
            out, _ = run(pool, x, pool.output_size(x.shape[2:]))
            close(out, max_pool(pool, x)[0])


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(2, 100_000_000, 1), (5000, 5000, 1), (2, 3, 5000), (6000, 1, 1), (4097, 7, 1)]
)
def test_scratch_is_bounded(kernel: int, stride: int, dilation: int) -> None:
    """However far windows reach, and lie from one another."""
    for elem in (F32, F64):
        pool = Pool("max", (2, kernel), (1, stride), (0, 0), (1, dilation), elem=elem)
        x = data((1, 2, 3, 12_345), TYPES[elem])
        tensors, launches = launches_of(pool, x, pool.output_size(x.shape[2:]))
        assert all(launch.scratch <= 1 << 17 for launch in launches)
        out, _ = run(pool, x, pool.output_size(x.shape[2:]))
        close(out, max_pool(pool, x)[0])


@pytest.mark.parametrize("elem", ["i8", F32])
def test_memory_beside_the_image_is_not_read(elem: str) -> None:
    pool = Pool("max", (3, 3), (2, 2), (1, 1), (1, 1), elem=elem)
    for n in (1, 5, 17, 64, 65, 130):
        x = data((1, 2, 5, n), torch.float64).mul(40).to({**TYPES, **INTEGERS}[elem])
        outs = pool.output_size(x.shape[2:])
        check_beside_unreadable(lambda x, outs=outs: run(pool, x, outs)[0], x)


AVG = [
    Pool("avg", (3, 3), (2, 2), (1, 1), (1, 1)),
    Pool("avg", (3, 3), (2, 2), (1, 1), (1, 1), ceil_mode=True, count_include_pad=False),
    Pool("avg", (2, 3), (3, 1), (1, 1), (1, 1), ceil_mode=True),
    Pool("avg", (3, 2), (1, 4), (0, 1), (1, 1), divisor_override=5),
    Pool("avg", (6, 7), (1, 2), (3, 2), (1, 1), count_include_pad=False),
    Pool("avg", (4,), (2,), (1,), (1,), ceil_mode=True),
    Pool("avg", (2, 3, 2), (2, 1, 1), (1, 1, 1), (1, 1, 1), ceil_mode=True, count_include_pad=False),
]


@pytest.mark.parametrize("elem", [F32, F64, "bf16", "f16"])
@pytest.mark.parametrize("pool", AVG, ids=lambda p: p.name)
def test_avg_pool_matches_pytorch(pool: Pool, elem: str) -> None:
    pool = replace(pool, elem=elem)
    for shape in SIZES[len(pool.kernel)]:
        if not fits(pool, shape) or shape[0] == 0:
            continue
        x = data(shape, TYPES[elem])
        wide = x.double() if elem == F64 else x.float()
        if len(pool.kernel) == 1:
            expected = F.avg_pool1d(wide, pool.kernel, pool.stride, pool.padding, pool.ceil_mode, pool.count_include_pad)
        else:
            fn = F.avg_pool2d if len(pool.kernel) == 2 else F.avg_pool3d
            expected = fn(
                wide,
                pool.kernel,
                pool.stride,
                pool.padding,
                pool.ceil_mode,
                pool.count_include_pad,
                pool.divisor_override,
            )
        close(run(pool, x, pool.output_size(shape[2:]), 2)[0], expected.to(x.dtype))


@pytest.mark.parametrize("elem", ["bf16", "f16", F64])
def test_max_pool_of_other_types(elem: str) -> None:
    for pool in (replace(MAX[0], elem=elem), replace(MAX[2], elem=elem), replace(MAX[5], elem=elem)):
        shape = SIZES[len(pool.kernel)][0]
        x = data(shape, TYPES[elem])
        values, indices = max_pool(pool, x)
        out, where = run(pool, x, pool.output_size(shape[2:]))
        close(out, values)
        assert (where == indices).all()


@pytest.mark.parametrize(
    "shape,outs",
    [
        ((2, 3, 7, 7), (1, 1)),
        ((1, 2, 33, 50), (7, 5)),
        ((1, 2, 9, 40), (9, 1)),
        ((1, 1, 3, 5), (6, 11)),
        ((2, 3, 70), (4,)),
        ((1, 2, 4, 5, 37), (1, 1, 1)),
        ((1, 2, 4, 5, 37), (2, 5, 3)),
        ((0, 2, 5, 5), (2, 2)),
        ((1, 2, 5, 5), (0, 2)),
        ((1, 2, 5, 5), (2, 0)),
        ((2, 3, 500), (50,)),  # windows of 10 columns, read by vectors
        ((1, 2, 1600), (7,)),
        ((1, 3, 40, 224), (20, 112)),  # windows of 2, a vector of them at a time
        ((1, 2, 33, 47), (16, 17)),
        ((1, 2, 2, 5), (3, 40)),
        ((1, 2, 100), (99,)),
        ((2, 1, 3, 9, 100), (2, 4, 16)),
    ],
)
def test_adaptive_pools_match_pytorch(shape: tuple[int, ...], outs: tuple[int, ...]) -> None:
    rank = len(outs) - 1
    avg = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank]
    most = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[rank]
    for elem in (F32, F64, "bf16"):
        x = data(shape, TYPES[elem])
        wide = x.float() if elem == "bf16" else x
        close(run(AdaptivePool("avg", elem=elem), x, list(outs), 1)[0], avg(wide, outs).to(x.dtype))
        if x.numel() and min(outs):
            if shape[0] == 2:
                x.view(-1)[::9] = float("nan")
            x[0, 0] = float("-inf")
            values, indices = most(x, outs, return_indices=True)
            out, where = run(AdaptivePool("max", True, elem), x, list(outs))
            close(out, values)
            assert (where == indices).all()
            close(run(AdaptivePool("max", False, elem), x, list(outs))[0], values)


def test_output_size_takes_expressions() -> None:
    n = sympy.Symbol("n", integer=True, positive=True)
    pool = Pool("max", (2,), (2,), (0,), (1,), ceil_mode=True)
    assert pool.output_size([7]) == [4]
    assert pool.output_size([n])[0].subs(n, 7) == 4
    assert replace(pool, ceil_mode=False).output_size([n])[0].subs(n, 7) == 3


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="kind"):
        Pool("avg", (2,), (2,), (0,), (1,), indices=True)
    with pytest.raises(ValueError, match="entries"):
        Pool("max", (2, 2), (2,), (0,), (1,))
