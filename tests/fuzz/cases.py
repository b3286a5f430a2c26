"""Small programs of every kind that the fuzzer of calls drives: how they are exported, and where legal arguments come from."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

from tests.fuzz.generate import Program, generate

__all__ = ["CASES", "Case", "SIZES", "random_case"]

A, D = Dim.AUTO, Dim.DYNAMIC
SIZES = [0, 1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100]
Leaf = torch.Tensor | int


@dataclass
class Case:
    """A program. `draw` gives the arguments of a legal call, tensors and ints; `indices` are arguments that hold positions, and
    `grows` says along which dim an argument's buffer has room behind it."""

    name: str
    module: torch.nn.Module
    example: tuple[Any, ...]
    dims: tuple[Any, ...]
    draw: Callable[[Values], Sequence[Leaf]]
    tolerance: float = 1e-4
    indices: tuple[int, ...] = ()
    grows: dict[int, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    states: tuple[str, ...] = ()
    parts: bool = False  # a failed call may have written parts of states
    turns: bool = False  # an integer says how often a loop turns, and so how long a call takes
    program: Program | None = None

    def export(self) -> torch.export.ExportedProgram:
        """The program, with its sizes dynamic."""
        dims = (self.dims,) if isinstance(self.module, Fn) else self.dims
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(self.module, self.example, dynamic_shapes=dims)


class Values:
    """Draws of one call."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.generator = torch.Generator().manual_seed(rng.getrandbits(62))

    def size(self, most: int = 100, least: int = 0) -> int:
        return max(least, min(self.rng.choice(SIZES), most))

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(dtype)

    def ints(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Integers in [low, high), or zeros where there are none."""
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def order(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self.generator)


class Fn(torch.nn.Module):
    """A function as a module, perhaps with layers and buffers."""

    def __init__(self, fn: Callable[..., Any], buffers: dict[str, torch.Tensor] | None = None, **layers: torch.nn.Module) -> None:
        super().__init__()
        self.fn, self.takes_self = fn, bool(buffers or layers)
        for name, t in (buffers or {}).items():
            self.register_buffer(name, t)
        for name, layer in layers.items():
            self.add_module(name, layer.eval().requires_grad_(False))

    def forward(self, *args: Any) -> Any:
        return self.fn(self, *args) if self.takes_self else self.fn(*args)


# ---------------------------------------------------------------------------------------------------- sizes
def _first_rows(x: torch.Tensor, n: int) -> Any:
    return x[:n] * 2, torch.arange(n), x.new_ones(n, 3).cumsum(0)


def _rows_of_item(x: torch.Tensor, count: torch.Tensor) -> Any:
    n = count.item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n] * 2, torch.zeros(n) + 1


def _square_of_item(count: torch.Tensor) -> Any:
    n = count.item()
    torch._check(n >= 0)
    return (torch.arange(n)[:, None] * torch.arange(n)).cumsum(0) % 17


def _counted(x: torch.Tensor) -> Any:
    at = (x > 0).nonzero()
    return at, x[x > 0] * 2, (x > 0).sum(), at.sum(0)


def _derived(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    return torch.cat([x, y], 0) * 2, y[1:] + x, F.pad(z, (1, 3)) + 1, torch.roll(x, 1, 0), (x[:, None] - y[None]).cumsum(0)


def _derived_values(v: Values) -> Sequence[Leaf]:
    n = v.size()
    return v.floats(n), v.floats(n + 1), v.floats(v.size(40), 2 * n)


# ---------------------------------------------------------------------------------------------------- control flow
def _branch(x: torch.Tensor, flag: torch.Tensor) -> Any:
    y = torch.cond(flag, lambda x: (x.sin() @ x.mT).softmax(-1) @ x, lambda x: x.cumsum(0) * 0.1, (x,))
    return y * 2, y.sum(0)


def _loop(x: torch.Tensor, turns: torch.Tensor) -> Any:
    zero = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, y: i < turns, lambda i, y: (i + 1, (y * 1.5).tanh().flip(0) + x), (zero, x + 1))


# ---------------------------------------------------------------------------------------------------- state, updates, caches
def _count(self: Any, x: torch.Tensor) -> Any:
    self.total.add_(x.sum(0))
    self.calls += 1
    return x * self.total, self.calls + 0


def _cache(self: Any, x: torch.Tensor, at: torch.Tensor) -> Any:
    n = x.shape[1]
    start = at[0].item()
    torch._check(start >= 0)
    torch._check(start + n <= self.values.shape[1])
    self.keys[1, :, start : start + n] = x
    self.values.index_copy_(1, at, x)
    return (self.keys[1] * self.values).sum((0, 2))


