"""Programs as users get them: ways to export and to state dims, pytrees, keywords, numbers and None, aliases, memory layouts."""

from __future__ import annotations

import collections
import copy
import dataclasses
import io
import typing
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.export import Dim, export
from torch.utils import _pytree as pytree

import dhlo

D = Dim.DYNAMIC
SLOW = pytest.mark.slow
rn = torch.randn


def agree(got: Any, want: Any) -> None:
    """Same structure, same types of leaves, values equal up to rounding."""
    (g, got_spec), (w, want_spec) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert got_spec == want_spec
    for a, b in zip(g, w, strict=True):
        assert type(a) is type(b) or isinstance(b, torch.nn.Parameter)
        torch.testing.assert_close(a, b.detach() if isinstance(b, torch.Tensor) else b, rtol=1e-4, atol=1e-5)


def check(module: torch.nn.Module, exported: Any, *calls: Any) -> dhlo.CompiledModel:
    """Compiles once and compares with eager; a call is the arguments, or arguments and keywords."""
    model = dhlo.compile(exported)
    for call in calls:
        args, kwargs = call if len(call) == 2 and isinstance(call[1], dict) and isinstance(call[0], tuple) else (call, {})
        ours, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
        with torch.no_grad():
            want = module(*theirs[0], **theirs[1])
        agree(model(*ours[0], **ours[1]), want)
        agree(ours, theirs)
    return model


# ---------------------------------------------------------------------------------------------------- ways to export
class Block(torch.nn.Module):
    """Attention, convolution and normalisation; a buffer and a view are written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6)
        self.conv, self.batch_norm = torch.nn.Conv1d(6, 6, 3, padding=1), torch.nn.BatchNorm1d(6)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.ones(6), persistent=False)

    def forward(self, x, mask=None):
        self.steps.add_(1)
        y = self.batch_norm(self.conv(self.norm(self.linear(x)).transpose(1, 2))).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=mask)
        y[:, 0] = 0
        return y * self.steps * self.scale, y.argmax(-1)


def saved(exported: Any) -> Any:
    """Through a .pt2 file."""
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return torch.export.load(file)


FORMS: dict[str, Any] = {
    "plain": lambda e: e(),
    "strict": lambda e: e(strict=True),
    "functional": lambda e: e().run_decompositions({}),
    "core": lambda e: e().run_decompositions(),
    "strict_core": lambda e: e(strict=True).run_decompositions(),
    "saved": lambda e: saved(e()),
    "saved_strict_core": lambda e: saved(e(strict=True).run_decompositions()),
}


@pytest.mark.parametrize("form", [f if f in ("plain", "core", "saved_strict_core") else pytest.param(f, marks=SLOW) for f in FORMS])
def test_form(form: str) -> None:
    torch.manual_seed(0)
    module = Block().eval()
    args = lambda b, t: (rn(b, t, 6), torch.zeros(b, t, t))
    dims = ({0: D, 1: D}, {0: D, 1: D, 2: D})
    exported = FORMS[form](lambda **how: export(module, args(2, 5), dynamic_shapes=dims, **how))
    check(copy.deepcopy(module), exported, args(2, 5), args(1, 1), args(3, 17))


class Counting(torch.nn.Module):
    """Writes through what may be a view: a constant, a buffer, a base, and copies that look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 2))
        self.lists = [torch.zeros((), dtype=torch.int64)]

    def forward(self, x):
        count = self.lists[0].to(dtype=torch.int64, device="cpu")
        count.add_(x.shape[0])
        self.total.contiguous().add_(1)
        self.total.reshape(-1)[1:].mul_(2)
        y = x * 2
        y.flatten().add_(1)
        y.to(torch.float32, copy=True).zero_()
        y.t().reshape(-1).zero_()
        torch.nn.functional.dropout(y, 0.5, training=False).neg_()
        return y, self.total * 1, self.lists[0] + 0


@pytest.mark.parametrize("form", ["plain", "strict", "saved"])
def test_writes_through_views_that_may_be_copies(form: str) -> None:
    module = Counting()
    eager = copy.deepcopy(module)
    exported = FORMS[form](lambda **how: export(module, (rn(3, 4),), dynamic_shapes=({0: D},), **how))
    model = dhlo.compile(exported)
    for n in (3, 5, 2):
        x = rn(n, 4)
        agree(model(x), eager(x))


class Mapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, y):
        return torch.vmap(lambda a, b: (self.linear(a) * b.sum(), a @ b))(x, y)


