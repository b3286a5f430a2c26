"""Sizes and values at which PyTorch has no result: a call fails there, as in eager, and the program goes on to work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, export

import dhlo
from dhlo.errors import CompileError, ContractError
from tests.calls import Call

F = Callable[..., Any]


def compiled(f: F, *args: torch.Tensor, dims: tuple[Any, ...] = ({0: Dim.AUTO, 1: Dim.AUTO},)) -> Any:
    return dhlo.compile(export(Call(f), args, dynamic_shapes=(dims,)))


EXTREMES: dict[str, F] = {
    "amax": lambda x: x.amax(1),
    "amin over both": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "max along a dim": lambda x: x.max(1),
    "min along a dim": lambda x: x.min(0, keepdim=True),
    "argmax": lambda x: x.argmax(1),
    "argmin of all": lambda x: x.argmin(),
    "aminmax": lambda x: torch.aminmax(x, dim=0),
}


@pytest.mark.parametrize("what", EXTREMES)
def test_nothing_has_no_extreme(what: str) -> None:
    f = EXTREMES[what]
    c = compiled(f, torch.randn(4, 5))
    for shape in ((4, 5), (0, 5), (4, 0), (0, 0), (1, 1), (3, 17)):
        x = torch.randn(shape)
        try:
            want = f(x)
        except (IndexError, RuntimeError):
            with pytest.raises(ContractError):
                c(x)
            continue
        for got, wanted in zip(*((y if isinstance(y, tuple) else (y,)) for y in (c(x), want)), strict=True):
            torch.testing.assert_close(got, wanted)


def test_softmax_and_others_made_of_extremes_take_nothing() -> None:
    f = lambda x: (torch.softmax(x, 1), torch.logsumexp(x, 1))
    c = compiled(f, torch.randn(4, 5))
    for shape in ((4, 5), (0, 5), (4, 0), (0, 0)):
        x = torch.randn(shape)
        for got, want in zip(c(x), f(x), strict=True):
            torch.testing.assert_close(got, want)


def test_branches_that_arent_taken_ask_for_nothing() -> None:
    f = lambda x: torch.cond(x.shape[0] > 0, lambda x: x.amax(0) + x.argmax(0), lambda x: x.sum(0) + 0, (x,))
    c = compiled(f, torch.randn(4, 6), dims=({0: Dim("a", min=0), 1: Dim("b", min=0)},))
    for shape in ((4, 6), (0, 3), (1, 1)):
        x = torch.randn(shape)
        torch.testing.assert_close(c(x), x.amax(0) + x.argmax(0) if shape[0] else torch.zeros(3))


def test_probabilities() -> None:
    c = compiled(torch.bernoulli, torch.rand(5), dims=({0: Dim.AUTO},))
    for wrong in ([2.0], [0.5, -1.0], [float("nan")], [float("inf")]):
        with pytest.raises(ContractError, match="bernoulli: a probability is below 0, above 1 or NaN"):
            c(torch.tensor(wrong))
        assert c(torch.tensor([0.0, 1.0, 1.0])).tolist() == [0, 1, 1]
    assert c(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_of_draws(replacement: bool) -> None:
    c = compiled(lambda w: torch.multinomial(w, 1, replacement), torch.rand(3, 5))
    for wrong, match in (
        ([[0.0, 0, 0]], "the weights of a row are all zero"),
        ([[1.0, 2, -1]], "negative, infinite or NaN"),
        ([[1.0, 2, 3], [float("nan"), 1, 1]], "negative, infinite or NaN"),
        ([[float("inf"), 1, 1]], "negative, infinite or NaN"),
    ):
        with pytest.raises(ContractError, match=match):
            c(torch.tensor(wrong))
        assert c(torch.tensor([[0.0, 0, 1], [0, 5, 0]])).tolist() == [[2], [1]]


QUOTIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda x, y: x // y,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
    "in place": lambda x, y: x.clone().remainder_(y),
    "of a number": lambda x, y: x * (7 % y),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_whole_numbers_divided_by_zero(name: str) -> None:
    f, x, y = QUOTIENTS[name], torch.arange(-6, 6).reshape(4, 3), torch.tensor([1, -2, 3])
    c = compiled(f, x, y, dims=({0: Dim("n", min=0)}, {}))
    for rows in (1, 4, 0):
        assert torch.equal(c(x[:rows], y), f(x[:rows], y))
        zero = torch.tensor([1, 0, 3])
        if rows or name == "of a number":
            with pytest.raises(ContractError, match="a whole number is divided by zero"):
                c(x[:rows], zero)
        else:  # nothing is divided
            assert c(x[:0], zero).shape == (0, 3)
    assert torch.equal(c(x, y), f(x, y))


@pytest.mark.parametrize("dtype, zero", [(torch.uint8, 256), (torch.int16, -65536), (torch.int32, 2**32)], ids=str)
def test_divisors_that_are_zero_in_the_results_type(dtype: torch.dtype, zero: int) -> None:
    c = compiled(lambda x, d: x // d, torch.arange(4, dtype=dtype), torch.tensor(5), dims=({0: Dim("n", min=0)}, {}))
    assert c(torch.arange(9, dtype=dtype), torch.tensor(2)).tolist() == [k // 2 for k in range(9)]
    with pytest.raises(ContractError, match="a whole number is divided by zero"):
        c(torch.arange(4, dtype=dtype), torch.tensor(zero))


def test_quotients_that_arent_reached_may_divide_by_zero() -> None:
    f = lambda x, y: torch.cond((y != 0).all(), lambda x, y: x // y, lambda x, y: x + y, (x, y))
    x, y = torch.arange(4), torch.tensor([1, 2, 3, 4])
    c = compiled(f, x, y, dims=({0: Dim("n", min=0)}, {0: Dim("n", min=0)}))
    for divisor in (y, torch.tensor([1, 0, 3, 4])):
        assert torch.equal(c(x, divisor), f(x, divisor))


def test_sizes_that_divide() -> None:
    """By none, unless there is nothing to divide."""
    f = lambda x: (x.sum(1) % x.shape[1], x // x.shape[1], torch.arange(x.shape[0]) // (x.shape[1] + 1))
    c = compiled(f, torch.arange(12).reshape(4, 3), dims=({0: Dim("n", min=0), 1: Dim("m", min=0)},))
    for shape in ((4, 3), (1, 1), (0, 3), (0, 0)):
        x = torch.arange(shape[0] * shape[1]).reshape(shape)
        for got, want in zip(c(x), f(x), strict=True):
            assert torch.equal(got, want)
    with pytest.raises(ContractError, match="a whole number is divided by zero"):
        c(torch.zeros(4, 0, dtype=torch.long))


def test_a_number_of_the_data_that_divides() -> None:
    c = compiled(lambda x, d: x // d.item(), torch.arange(12), torch.tensor(5), dims=({0: Dim("n", min=0)}, {}))
    for divisor in (2, -3):
        assert torch.equal(c(torch.arange(7), torch.tensor(divisor)), torch.arange(7) // divisor)
    with pytest.raises(ContractError, match="a whole number is divided by zero"):
        c(torch.arange(7), torch.tensor(0))
    assert c(torch.arange(0), torch.tensor(0)).shape == (0,)


def test_classes_that_there_arent() -> None:
    c = compiled(lambda x: torch.nn.functional.one_hot(x, 5), torch.tensor([1, 2]), dims=({0: Dim("n", min=0)},))
    with pytest.raises(CompileError, match="one_hot of i32"):
        compiled(lambda x: torch.nn.functional.one_hot(x, 5), torch.tensor([1, 2], dtype=torch.int32), dims=({0: Dim("n")},))
    for wrong in ([5], [0, -1], [2**40]):
        with pytest.raises(ContractError, match="one_hot: there is no such class"):
            c(torch.tensor(wrong))
    for given in (torch.tensor([4, 0, 1]), torch.zeros(0, dtype=torch.long)):
        assert torch.equal(c(given), torch.nn.functional.one_hot(given, 5))


class EveryNth(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        step = n.item()
        torch._check(step > 0)
        return x[:, 1::step] * 2


def test_steps_that_data_say() -> None:
    args = (torch.arange(40.0).reshape(2, 20), torch.tensor(3))
    c = dhlo.compile(export(EveryNth(), args, dynamic_shapes=({1: Dim.AUTO}, None)))
    for size in (2, 3, 5, 16, 17, 40):
        x = torch.randn(2, size)
        for step in (1, 2, 7, 100):
            torch.testing.assert_close(c(x, torch.tensor(step)), x[:, 1::step] * 2)
    for step in (0, -1):
        with pytest.raises(ContractError):
            c(torch.randn(2, 5), torch.tensor(step))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm_of_small_numbers(dtype: torch.dtype, eps: float | None) -> None:
    """Without `eps` it is that of the type that is computed in, which is f32 for the narrow ones."""
    norm = torch.nn.RMSNorm(17, eps=eps).to(dtype).eval()
    c = dhlo.compile(export(norm, (torch.randn(4, 17).to(dtype),), dynamic_shapes=({0: Dim.AUTO},)))
    for rows in (0, 1, 2, 33):
        x = (torch.randn(rows, 17, dtype=torch.float64) * 0.01).to(dtype)
        torch.testing.assert_close(c(x), norm(x), rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-6)
