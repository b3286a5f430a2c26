"""Random numbers: PyTorch's distributions, from a seed alone, fused or not, on any number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import dhlo
from dhlo import _runtime, interp
from dhlo.frontend import import_program
from dhlo.ir.philox import word
from dhlo.loading import open_model
from tests.frontend.helpers import Fn

N = 40000


def compiled(f: Callable[..., Any], x: torch.Tensor, train: bool = False) -> dhlo.CompiledModel:
    module = f if isinstance(f, torch.nn.Module) else Fn(f)
    spec: Any = {d: Dim.AUTO for d in range(x.dim())}
    return dhlo.compile(torch.export.export(module.train(train), (x,), dynamic_shapes=(spec if module is f else (spec,),)))


def test_words_are_the_published_ones() -> None:
    """Known answers of Random123's kat_vectors for philox4x32-10; the counter's last words are the draw."""
    zero = torch.zeros(1, dtype=torch.int64)
    want = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(word(zero, 0, 0, k)) & 0xFFFFFFFF for k in range(4)] == want
    ones = torch.full((1,), -1, dtype=torch.int64)
    want = [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert [int(word(ones, -1, -1, k)) & 0xFFFFFFFF for k in range(4)] == want


def distance(x: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Kolmogorov and Smirnov's statistic, times the root of the sample's size: 1.95 is exceeded once in a thousand."""
    y = cdf(x.double().flatten().sort().values)
    steps = torch.arange(len(y) + 1) / len(y)
    return float(torch.maximum((y - steps[:-1]).abs().max(), (y - steps[1:]).abs().max()) * math.sqrt(len(y)))


def gauss(x: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(x)


CONTINUOUS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "rand": (lambda x: torch.rand(x.shape), lambda u: u),
    "rand f64": (lambda x: torch.rand(x.shape, dtype=torch.float64), lambda u: u),
    "rand_like": (lambda x: torch.rand_like(x), lambda u: u),
    "randn": (lambda x: torch.randn(x.shape), gauss),
    "randn f64": (lambda x: torch.randn(x.shape, dtype=torch.float64), gauss),
    "randn_like": (lambda x: torch.randn_like(x), gauss),
    "uniform_": (lambda x: x.clone().uniform_(-2, 3), lambda u: (u + 2) / 5),
    "normal_": (lambda x: x.clone().normal_(1, 2), lambda u: gauss((u - 1) / 2)),
    "normal": (lambda x: torch.normal(x * 0 + 1, 2.0), lambda u: gauss((u - 1) / 2)),
    "exponential_": (lambda x: x.clone().exponential_(2.0), lambda u: 1 - torch.exp(-2 * u)),
    "cauchy_": (lambda x: x.clone().cauchy_(1.0, 2.0), lambda u: 0.5 + torch.atan((u - 1) / 2) / math.pi),
    "log_normal_": (lambda x: x.clone().log_normal_(0.5, 0.25), lambda u: gauss((u.log() - 0.5) / 0.25)),
    "scaled twice": (lambda x: (torch.rand_like(x) + 1) * 2, lambda u: u / 2 - 1),
}