def test_vmap() -> None:
    args = lambda n: (rn(n, 4), rn(n, 4))
    module = Mapped()
    check(module, export(module, args(3), dynamic_shapes=({0: D}, {0: D})), args(3), args(7), args(1))


# ---------------------------------------------------------------------------------------------------- dims
class Sizes(torch.nn.Module):
    def forward(self, x, y, z):
        return x.repeat(2) + y, x + z[1:]


@pytest.mark.parametrize("strict", [False, True])
def test_derived_dims(strict: bool) -> None:
    s = Dim("s", min=1, max=100)
    args = lambda n: (rn(n), rn(2 * n), rn(n + 1))
    try:
        exported = export(Sizes(), args(3), dynamic_shapes=({0: s}, {0: 2 * s}, {0: s + 1}), strict=strict)
    except Exception as e:
        pytest.skip(f"does not export: {e}")
    model = check(Sizes(), exported, args(3), args(2), args(100))
    for bad in ((rn(3), rn(5), rn(4)), (rn(3), rn(6), rn(3)), (rn(3), rn(6), rn(5)), args(101), args(0)):
        with pytest.raises(dhlo.ContractError):
            model(*bad)


def test_a_multiple_as_the_only_dim() -> None:
    module = pick(lambda x: x.view(-1, 8).sum(0))
    exported = export(module, (rn(24),), dynamic_shapes=(({0: 8 * Dim("s", max=100)},),))
    model = check(module, exported, (rn(24),), (rn(8),), (rn(80),), (rn(0),))
    with pytest.raises(dhlo.ContractError):
        model(rn(9))


def pick(f: Any) -> torch.nn.Module:
    """A module of a function."""

    class Fn(torch.nn.Module):
        def forward(self, *args):
            return f(*args)

    return Fn()


DIMS: dict[str, Any] = {
    "auto": (Dim.AUTO, Dim.AUTO, Dim.AUTO),
    "dynamic": (D, D, D),
    "named": (Dim("rows"), Dim("left"), Dim("right")),
    "bounded": (Dim("rows", min=1, max=8), Dim("left", min=0, max=8), Dim("right", min=1, max=8)),
    "hints": (Dim.DYNAMIC(min=1, max=8), Dim.AUTO(min=0, max=9), Dim.AUTO(max=8)),
}


class Joined(torch.nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y], 1).relu().sum(1) + y[:, 0]


@pytest.mark.parametrize("how", DIMS)
@pytest.mark.parametrize("option", ["", "strict", "oblivious", "deferred"])
def test_dims(how: str, option: str) -> None:
    rows, left, right = DIMS[how]
    options: dict[str, Any] = {"strict": option == "strict", "prefer_deferred_runtime_asserts_over_guards": option == "deferred"}
    with torch.fx.experimental._config.patch(backed_size_oblivious=option == "oblivious"):
        exported = export(Joined(), (rn(3, 4), rn(3, 5)), dynamic_shapes=({0: rows, 1: left}, {0: rows, 1: right}), **options)
    model = check(Joined(), exported, (rn(3, 4), rn(3, 1)), (rn(1, 1), rn(1, 7)), (rn(2, 0), rn(2, 7)))
    with pytest.raises(dhlo.ContractError):
        model(rn(3, 4), rn(2, 4))
    if how in ("bounded", "hints"):
        with pytest.raises(dhlo.ContractError):
            model(rn(3, 4), rn(3, 9))


def test_deferred_asserts() -> None:
    """The condition on sizes that decided a branch stays in the graph."""

    def f(x, y):
        return torch.cat([x, x]) + y if x.shape[0] * 2 == y.shape[0] else x

    dims = (({0: D, 1: D}, {0: D, 1: D}),)
    exported = export(pick(f), (rn(3, 4), rn(6, 4)), dynamic_shapes=dims, prefer_deferred_runtime_asserts_over_guards=True)
    model = check(pick(f), exported, (rn(3, 4), rn(6, 4)), (rn(1, 1), rn(2, 1)))
    with pytest.raises(dhlo.ContractError):
        model(rn(3, 4), rn(5, 4))


# ---------------------------------------------------------------------------------------------------- structure
class Pair(typing.NamedTuple):
    x: Any
    y: Any = None


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    extra: Any = None
    count: Any = 0


for cls in (Batch, Result):
    torch.export.register_dataclass(cls, serialized_type_name=f"dhlo_tests.{cls.__name__}")


class Variadic(torch.nn.Module):
    def forward(self, *xs):
        return xs[0] + xs[1][0] + xs[1][1]["a"], len(xs)


class Keywords(torch.nn.Module):
    def forward(self, x, *, scale=2.0, w, b=None):
        return x @ w * scale if b is None else x @ w * scale + b


