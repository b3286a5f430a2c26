"""Anything that Python can pass as an argument: the call is right or a clean error, and the model works afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim, export

import dhlo
from tests.fuzz.guarded import isolated

CALLS = 1500
ERRORS = (dhlo.DhloError, TypeError, ValueError)


class Program(torch.nn.Module):
    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor], scale: torch.Tensor) -> Any:
        return x * scale + pair["a"], {"sum": pair["a"].sum(), "picked": x.gather(1, pair["at"])}


class Broken:
    """Claims to be a tensor and isn't."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __dlpack__(self, **_: Any) -> Any:
        if self.how == "raises":
            raise RuntimeError("no data today")
        return self.how

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Sub(torch.Tensor):
    pass


def _same(x: torch.Tensor) -> list[Any]:
    """Other objects with the same elements."""
    a = x.numpy()
    read_only = a.copy()
    read_only.flags.writeable = False
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] if x.dim() else 1, dtype=x.dtype)[..., ::2] if x.dim() else x.clone()
    wide.copy_(x)
    out = [x, a, read_only, np.asfortranarray(a), wide, x.as_subclass(Sub), x.clone().expand(x.shape), x.conj()]
    if x.dim():
        out += [x.flip(0).numpy()[::-1], x.flip(-1).numpy()[..., ::-1], a.astype(a.dtype.newbyteorder(">"))]
    if x.is_floating_point():
        out += [torch.nn.Parameter(x), torch.nn.Parameter(x) * 1, torch.complex(x, -x).conj().imag]
    return out


