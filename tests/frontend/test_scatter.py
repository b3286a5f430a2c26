"""Writes by index whose places, source and start are computed by the kernel that writes: every size beside eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import dhlo
from tests.frontend.helpers import export

SIZES = [0, 1, 2, 7, 15, 16, 17, 33, 1030]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def _values(*shape: int, dtype: torch.dtype) -> Tensor:
    """Numbers whose sums are exact in any order."""
    return torch.randint(0, 2 if dtype in (torch.bool, torch.bfloat16) else 5, shape).to(dtype)


def _compare(f: Callable[..., Tensor], sets: list[tuple[Tensor, ...]], dims: tuple[dict[int, Dim], ...] | None = None) -> None:
    """One program for all sizes, exactly what eager gives. The first set is the example."""
    model = dhlo.compile(export(f, sets[0]) if dims is None else torch.export.export(_Module(f), sets[0], dynamic_shapes=(dims,)))
    for args in sets:
        torch.testing.assert_close(model(*args), f(*args), rtol=0, atol=0, equal_nan=True)


class _Module(torch.nn.Module):
    def __init__(self, f: Callable[..., Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Tensor) -> Tensor:
        return self.f(*args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_adds_along_a_dim(dtype: torch.dtype, dim: int) -> None:
    def case(rows: int, columns: int, places: int) -> tuple[Tensor, ...]:
        shape = (places, columns) if dim == 0 else (rows, places)
        most = rows if dim == 0 else columns
        index = torch.randint(0, max(most, 1), shape if most else (0, 0))
        return _values(rows, columns, dtype=dtype), index, _values(*index.shape, dtype=dtype)

    sets = [case(3, 5, 4), *(case(4, n, n + 1) for n in SIZES), *(case(n, 19, 17) for n in SIZES), case(2, 3, 600)]
    _compare(lambda x, i, s: x.scatter_add(dim, i, s), sets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool], ids=str)
def test_sets_places_that_are_named_once(dtype: torch.dtype) -> None:
    def case(rows: int, columns: int) -> tuple[Tensor, ...]:
        index = torch.stack([torch.randperm(columns) for _ in range(rows)]) if rows else torch.zeros(0, columns, dtype=torch.int64)
        return _values(rows, columns, dtype=dtype), index, _values(rows, columns, dtype=dtype)

    _compare(lambda x, i, s: x.scatter(1, i, s), [case(3, 5), *(case(3, n) for n in SIZES), case(1, 17), case(0, 16)])
    _compare(lambda x, i, s: x.scatter(1, i, 1), [case(3, 5), *(case(3, n) for n in SIZES)])


@pytest.mark.parametrize("how", ["sum", "amax", "amin", "prod"])
def test_indices_that_are_repeated_along_rows(how: str) -> None:
    """As graphs have them: vectors run along the rows, which no index looks up."""

    def f(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        return x.scatter_reduce(0, i[:, None].expand_as(s), s, how)

    def case(n: int, width: int, edges: int) -> tuple[Tensor, ...]:
        s = _values(edges, width, dtype=torch.float32)
        s[:1, :1] = torch.nan if how == "amax" else torch.inf
        return _values(n, width, dtype=torch.float32), torch.randint(0, n, (edges,)), s

    width = Dim("width", min=0)
    dims: tuple[dict[int, Dim], ...] = ({0: Dim("nodes"), 1: width}, {0: (edges := Dim("edges", min=0))}, {0: edges, 1: width})
    _compare(f, [case(5, 8, 7), *(case(6, n, 9) for n in SIZES), *(case(6, 18, n) for n in SIZES)], dims)


def test_adds_rows_that_are_computed() -> None:
    def f(table: Tensor, i: Tensor, j: Tensor, scale: Tensor) -> Tensor:
        return torch.zeros_like(table).index_add(0, j, table[i] * scale[:, None])

    def case(n: int, width: int, edges: int) -> tuple[Tensor, ...]:
        index = [torch.randint(0, n, (edges,)) for _ in range(2)]
        return _values(n, width, dtype=torch.float32), *index, _values(edges, dtype=torch.float32)

    _compare(f, [case(5, 8, 7), *(case(6, n, 9) for n in SIZES), *(case(6, 18, n) for n in SIZES)])


def test_few_places_in_a_row() -> None:
    """No vector runs along these, whatever form their source has."""

    def f(x: Tensor, i: Tensor, j: Tensor, s: Tensor) -> Tensor:
        return x.index_put((i, j), torch.where(i > 1, s[j], -s[j]), accumulate=True)

    def case(rows: int, columns: int) -> tuple[Tensor, ...]:
        i, j = (torch.randint(0, n, (rows, 5)) for n in (4, columns))
        return _values(4, columns, dtype=torch.float32), i, j, _values(columns, dtype=torch.float32)

    _compare(f, [case(3, 7), *(case(n, 18) for n in SIZES)])


def test_a_middle_dim_and_one_in_front() -> None:
    def case(a: int, b: int, c: int, n: int) -> tuple[Tensor, ...]:
        x, i, s = torch.rand(a, b, c), torch.randperm(b)[:n], torch.rand(a, n, c)
        return x, i, s

    sets = [case(2, 6, 5, 4), case(3, 20, 1, 17), case(1, 40, 17, 33), case(0, 3, 16, 2), case(2, 3, 0, 2), case(2, 18, 15, 0)]
    _compare(lambda x, i, s: x.index_copy(1, i, s), sets)
    _compare(lambda x, i, s: x.transpose(0, 1).index_add(0, i, s.transpose(0, 1)), sets)


def test_what_is_written_is_made_of_what_is_written_onto() -> None:
    """The source is read before any of it is written over."""

    class Shuffled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.arange(40.0).reshape(20, 2))

        def forward(self, i: Tensor, j: Tensor) -> Tensor:
            self.state.index_copy_(0, i, self.state[j] * 2)
            return self.state.sum()

    n = Dim("n", max=20)
    i, j = torch.tensor([1, 2, 3, 0]), torch.tensor([0, 1, 2, 3])
    model = dhlo.compile(torch.export.export(Shuffled(), (i, j), dynamic_shapes=({0: n}, {0: n})))
    session, eager = model.session(), Shuffled()
    for count in (4, 1, 19, 2):
        i, j = torch.randperm(20)[:count], torch.randperm(20)[:count]
        assert session(i, j) == eager(i, j)
        torch.testing.assert_close(session.read_state("state"), eager.state, rtol=0, atol=0)


@pytest.mark.parametrize("place", [0, 15, 16, 20, 33])
def test_an_index_out_of_range_fails_the_call(place: int) -> None:
    x, i, s = torch.zeros(3, 20), torch.arange(34).remainder(20).repeat(3, 1), torch.ones(3, 34)
    model = dhlo.compile(export(lambda x, i, s: x.scatter_add(1, i, s), (x, i, s)))
    torch.testing.assert_close(model(x, i, s), x.scatter_add(1, i, s))
    for wrong in (20, -1, 1 << 40):
        i[1, place] = wrong
        with pytest.raises(dhlo.ContractError, match=f"{wrong}"):
            model(x, i, s)


def test_more_indices_than_rows_fail_the_call() -> None:
    x, i = torch.zeros(3, 20), torch.zeros(3, 4, dtype=torch.int64)
    f: Callable[..., Tensor] = lambda x, i: x.scatter(1, i, 1.0)
    model = dhlo.compile(export(f, (x, i)))
    torch.testing.assert_close(model(x, i), f(x, i))
    with pytest.raises(dhlo.ContractError):
        model(x, torch.zeros(4, 4, dtype=torch.int64))


def test_bags_and_segments_that_pytorch_refuses_fail_the_call() -> None:
    bags = dhlo.compile(
        torch.export.export(
            _Module(lambda table, index, offsets: torch.nn.functional.embedding_bag(index, table, offsets)),
            (torch.randn(9, 3), torch.arange(8), torch.tensor([0, 4])),
            dynamic_shapes=((None, {0: Dim("n", min=0, max=99)}, {0: Dim("bags", min=1, max=99)}),),
        )
    )
    table, index = torch.randn(9, 3), torch.randint(0, 9, (5,))
    with pytest.raises(dhlo.ContractError, match="out of range"):
        bags(table, index, torch.tensor([1, 3]))  # the first bag must begin at 0
    assert bags(table, index, torch.tensor([0, 3])).shape == (2, 3)

    segments = dhlo.compile(
        torch.export.export(
            _Module(lambda x, lengths: torch.segment_reduce(x, "sum", lengths=lengths)),
            (torch.randn(5, 3), torch.tensor([2, 3])),
            dynamic_shapes=(({0: Dim("n", min=0, max=99)}, {0: Dim("segments", min=1, max=99)}),),
        )
    )
    x = torch.randn(5, 3)
    for lengths in ([2, 2], [2, 4], [7, -2], [0]):  # not all rows, more, a negative one, none
        with pytest.raises(dhlo.ContractError, match="out of range"):
            segments(x, torch.tensor(lengths))
    torch.testing.assert_close(
        segments(x, torch.tensor([0, 4, 1])), torch.segment_reduce(x, "sum", lengths=torch.tensor([0, 4, 1]))
    )