class Anything(torch.nn.Module):
    def forward(self, x, *rest, flag, **named):
        y = x + rest[0] * named["w"]
        return y + named["z"][0] if flag else y


class Structures(torch.nn.Module):
    def forward(self, p, b):
        d = collections.OrderedDict(last=p.x[-1], first=[p.x[0], (p.y.sum(),)])
        return Result(b.x @ b.y, {"s": b.x.sum(0), "d": d}, b.x.shape[0]), Pair(p.x * p.y), None


@pytest.mark.parametrize("strict", [False, True])
def test_variadic_arguments(strict: bool) -> None:
    args = lambda n: (rn(n, 4), (rn(n, 4), {"a": rn(n, 4)}))
    exported = export(Variadic(), args(3), dynamic_shapes={"xs": ({0: D}, ({0: D}, {"a": {0: D}}))}, strict=strict)
    model = check(Variadic(), exported, args(3), args(1), args(0))
    with pytest.raises(dhlo.ContractError):
        model(rn(3, 4), (rn(3, 4), {"a": rn(2, 4)}))


@pytest.mark.parametrize("strict", [False, True])
def test_keywords_in_any_order(strict: bool) -> None:
    args = lambda n, m: ((rn(n, 4),), {"b": rn(n, m), "w": rn(4, m), "scale": 3.0})
    a, k = args(3, 5)
    dims = {"x": {0: D}, "b": {0: D, 1: D}, "w": {1: D}, "scale": None}
    exported = export(Keywords(), a, k, dynamic_shapes=dims, strict=strict)
    (x,), k = args(1, 1)
    model = check(Keywords(), exported, args(3, 5), ((x,), dict(sorted(k.items()))), ((x,), dict(sorted(k.items(), reverse=True))))
    with pytest.raises(dhlo.ContractError, match="missing: w"):
        model(x, b=k["b"], scale=3.0)
    with pytest.raises(dhlo.ContractError, match="scale"):
        model(x, **{**k, "scale": 4.0})


def test_arguments_of_all_kinds() -> None:
    args = lambda: ((rn(3, 4), rn(3, 4)), {"flag": True, "w": rn(3, 4), "z": (rn(3, 4),)})
    a, k = args()
    check(Anything(), export(Anything(), a, k), args(), args())


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.aminmax(x),
        lambda x: x.sort(-1),
        lambda x: Pair(x + 1, x * 2),
        lambda x: [x + 1, x * 2],
        lambda x: {"b": x + 1, "a": x * 2},
        lambda x: collections.OrderedDict(b=x + 1, a=x * 2),
        lambda x: Batch(x + 1, x * 2),
        lambda x: Pair(x + 1),
        lambda x: (x + 1,),
    ],
)
def test_results_of_one_structure(f: Callable[[torch.Tensor], Any]) -> None:
    model = dhlo.compile(export(pick(f), (rn(3, 4),), dynamic_shapes=(({0: D},),)), cache="")
    for n in (3, 1):
        x = rn(n, 4)
        y, z = model(x), f(x)
        assert type(y) is type(z)
        if isinstance(y, Batch):
            y, z = dataclasses.asdict(y), dataclasses.asdict(z)
        assert not isinstance(y, dict) or list(y) == list(z)
        torch.testing.assert_close(y, z, rtol=0, atol=0)


@pytest.mark.parametrize("strict", [False, True])
def test_structures(strict: bool) -> None:
    args = lambda n, m: (Pair(rn(n), rn(n)), Batch(rn(m, 4), rn(4, n)))
    dims = (Pair({0: D}, {0: D}), [{0: D}, {1: D}])
    exported = export(Structures(), args(3, 5), dynamic_shapes=dims, strict=strict)
    model = check(Structures(), exported, args(3, 5), args(1, 1), args(7, 2))
    assert "b.y: float32[4, " in model.signature
    with pytest.raises(dhlo.ContractError, match="p.y"):
        model(Pair(rn(3), rn(2)), Batch(rn(2, 4), rn(4, 3)))