def _cache_values(v: Values) -> Sequence[Leaf]:
    n = v.size(8, 1)
    at = v.rng.randrange(17 - n)
    return v.floats(3, n, 4), torch.arange(at, at + n)


def _update(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> Any:
    z = x.clone()
    x.add_(y.sum(1, keepdim=True))
    y[:, ::2] = 0
    y.index_add_(0, at, torch.ones_like(y[:1]).expand(at.shape[0], -1))
    return z * 2, y.amax()


def _update_values(v: Values) -> Sequence[Leaf]:
    n, m = v.size(least=1), v.size(least=1)
    return v.floats(n, 5), v.floats(n, m), v.ints(0, n, v.size(9))


def _replace(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(y.relu())
    return y.sum(1)


def _replace_values(v: Values) -> Sequence[Leaf]:
    sizes = v.size(), v.size(), 3, v.size()
    return v.floats(*sizes), v.floats(*sizes)


class _Step(torch.nn.Module):
    """Attention over caches that grow."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24).requires_grad_(False)

    def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> Any:
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.project(x).chunk(3, -1))
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), k, v


def _step_values(v: Values) -> Sequence[Leaf]:
    b, n, p = v.size(4, 1), v.size(33, 1), v.size()
    return v.floats(b, n, 8), v.floats(b, 2, p, 4), v.floats(b, 2, p, 4)


# ---------------------------------------------------------------------------------------------------- heavy kernels
def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
    return (
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, mask),
        F.scaled_dot_product_attention(k, k, v, is_causal=True),
    )


def _attention_values(v: Values) -> Sequence[Leaf]:
    b, s, t = v.size(3, 1), v.size(least=1), v.size(least=1)
    return v.floats(b, 2, s, 16), v.floats(b, 2, t, 16), v.floats(b, 2, t, 16), v.floats(b, 1, s, t)


def _conv(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    z = F.relu(self.first(x))
    return self.depth(z), self.up(z), F.max_pool2d(z, 2, ceil_mode=True), self.line(y), F.adaptive_avg_pool2d(z, (2, 3))


def _conv_values(v: Values) -> Sequence[Leaf]:
    b, h, w = v.size(3, 1), v.size(40, 2), v.size(40, 2)
    return v.floats(b, 3, h, w), v.floats(b, 4, v.size(least=5))


def _products(self: Any, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, a: torch.Tensor) -> Any:
    return self.wide(x).tanh(), x @ w, a @ a.mT, self.narrow(y), x.double() @ w.double(), w.mT @ x.mT, x[:1] @ w


def _products_values(v: Values) -> Sequence[Leaf]:
    n, m = v.size(), v.size()
    return v.floats(n, 24), v.floats(24, m), v.floats(n, 40, dtype=torch.bfloat16), v.floats(v.size(3), m, v.size(33))


def _multiplied(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    """Arguments that only products read, which do so through any strides."""
    return x @ w, a.transpose(1, 2) @ b.permute(0, 2, 3, 1), y @ z, w.mT @ w


def _multiplied_values(v: Values) -> Sequence[Leaf]:
    k, s, d = v.size(), v.size(33), v.size(17)
    batch, heads, depth = v.size(3), v.size(3), v.size(33)
    return (
        v.floats(v.size(), k),
        v.floats(k, v.size()),
        v.floats(batch, s, heads, d),
        v.floats(batch, v.size(33), heads, d),
        v.floats(batch, s, depth, dtype=torch.bfloat16),
        v.floats(batch, depth, v.size(33), dtype=torch.bfloat16),
    )


def _lookups(self: Any, ids: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> Any:
    picked = x.gather(0, at)
    return self.table(ids), picked, x.index_select(0, at[:, 0]), torch.zeros_like(x).scatter_add(0, at, picked), x[at[:, 0], 0] * 2


def _lookups_values(v: Values) -> Sequence[Leaf]:
    n, m = v.size(least=1), v.size(33, 1)
    return v.ints(0, 11, v.size(), v.size(9)), v.floats(n, m), v.ints(0, n, v.size(), m)


def _orders(x: torch.Tensor, k: torch.Tensor) -> Any:
    a, b = torch.sort(x, dim=-1, stable=True)
    c = torch.sort(k, dim=0, stable=True).values
    return a, b, c, x.cumsum(0), x.cummax(-1).values, k.cumsum(0), x.topk(3, 0).values, torch.unique(k)


def _orders_values(v: Values) -> Sequence[Leaf]:
    n = v.size(least=3)
    return v.floats(n, v.size(least=1)), v.ints(-9, 9, v.size())


def _recurrent(self: Any, x: torch.Tensor) -> Any:
    y, (h, c) = self.lstm(x)
    return y, h, c, self.gru(x)[0]


def _norms(self: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        F.layer_norm(x, (24,)),
        x.softmax(0),
        y.softmax(-1),
        F.group_norm(x.unflatten(1, (6, 4)), 2),
        x.mean(),
        y.var(-1),
        self.batch(x),
        y.argmax(-1),
        torch.logsumexp(y, 0),
    )


def _transforms(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = torch.fft.rfft(x)
    return z.real, z.imag, F.interpolate(y[None, None], scale_factor=2.0, mode="bilinear")[0, 0], torch.fft.fft(x).abs()


def _casts(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> Any:
    return (
        x.to(torch.bfloat16),
        x.half() * 2,
        y.to(torch.uint8),
        (y % 7).to(torch.int16),
        b.long().sum(0),
        b & (y > 0),
        x.mT.contiguous(),
        torch.stack([x, x.flip(0)], -1),
        torch.where(b, y, -y),
        x.double().sin(),
    )


def _casts_values(v: Values) -> Sequence[Leaf]:
    n, m = v.size(), v.size()
    return v.floats(n, m), v.ints(0, 99, n, m), v.ints(0, 2, n, m).bool()


def _r(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def _every(*ranks: int) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(range(r), A) for r in ranks)


def _cases() -> list[Case]:
    conv = {
        "first": torch.nn.Conv2d(3, 8, 3, padding=1),
        "depth": torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),
        "up": torch.nn.ConvTranspose2d(8, 4, 3, stride=2),
        "line": torch.nn.Conv1d(4, 6, 5),
    }
    linear = {"wide": torch.nn.Linear(24, 70), "narrow": torch.nn.Linear(40, 33).bfloat16()}
    recurrent = {"lstm": torch.nn.LSTM(6, 5, batch_first=True), "gru": torch.nn.GRU(6, 7, batch_first=True)}
    count = Dim("count", min=0, max=32)
    return [
        Case(
            "a number of rows as an int",
            Fn(_first_rows),
            (_r(40, 3), 7),
            ({0: A}, D),
            lambda v: (v.floats(n := v.size(least=5), 3), v.rng.randrange(n + 1)),
        ),
        Case(
            "a number of rows as an item",
            Fn(_rows_of_item),
            (_r(40, 3), torch.tensor(7)),
            ({0: A}, None),
            lambda v: (v.floats(n := v.size(), 3), torch.tensor(v.rng.randrange(n + 1))),
        ),
        Case("a square of an item", Fn(_square_of_item), (torch.tensor(7),), (None,), lambda v: (torch.tensor(v.size()),)),
        Case("counts of what is found", Fn(_counted), (_r(5, 7),), ({0: A, 1: A},), lambda v: (v.floats(v.size(), v.size()),)),
        Case(
            "derived sizes",
            Fn(_derived),
            (_r(5), _r(6), _r(3, 10)),
            ({0: (n := Dim("n"))}, {0: n + 1}, {0: A, 1: 2 * n}),
            _derived_values,
        ),
        Case(
            "a branch",
            Fn(_branch),
            (_r(5, 7), torch.tensor(True)),
            ({0: D, 1: D}, None),
            lambda v: (v.floats(v.size(), v.size()), torch.tensor(v.rng.random() < 0.5)),
        ),
        Case(
            "a loop",
            Fn(_loop),
            (_r(5, 7), torch.tensor(3)),
            ({0: D, 1: D}, None),
            lambda v: (v.floats(v.size(), v.size()), torch.tensor(v.rng.randrange(6))),
            turns=True,
        ),
        Case(
            "counters",
            Fn(_count, {"total": torch.zeros(3), "calls": torch.tensor(0)}),
            (_r(4, 3),),
            ({0: D},),
            lambda v: (v.floats(v.size(), 3) * 0.01,),
            states=("total", "calls"),
            tolerance=1e-3,
        ),
        Case(
            "a cache in buffers",
            Fn(_cache, {"keys": torch.zeros(2, 3, 16, 4), "values": torch.zeros(3, 16, 4)}),
            (_r(3, 2, 4), torch.arange(2)),
            ({1: (few := Dim("few", max=8))}, {0: few}),
            _cache_values,
            indices=(1,),
            states=("keys", "values"),
            parts=True,
        ),
        Case(
            "updated arguments",
            Fn(_update),
            (_r(4, 5), _r(4, 6), torch.tensor([1, 0, 2])),
            ({0: A}, {0: A, 1: A}, {0: A}),
            _update_values,
            indices=(2,),
        ),
        Case(
            "replaced arguments",
            Fn(_replace),
            (_r(4, 5, 3, 6), _r(4, 5, 3, 6)),
            ({0: A, 1: A, 3: A}, {0: A, 1: A, 3: A}),
            _replace_values,
        ),
        Case(
            "growing caches",
            _Step(),
            (_r(2, 3, 8), _r(2, 2, 5, 4), _r(2, 2, 5, 4)),
            ({0: (b := Dim("b", max=64)), 1: Dim("new", max=512)}, {0: b, 2: (past := Dim("past", max=4096))}, {0: b, 2: past}),
            _step_values,
            grows={1: 2, 2: 2},
            options={"grow": {"past_*": 2}},
        ),
        Case(
            "attention",
            Fn(_attention),
            (_r(2, 2, 5, 16), _r(2, 2, 7, 16), _r(2, 2, 7, 16), _r(2, 1, 5, 7)),
            ({0: A, 2: A}, {0: A, 2: A}, {0: A, 2: A}, {0: A, 2: A, 3: A}),
            _attention_values,
        ),
        Case("convolutions", Fn(_conv, **conv), (_r(2, 3, 8, 9), _r(2, 4, 11)), ({0: A, 2: A, 3: A}, {0: A, 2: A}), _conv_values),
        Case(
            "products",
            Fn(_products, **linear),
            (_r(5, 24), _r(24, 7), _r(5, 40).bfloat16(), _r(2, 7, 6)),
            ({0: A}, {1: A}, {0: A}, {0: A, 1: A, 2: A}),
            _products_values,
            tolerance=3e-4,
        ),
        Case(
            "products of arguments",
            Fn(_multiplied),
            (_r(5, 7), _r(7, 6), _r(2, 5, 3, 4), _r(2, 9, 3, 4), _r(2, 5, 8).bfloat16(), _r(2, 8, 11).bfloat16()),
            _every(2, 2, 4, 4, 3, 3),
            _multiplied_values,
            tolerance=3e-4,
        ),
        Case(
            "lookups",
            Fn(_lookups, table=torch.nn.Embedding(11, 20)),
            (torch.tensor([[1, 2, 3]] * 2), _r(5, 7), torch.ones(4, 7).long()),
            _every(2, 2, 2),
            _lookups_values,
            indices=(0, 2),
        ),
        Case("orders", Fn(_orders), (_r(5, 7), torch.arange(6)), _every(2, 1), _orders_values),
        Case(
            "recurrent layers", Fn(_recurrent, **recurrent), (_r(2, 9, 6),), ({0: A},), lambda v: (v.floats(v.size(least=1), 9, 6),)
        ),
        Case(
            "norms",
            Fn(_norms, batch=torch.nn.BatchNorm1d(24)),
            (_r(5, 24), _r(6, 7)),
            ({0: A}, {0: A, 1: A}),
            lambda v: (v.floats(v.size(least=1), 24), v.floats(v.size(least=1), v.size(least=2))),
        ),
        Case(
            "transforms",
            Fn(_transforms),
            (_r(5, 24), _r(6, 7)),
            ({0: A}, {0: A, 1: A}),
            lambda v: (v.floats(v.size(), 24), v.floats(v.size(33, 1), v.size(33, 1))),
        ),
        Case("casts", Fn(_casts), (_r(5, 7), torch.ones(5, 7).long(), torch.ones(5, 7).bool()), _every(2, 2, 2), _casts_values),
        Case("a range", Fn(lambda x: x.tanh() + 1), (_r(4, 5),), ({0: count},), lambda v: (v.floats(v.size(32), 5),)),
    ]


CASES = {c.name: c for c in _cases()}


def random_case(seed: int) -> Case:
    """A random function of two sizes; see generate.py."""
    from tests.fuzz.test_fuzz import EXAMPLE, function, inputs

    rng = random.Random(seed)
    program = generate(lambda options: rng.choice(list(options)), rng.randint(4, 12))
    example = tuple(inputs(program, *EXAMPLE))
    dims = (*({d: A for d in range(x.dim())} for x in example[:-1]), None)

    def draw(v: Values) -> Sequence[Leaf]:
        return inputs(program, v.size(), v.size())

    return Case(f"random {seed}", Fn(function(program)), example, dims, draw, indices=(len(example) - 1,), program=program)