def test_continuous_distributions() -> None:
    """All in one program: also that no two draws give the same numbers."""
    model = compiled(lambda x: tuple(f(x) for f, _ in CONTINUOUS.values()), torch.ones(3, 5))
    model.manual_seed(1)
    got = dict(zip(CONTINUOUS, model(torch.ones(8, N // 8)), strict=True))
    for name, (_, cdf) in CONTINUOUS.items():
        assert distance(got[name], cdf) < 1.95, name
    assert not torch.equal(got["rand"], got["rand_like"]) and not torch.equal(got["randn"], got["randn_like"])
    neighbours = got["rand"].flatten()
    assert abs(torch.corrcoef(torch.stack([neighbours[1:], neighbours[:-1]]))[0, 1]) < 4 / math.sqrt(N)


def test_discrete_distributions() -> None:
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0])

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            torch.randint(3, 9, (n,)),
            torch.randint_like(x, 4),
            torch.bernoulli(x * 0 + 0.3),
            x.clone().bernoulli_(0.7),
            torch.multinomial(weights, n, replacement=True),
            torch.multinomial(weights.expand(n, 4), 2),
            torch.randperm(n),
            x.clone().geometric_(0.25),
            x.long().random_(9),
            torch.randint(0, n, (n,)),
            torch.bernoulli(x.double() * 0 + 0.5, 0.2),
        )

    model = compiled(f, torch.ones(7))
    model.manual_seed(2)
    r, like, b3, b7, m, pairs, perm, g, ints, wide, p2 = model(torch.ones(N))
    tolerance = 5 / math.sqrt(N)
    assert torch.allclose(r.bincount(minlength=9)[3:] / N, torch.tensor(1 / 6), atol=tolerance) and r.min() == 3
    assert like.dtype == torch.float32 and torch.allclose(like.long().bincount() / N, torch.tensor(0.25), atol=tolerance)
    assert abs(b3.mean() - 0.3) < tolerance and abs(b7.mean() - 0.7) < tolerance and abs(p2.mean() - 0.2) < tolerance
    assert set(b3.unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(m.bincount(minlength=4) / N, weights / 8, atol=tolerance)
    assert (pairs[:, 0] != pairs[:, 1]).all() and not (pairs == 1).any()
    assert abs((pairs[:, 0] == 2).float().mean() - 3 / 8) < tolerance
    assert torch.equal(perm.sort().values, torch.arange(N)) and abs((perm[: N // 2] < N // 2).float().mean() - 0.5) < tolerance
    assert abs(g.mean() - 4) < 0.1 and g.min() == 1
    assert ints.min() == 0 and ints.max() == 8 and abs(ints.float().mean() - 4) < 0.1
    assert wide.min() >= 0 and wide.max() < N and distance(wide / N, lambda u: u) < 2.2
    assert [len(y) for y in model(torch.ones(0))] == [0] * 11


class Drops(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = x.reshape(1, 1, -1, 4)
        return (
            F.dropout(x, 0.25, training=True),
            F.feature_alpha_dropout(x, 0.5, training=True),
            F.alpha_dropout(x, 0.3, training=True),
            F.rrelu(-x, 0.1, 0.5, training=True),
            F.dropout2d(x[:, :, None, None].expand(-1, -1, 2, 2), 0.5, training=True),
            F.scaled_dot_product_attention(q, q, q * 0 + 1, dropout_p=0.5),
            F.dropout(x, 0.25, training=False),
        )


def test_dropout() -> None:
    model = compiled(Drops(), torch.ones(4, 8), train=True)
    model.manual_seed(3)
    x = torch.ones(500, 8)
    plain, _, alpha, slopes, channels, attention, off = model(x)
    assert set(plain.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((plain == 0).float().mean() - 0.25) < 0.03
    saturation = 1.7580993408473766
    a = 1 / math.sqrt((saturation**2 * 0.3 + 1) * 0.7)
    torch.testing.assert_close(alpha.unique(), torch.tensor([saturation * a * 0.3 - saturation * a, a + saturation * a * 0.3]))
    assert -0.5 <= slopes.min() and slopes.max() <= -0.1 and abs(slopes.mean() + 0.3) < 0.02
    assert (channels.flatten(2).std(2) == 0).all() and set(channels.unique().tolist()) == {0.0, 2.0}
    assert abs(attention.mean() - 1) < 0.05 and attention.std() > 0
    assert torch.equal(off, x)


def test_same_seed_same_numbers_on_any_number_of_threads() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x) + x, torch.randn(x.shape[0], 3)

    model = compiled(f, torch.zeros(4, 5))
    runs = []
    for seed in (7, 7, 8):
        model.manual_seed(seed)
        runs.append([*model(torch.zeros(300, 257)), *model(torch.zeros(300, 257))])
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0], runs[2][0]) and not torch.equal(runs[0][0], runs[0][2])
    fresh = model.native

    session = _runtime.Session(fresh)
    assert not torch.equal(session(torch.zeros(300, 257))[0], runs[0][0])  # the system seeds what nobody seeded
    assert not torch.equal(*(_runtime.Session(fresh)(torch.zeros(3, 5))[0] for _ in range(2)))


def test_threads_of_a_saved_model_agree(tmp_path: Any) -> None:
    compiled(lambda x: torch.rand_like(x), torch.zeros(4, 5)).save(tmp_path / "rand.so")

    got = []
    for threads in (1, 2, 3):
        session = _runtime.Session(open_model(tmp_path / "rand.so", threads))
        session.seed(5)
        got.append(session(torch.zeros(700, 300))[0])
    assert torch.equal(got[0], got[1]) and torch.equal(got[0], got[2])


def test_a_loop_draws_anew_in_every_turn_and_the_interpreter_agrees() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def body(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, y + torch.rand(y.shape) - 0.5

        out: tuple[torch.Tensor, ...] = while_loop(lambda i, y: i < 16, body, (torch.tensor(0), x))
        return out

    exported = torch.export.export(Fn(f), (torch.zeros(5),), dynamic_shapes=(({0: Dim.DYNAMIC},),))
    model = dhlo.compile(exported)
    model.manual_seed(0)
    got = model(torch.zeros(4000))[1]
    assert abs(got.var() - 16 / 12) < 0.15
    program = import_program(exported)
    with program.context:
        torch.testing.assert_close(interp.run(program.module, [torch.zeros(4000)], program.weights)[1], got)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_below_one(dtype: torch.dtype) -> None:
    model = compiled(lambda x: (torch.rand_like(x), torch.randn_like(x)), torch.zeros(4, dtype=dtype))
    u, z = model(torch.zeros(N, dtype=dtype))
    assert u.dtype == dtype and 0 <= u.min() and u.max() < 1 and abs(u.float().mean() - 0.5) < 0.01
    assert abs(z.float().mean()) < 0.03 and abs(z.float().std() - 1) < 0.03
