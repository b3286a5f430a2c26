"""Operators that few programs call: antialiased and fractional resizing, bins, segments, spectra; compiled, at several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import dhlo
from tests.frontend.helpers import export
from tests.frontend.test_more_ops import compiled

AUTO = torch.export.Dim.AUTO
rn = torch.randn


def _lengths(*counts: int) -> torch.Tensor:
    return torch.tensor(counts)


def _signal(x: torch.Tensor, *args: Any, center: bool = True, length: int | None = None, **kwargs: Any) -> torch.Tensor:
    spectra = torch.stft(x, *args, center=center, return_complex=True, **kwargs)
    return torch.istft(spectra, *args, center=center, length=length, **kwargs)


def _antialiased(x: torch.Tensor) -> Any:
    return (
        F.interpolate(x, (5, 17), mode="bilinear", antialias=True),
        F.interpolate(x, (4, 3), mode="bicubic", antialias=True, align_corners=True),
        F.interpolate(x, scale_factor=(0.3, 1.4), mode="bicubic", antialias=True),
    )


def _fractional(x: torch.Tensor, s: torch.Tensor) -> Any:
    return F.fractional_max_pool3d(x, 2, (2, 1, 3), return_indices=True, _random_samples=s)


def _histogram(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (
        tuple(torch.histogram(x, 5)),
        tuple(torch.histogram(x, 4, range=(-1.0, 1.0), weight=w, density=True)),
        tuple(torch.histogram(x, torch.tensor([-2.0, -0.5, 0.0, 3.0]), weight=w)),
    )


def _histogramdd(x: torch.Tensor, w: torch.Tensor) -> Any:
    return tuple(torch.histogramdd(x, [3, 2], range=[-1.0, 1.0, -2.0, 2.0], weight=w)), tuple(torch.histogramdd(x, [2, 4]))


def _segments(x: torch.Tensor, n: torch.Tensor) -> Any:
    return (
        *(torch.segment_reduce(x, how, lengths=n) for how in ("sum", "mean", "max", "min", "prod")),
        torch.segment_reduce(x, "mean", offsets=F.pad(n.cumsum(0), (1, 0)), initial=2.0),
    )


CASES: dict[str, Any] = {
    "antialiased": (_antialiased, [[rn(2, 3, 9, 31)], [rn(1, 1, 64, 5)], [rn(1, 3, 100, 300)]]),
    "fractional": (
        lambda x, s: F.fractional_max_pool2d(x, (3, 2), (2, 4), return_indices=True, _random_samples=s),
        [[rn(2, 3, 9, 7), torch.rand(2, 3, 2)], [rn(1, 5, 4, 5), torch.rand(1, 5, 2)], [rn(3, 4, 60, 71), torch.rand(3, 4, 2)]],
    ),
    "fractional, no batch": (_fractional, [[rn(4, 5, 5, 6), torch.rand(2, 4, 3)], [rn(4, 5, 5, 6), torch.rand(2, 4, 3)]]),
    "segments": (
        _segments,
        [
            [rn(9, 3), _lengths(3, 0, 4, 2)],
            [rn(1, 5), _lengths(0, 1)],
            [rn(0, 4), _lengths(0, 0)],
            [rn(500, 7), _lengths(100, 399, 1)],
        ],
    ),
    "segments of rows": (
        lambda x, n: torch.segment_reduce(x, "max", lengths=n, axis=1),
        [[rn(2, 5), torch.tensor([[2, 3, 0], [0, 4, 1]])], [rn(3, 9), torch.tensor([[9, 0]] * 3)]],
    ),
    "spectra": (
        lambda x: (
            torch.stft(x, 8, 3, 6, torch.hann_window(6), return_complex=True),
            torch.stft(x, 5, center=False, normalized=True, onesided=False, return_complex=True),
            torch.stft(torch.complex(x, -x), 5, center=False),  # of complex signals, complex by default
            torch.fft.hfft(x, norm="ortho"),
            torch.fft.ihfft2(x, norm="ortho"),
            torch.fft.hfftn(x, s=(4, 9)),
        ),
        [[rn(2, 20)], [rn(1, 9)], [rn(3, 301)]],
    ),
    "frequencies": (
        lambda x: (
            torch.fft.fftfreq(12) + x[:, :1],
            torch.fft.fftfreq(5, d=0.3, dtype=torch.float64) * x[:, :1],
            torch.fft.rfftfreq(9, d=2) - x[:, :1],
            torch.fft.rfftfreq(8) + x[:, :1],
        ),
        [[rn(2, 20)], [rn(1, 1)], [rn(3, 301)]],
    ),
    "signals of spectra": (
        lambda x: (
            _signal(x, 8, 3, 6, torch.hann_window(6)),
            _signal(x, 6, normalized=True, onesided=False),
            _signal(x, 8, 2, center=False),
            torch.view_as_real(torch.istft(torch.stft(x, 6, 2, onesided=False, return_complex=True), 6, 2, return_complex=True)),
        ),
        [[rn(2, 20)], [rn(4, 13)], [rn(3, 301)]],
    ),
    "products of many batch dims": (
        lambda a, b: (a.permute(3, 0, 2, 1, 4) @ b.permute(3, 0, 2, 4, 1), b.permute(2, 3, 0, 1, 4) @ a.permute(2, 3, 0, 4, 1)),
        [[rn(2, 3, 4, 2, 5), rn(2, 6, 4, 2, 5)], [rn(3, 2, 2, 3, 7), rn(3, 5, 2, 3, 7)]],
    ),
    "distances": (
        lambda x: (F.pdist(x), F.pdist(x, 1.0)),
        [[rn(5, 3)], [rn(90, 7)], [rn(3, 1)], [rn(6, 0)]],
    ),
    "under a line": (
        lambda y, x: (torch.trapezoid(y, x), torch.trapezoid(y, dx=0.5, dim=0), torch.trapz(y, dx=2.0)),
        [[rn(3, 5), rn(3, 5)], [rn(3, 1), rn(3, 1)], [rn(2, 0), rn(2, 0)], [rn(40, 300), rn(40, 300)]],
    ),
    "under a shared line": (
        lambda y, x: torch.trapezoid(y, x, dim=0),
        [[rn(4, 5), rn(4)], [rn(300, 1), rn(300)]],
    ),
    "ranges of integers between fractions": (
        lambda x: (
            *(torch.arange(2.1, -2.9, -1.0, dtype=d) for d in (torch.int64, torch.int32)),
            *(torch.linspace(4.3, 1, n, dtype=torch.int64) for n in (50, 1)),
            torch.logspace(0.7, 3.9, 4, dtype=torch.int64),
            torch.arange(x.shape[0]),
            torch.arange(0, 2**60 + 1, 2**58),
        ),
        [[rn(5)], [rn(1)], [rn(33)]],
    ),
    "attention that broadcasts": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k),
        [[rn(4, 3, 8), rn(2, 4, 6, 8)], [rn(5, 1, 8), rn(3, 5, 70, 8)]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    fn, sets = CASES[name]
    compiled(fn, *sets)


def test_kernels_of_varying_size() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
        return F.conv_transpose3d(x, w, None, (2, 1, 1), (1, 0, 1), (1, 0, 0)), F.conv3d(x, v, None, (1, 2, 1), 1, (1, 1, 2), 2)

    model = dhlo.compile(export(fn, (rn(2, 4, 8, 6, 9), rn(4, 3, 2, 3, 4), rn(6, 2, 2, 3, 4))))
    for args in (
        (rn(2, 4, 8, 6, 9), rn(4, 3, 2, 3, 4), rn(6, 2, 2, 3, 4)),
        (rn(1, 6, 5, 7, 9), rn(6, 2, 4, 3, 2), rn(4, 3, 5, 2, 3)),
        (rn(1, 4, 5, 9, 7), rn(4, 3, 2, 2, 2), rn(2, 2, 3, 3, 3)),
    ):
        for got, want in zip(model(*args), fn(*args), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    plan = model.plan([[1, 4, 21, 23, 25], [4, 3, 21, 23, 25], [4, 2, 21, 23, 13]])
    assert plan["arena_bytes"] < 100 << 20  # one row of the kernel at a time: all windows would take gigabytes


@pytest.mark.parametrize(
    ("stride", "padding", "output_padding", "dilation", "groups"),
    [
        ((1, 1), (0, 2), (0, 0), (1, 1), 1),
        ((2, 3), (1, 0), (1, 2), (1, 1), 1),
        ((4, 2), (0, 1), (1, 0), (2, 2), 2),
        ((3, 2), (2, 0), (0, 0), (2, 3), 1),
        ((6, 1), (3, 1), (0, 1), (4, 2), 2),
    ],
)
def test_transposed_kernels_of_varying_size(
    stride: tuple[int, int], padding: tuple[int, int], output_padding: tuple[int, int], dilation: tuple[int, int], groups: int
) -> None:
    """Strides and dilations with and without common factors; a NaN or infinity reaches what it is multiplied into, no more."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, w, None, stride, padding, output_padding, groups, dilation)

    sizes = (
        ((2, 4, 5, 6), (4, 3, 4, 3)),
        ((1, 6, 7, 4), (6, 2, 7, 8)),
        ((3, 2, 9, 8), (2, 5, 5, 2)),
        ((1, 2, 12, 31), (2, 1, 2, 17)),
    )
    model = dhlo.compile(export(fn, tuple(rn(*s) for s in sizes[0])))
    for shapes in sizes:
        x, w = (rn(*s) for s in shapes)
        torch.testing.assert_close(model(x, w), fn(x, w), rtol=1e-4, atol=1e-4)
        x[0, 1, 2, 3], x[0, 0, 1, 0] = torch.nan, torch.inf
        torch.testing.assert_close(model(x, w), fn(x, w), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_large_transposed_kernels_of_varying_size() -> None:
    """What strides skip isn't computed, and no row of the kernel is looked up for all outputs: that took minutes."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose3d(x, w, None, 2, 1, 1)

    model = dhlo.compile(export(fn, (rn(1, 2, 3, 4, 5), rn(2, 2, 3, 4, 5))))
    x, w = rn(1, 3, 17, 14, 16), rn(3, 7, 13, 11, 12)
    got, want = model(x, w), fn(x, w)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_split_at_positions_that_a_tensor_holds() -> None:
    def fn(x: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        return [part * 2 for part in torch.tensor_split(x, at, 1)]

    model = dhlo.compile(export(fn, (rn(4, 5, 6), torch.tensor([2, 1, 3]))))
    for x, at in ((rn(1, 9, 3), [0, 9, 4]), (rn(2, 7, 3), [-3, 6, 20]), (rn(0, 3, 2), [1, 2, 3]), (rn(2, 0, 2), [1, 2, 3])):
        for got, want in zip(model(x, torch.tensor(at)), fn(x, torch.tensor(at)), strict=True):
            assert torch.equal(got, want)


def test_parts_whose_place_in_memory_is_asked_for() -> None:
    def fn(x: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        lo, hi = at.tolist()
        parts = [x[lo:hi], x[:, lo], x.select(1, hi), x[5 - hi :], x[:, 1:][lo:]]
        for part in parts:
            torch._check(part.storage_offset() <= 1000)
        return [part * 2 for part in parts]

    model = dhlo.compile(export(fn, (rn(9, 7), torch.tensor([2, 5])), ({0: AUTO, 1: AUTO}, None)))
    for x, at in ((rn(12, 8), [0, 7]), (rn(3, 9), [-2, 2]), (rn(4, 9), [3, 1])):
        for got, want in zip(model(x, torch.tensor(at)), fn(x, torch.tensor(at)), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: (x.unfold(0, 1, 1), x.unfold(0, 0, 1)), [rn(())]),
        (lambda x: F.batch_norm(x, x, x), [rn(0)]),
        (lambda x: (x.clone().resize_(5, 2), (x + 1).resize_as_(x[:1])), [rn(4, 5)]),
        (torch.trace, [rn(1, 3)]),
        (torch.view_as_complex, [rn(5, 2)]),
        *((_fractional, [x, torch.rand(2, 3, 3)]) for x in (rn(2, 3, 5, 6, 7), rn(2, 3, 19, 12, 30))),
        *((_histogram, [x, torch.rand_like(x)]) for x in (rn(3, 5), torch.full((2, 1), 0.25), rn(0, 3), rn(40, 50))),
        *((_histogramdd, [rn(n, 2), torch.rand(n)]) for n in (0, 1, 7, 500)),
    ],
)
def test_of_fixed_size(fn: Any, args: list[torch.Tensor]) -> None:
    model = dhlo.compile(export(fn, args, tuple(None for _ in args)))
    for got, want in zip(tree_leaves(model(*args)), tree_leaves(fn(*args)), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


def test_limited_rows_change_the_table() -> None:
    def fn(table: torch.Tensor, index: torch.Tensor) -> Any:
        return F.embedding(index, table, max_norm=1.0), F.embedding_bag(index, table, max_norm=0.5, norm_type=1.0)

    sets = [
        (rn(5, 3), torch.tensor([[2, 1], [2, 0]])),
        (rn(1, 7), torch.zeros(3, 1, dtype=torch.int64)),
        (rn(100, 64), torch.randint(0, 100, (20, 31))),
    ]
    model = dhlo.compile(export(fn, sets[0]))
    for table, index in sets:
        own = table.clone()
        torch.testing.assert_close(model(own, index), fn(table, index))
        torch.testing.assert_close(own, table)


def test_trace_of_nothing() -> None:
    """A size that the exported program takes for 2 or more is no reason to refuse 0."""
    model = dhlo.compile(export(torch.trace, [rn(3, 4)]))
    assert model(rn(5, 0)) == 0 and model(rn(0, 3)) == 0


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="this torch has no such options")
def test_linear_cross_entropy_in_chunks() -> None:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)

    def fn(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Any:
        return [F.linear_cross_entropy(x, w, y, reduction=r, options=options) for r in ("mean", "sum", "none")]

    args = [rn(5, 3), rn(4, 3), torch.tensor([0, 3, -100, 2, 1])]
    model = dhlo.compile(export(fn, args, (None, {0: torch.export.Dim.AUTO}, None)))
    for w in (args[1], rn(70, 3)):
        torch.testing.assert_close(model(args[0], w, args[2]), fn(args[0], w, args[2]))


def test_decompositions_whose_sizes_data_decide_keep_their_symbols_apart() -> None:
    """Two of them in one program, beside counts of the program's own (torch.export fixes the sizes of what is combined)."""

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return torch.combinations(x, 1, True), z.nonzero(), torch.combinations(y, 1).t().exp(), z[z > 0]

    m = dhlo.compile(export(f, (rn(3), rn(5), rn(4)), ({}, {}, {0: AUTO})))
    for n in (4, 1, 9, 0):
        given = rn(3), rn(5), rn(n)
        for got, want in zip(m(*given), f(*given), strict=True):
            torch.testing.assert_close(got, want)