def test_a_cache_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()

    class Step(torch.nn.Module):
        def forward(self, x, cache):
            k, v = cache.update(x * 2, x + 1, 0)
            return torch.nn.functional.scaled_dot_product_attention(x, k, v), cache

    def args(p: int) -> Any:
        cache = transformers.DynamicCache()
        cache.update(rn(1, 2, p, 8), rn(1, 2, p, 8), 0)
        return rn(1, 2, 1, 8), cache

    # Which of transformers' two forms of a cache is registered depends on what ran before in this process.
    example = args(5)
    shapes = torch.export.ShapesCollection()
    shapes[example[1].layers[0].keys] = {2: D}
    shapes[example[1].layers[0].values] = {2: D}
    exported = export(Step(), example, dynamic_shapes=shapes)
    model = dhlo.compile(exported)
    for p in (5, 1, 9):
        x, cache = args(p)
        want, new = Step()(x, copy.deepcopy(cache))
        got, ours = model(x, cache)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert type(ours) is type(new) and torch.equal(ours.layers[0].keys, new.layers[0].keys)


# ---------------------------------------------------------------------------------------------------- numbers
class Numbers(torch.nn.Module):
    def forward(self, x, n, f, flag, none):
        return {
            "y": x * n + f if flag else x,
            "n": n + x.shape[0],
            "f": f * 2,
            "flag": flag,
            "none": none,
            "half": x.shape[0] / 2,
            "big": x.shape[0] > 3,
            "sizes": list(x.shape),
        }


@pytest.mark.parametrize("strict", [False, True])
def test_numbers_and_none(strict: bool) -> None:
    exported = export(Numbers(), (rn(3), 4, 0.5, True, None), dynamic_shapes=({0: D}, D, None, None, None), strict=strict)
    check(Numbers(), exported, (rn(5), 7, 0.5, True, None), (rn(4), 2, 0.5, True, None))


@pytest.mark.parametrize("strict", [False, True])
def test_numbers_as_sizes(strict: bool) -> None:
    def f(d):
        return d["x"].reshape(d["n"][0], -1) + d["n"][1], d["x"][: d["n"][0]]

    exported = export(pick(f), ({"x": rn(12), "n": [3, 5]},), dynamic_shapes=(({"x": {0: D}, "n": [D, D]},),), strict=strict)
    check(pick(f), exported, ({"x": rn(12), "n": [3, 5]},), ({"x": rn(20), "n": [4, 7]},), ({"x": rn(20), "n": [10, 0]},))


class CountTied(torch.nn.Module):
    def forward(self, x, n):
        return x * torch.ones(n + 1), torch.arange(n)


def test_a_number_that_a_size_follows_from() -> None:
    module = CountTied()
    model = check(module, export(module, (rn(6), 5), dynamic_shapes=({0: D}, D)), (rn(6), 5), (rn(3), 2))
    with pytest.raises(dhlo.ContractError, match="a number that follows from others"):
        model(rn(6), 4)


# ---------------------------------------------------------------------------------------------------- memory
def test_the_same_tensor_twice() -> None:
    x, y = rn(3, 4), rn(5, 4)
    module = pick(lambda x, y: x @ y.t())
    check(module, export(module, (x, x), dynamic_shapes=(({0: D}, {0: D}),)), (y, y), (x, x))


class Aliases(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(rn(4))
        self.register_buffer("b", rn(3))

    def forward(self, x):
        y = x * 2
        return x, x.t(), x[1:], y, y, y.view(-1), self.w, self.b, self.w[1:]


def test_results_that_are_arguments_or_each_other() -> None:
    module = Aliases()
    model = check(module, export(module, (rn(3, 4),), dynamic_shapes=({0: D, 1: D},)), (rn(3, 4),), (rn(4, 1),), (rn(3, 0),))
    first = model(rn(4, 2))
    kept = [t.clone() for t in first]
    model(rn(4, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


LAYOUTS: Sequence[tuple[torch.Tensor, torch.Tensor]] = [
    (rn(4, 3, 2).permute(2, 1, 0), rn(5, 4).t()),
    (rn(1, 1, 4).expand(3, 5, 4), rn(4, 1).expand(4, 7)),
    (rn(31)[7:].view(2, 3, 4), rn(21)[1:].view(4, 5)),
    (rn(99).as_strided((3, 3, 4), (2, 1, 3)), rn(99).as_strided((4, 2), (0, 1))),
    (rn(6, 6, 8)[::2, ::3, ::2], rn(8, 10)[1::2, ::2]),
    (rn(2, 3, 4), rn(4, 5)[:, :0]),
]


@pytest.mark.parametrize("exported_with", [0, 2])
def test_arguments_in_any_layout(exported_with: int) -> None:
    module = pick(lambda x, y: (x @ y, x.sum(-1), x.reshape(-1)))
    args = LAYOUTS[exported_with]
    model = dhlo.compile(export(module, args, dynamic_shapes=(({0: D, 1: D}, {1: D}),)))
    for x, y in LAYOUTS:
        agree(model(x, y), module(x, y))