def _strange(x: torch.Tensor, rng: random.Random) -> list[Any]:
    """What isn't that tensor, or isn't one at all."""
    flat = x.reshape(-1)
    more = torch.cat([flat, flat, flat.new_ones(64)])
    return [
        None,
        True,
        3,
        -1,
        1 << 63,
        -(1 << 200),
        0.5,
        float("nan"),
        1j,
        "text",
        b"bytes",
        [],
        (),
        {},
        object(),
        [1.0, 2.0],
        x.tolist(),
        np.float32(2),
        np.int64(2),
        np.bool_(True),
        np.array(2.0),
        np.array("text"),
        np.array([object()]),
        np.zeros(3, [("a", "f4")]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros((1,) * 9, np.float32),
        np.zeros((1,) * 33, np.float32),
        x.to("meta"),
        x.double(),
        x.to(torch.complex64),
        x.half(),
        x.bool(),
        x.to(torch.uint16),
        x.to_sparse() if x.dim() else None,
        x[None],
        flat,
        x.new_zeros([0] * x.dim()),
        more.as_strided([3, 5], [1, 1]),
        more.as_strided([5, 5], [0, 0]),
        x.to(torch.complex64).conj(),
        Broken("raises"),
        Broken("not a capsule"),
        memoryview(b"1234"),
        torch.Size([2]),
        range(3),
        slice(2),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        rng.choice([torch.float32, torch.device("cpu"), torch.nn.Linear(2, 2)]),
    ]


def _check(model: dhlo.CompiledModel, args: tuple[Any, ...], kwargs: dict[str, Any], must: bool) -> str:
    """Runs a call; "ok" or the error's type. What is given as tensors, or can be seen as such, says what is right."""
    try:
        got, more = model(*args, **kwargs)
    except ERRORS as e:
        assert str(e), type(e)
        assert not must, e
        return type(e).__name__
    x, pair, scale = args
    tensors = [torch.as_tensor(np.array(v) if isinstance(v, np.ndarray) else v).detach() for v in (x, pair["a"], pair["at"], scale)]
    x, a, at, scale = (t.as_subclass(torch.Tensor) for t in tensors)
    want, others = Program()(x, {"a": a, "at": at}, scale)
    for g, w in zip([got, more["sum"], more["picked"]], [want, others["sum"], others["picked"]], strict=True):
        assert type(g) is torch.Tensor
        torch.testing.assert_close(g, w.to(g.dtype), rtol=1e-4, atol=1e-4, equal_nan=True)
    return "ok"


def _calls(model: dhlo.CompiledModel, note: Callable[[str], None]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number in range(CALLS):
        rng = random.Random(number)
        g = torch.Generator().manual_seed(number)
        n, m = rng.choice([1, 2, 5, 17]), rng.choice([1, 3, 16])
        leaves: list[Any] = [
            torch.randn(n, m, generator=g),
            torch.randn(n, m, generator=g),
            torch.randint(0, m, (n, 2), generator=g),
            torch.tensor(1.5),
        ]
        good, must = list(leaves), False
        k = rng.randrange(4)
        way = rng.choice(["same", "strange", "structure"])
        if way == "same":
            others = _same(leaves[k])
            number_of = rng.randrange(len(others))
            leaves[k] = others[number_of]
            must = isinstance(leaves[k], torch.Tensor) and not leaves[k].requires_grad
        elif way == "strange":
            leaves[k] = rng.choice(_strange(leaves[k], rng))
        x, a, at, scale = leaves
        args, kwargs = (x, {"a": a, "at": at}, scale), {}
        if way == "structure":
            args, kwargs = rng.choice(
                [
                    ((), {}),
                    ((x,), {}),
                    ((x, a, scale), {}),
                    ((x, {"a": a}, scale), {}),
                    ((x, {"a": a, "at": at, "b": a}, scale), {}),
                    ((x, [a, at], scale), {}),
                    (((x, {"a": a, "at": at}, scale),), {}),
                    ((x, {"a": a, "at": at}, scale, scale), {}),
                    ((x, {"a": a, "at": at}), {"scale": scale}),
                    ((x, {"a": a, "at": at}, scale), {"extra": 1}),
                    ((x, {"a": [a], "at": at}, scale), {}),
                    ((x, {1: a, "at": at}, scale), {}),
                ]
            )
        note(f"call {number}: {way} {k}: {type(leaves[k]).__name__} {str(leaves[k])[:300]}")
        status = _check(model, args, kwargs, must)
        assert way != "structure" or status != "ok"
        counts[status] = counts.get(status, 0) + 1
        note(f"call {number}: a good call")
        x, a, at, scale = good
        assert _check(model, (x, {"a": a, "at": at}, scale), {}, True) == "ok"
    return counts


@pytest.mark.filterwarnings("ignore")
def test_anything_as_an_argument() -> None:
    example = (torch.randn(4, 3), {"a": torch.randn(4, 3), "at": torch.zeros(4, 2, dtype=torch.int64)}, torch.tensor(2.0))
    n, m = Dim("n", max=64), Dim("m", max=64)
    model = dhlo.compile(export(Program(), example, dynamic_shapes=({0: n, 1: m}, {"a": {0: n, 1: m}, "at": {0: n}}, None)))
    counts = isolated(lambda note: _calls(model, note))
    assert counts["ok"] > CALLS // 4 and counts["ContractError"] > CALLS // 4, counts


class Update(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum()


@pytest.mark.parametrize("way", ["overlapping", "expanded", "read-only array"])
def test_updated_arguments_that_cannot_be_updated_are_refused(way: str) -> None:
    model = dhlo.compile(export(Update(), (torch.ones(4, 3),), dynamic_shapes=({0: Dim("n", max=64)},)))
    x: Any = torch.arange(30.0).as_strided([5, 3], [1, 1])
    if way == "expanded":
        x = torch.arange(3.0).expand(5, 3)
    elif way == "read-only array":
        x = np.ones((5, 3), np.float32)
        x.flags.writeable = False
    before = np.asarray(x).copy()
    with pytest.raises(ERRORS):
        model(x)
    assert np.array_equal(before, np.asarray(x))
    y = torch.ones(5, 3)
    assert model(y) == 30 and torch.equal(y, torch.full((5, 3), 2.0))
