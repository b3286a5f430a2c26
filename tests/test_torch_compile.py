"""The backend of torch.compile."""

from __future__ import annotations

import gc
import importlib
import logging
import re
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

from dhlo.errors import TorchVersionError
from dhlo.frontend.scalars import scalar_call
from dhlo.integrations import internals
from dhlo.integrations.packed import PackedGraph
from dhlo.integrations.torch_compile import _source
from dhlo.ir.symbols import symbol


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def packed(monkeypatch) -> list[PackedGraph]:
    """The graphs that the test makes."""
    made: list[PackedGraph] = []
    make = PackedGraph.__init__
    monkeypatch.setattr(PackedGraph, "__init__", lambda self, *args: made.append(self) or make(self, *args))
    return made


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def said(caplog) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.name == "dhlo" and r.levelno >= logging.WARNING)


class Mixed(nn.Module):
    """Sizes, numbers, a buffer that changes, attention, results that are views, numbers and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x, n, mask, *, more):
        y = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        self.calls.add_(1)
        more["seen"].mul_(2)
        new = self.norm(self.linear(y).flatten(0, 1)) * n
        return {"new": new, "turned": x.transpose(0, 1)[1:], "seen": more["seen"][:, 1:].t(), "size": 2 * x.shape[0], "none": None}


def arguments(batch: int, length: int, n: int):
    mask = torch.rand(length, length) > 0.3
    mask[:, 0] = True
    return (torch.randn(batch, length, 8), n, mask), {"more": {"seen": torch.randn(batch, length)}}


def test_one_graph_serves_all_sizes(caplog):
    """Results, views of arguments, changed arguments and buffers are eager's; weights that change are never stale."""
    model = Mixed().eval()
    compiled = torch.compile(model, backend="dhlo", dynamic=True)

    def check(batch: int, length: int, n: int) -> None:
        args, kwargs = arguments(batch, length, n)
        own = {"more": {"seen": kwargs["more"]["seen"].clone()}}
        before = model.calls.clone()
        got = compiled(*args, **own)
        assert torch.equal(model.calls, before + 1)
        want = model(*args, **kwargs)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own, kwargs)
        assert got["turned"].untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()
        assert got["seen"].untyped_storage().data_ptr() == own["more"]["seen"].untyped_storage().data_ptr()

    with torch.no_grad():
        for sizes in ((3, 4, 5), (2, 7, 3), (6, 5, 9)):
            check(*sizes)
        assert graphs() == 1 and not said(caplog)
        model.linear.weight.mul_(2)
        check(4, 5, 6)
        assert "weights (linear.weight) have changed" in said(caplog)
        model.load_state_dict({name: t + 0.5 for name, t in model.state_dict().items()})
        check(5, 4, 6)
        model.linear.weight.data = torch.randn(8, 8)
        check(5, 4, 6)
    assert graphs() == 1


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @torch.compile(backend="dhlo", dynamic=True)
    def forward(self, x):
        return self.linear(x).relu()


def test_modules_of_one_class_share_a_graph(caplog, monkeypatch, packed):
    """Each has its weights packed, up to a number; memory goes with the module."""
    monkeypatch.setattr("dhlo.integrations.packed._MOST_SETS", 2)
    x = torch.randn(3, 4)
    with torch.no_grad():
        layers = [Layer() for _ in range(4)]
        for layer in (*layers[:2], layers[0]):
            torch.testing.assert_close(layer(x), layer.linear(x).relu())
        assert graphs() == 1 and len(packed) == 1 and len(packed[0]._known) == 2 and not said(caplog)
        memory = weakref.ref(layers[1].linear.weight)
        layer = None
        del layers[1]
        gc.collect()
        assert memory() is None and len(packed[0]._known) == 1
        for layer in layers:
            torch.testing.assert_close(layer(x), layer.linear(x).relu())
    assert graphs() == 1 and "come in 2 sets" in said(caplog)


def test_what_is_reset_is_freed(packed):
    """Programs and packed weights go with TorchDynamo's graphs, although the module stays."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        torch.compile(model, backend="dhlo", dynamic=True)(torch.randn(3, 4))
    (graph,) = packed
    (compiled,) = graph._known.values()
    alive = [weakref.ref(x) for x in (graph, compiled.model)]
    packed.clear()
    del graph, compiled
    torch._dynamo.reset()
    gc.collect()
    assert [x() for x in alive] == [None, None]


def test_training_runs_as_aot_eager(caplog):
    from dhlo.integrations import torch_compile

    torch_compile._told.clear()
    model = nn.Linear(4, 2)
    compiled = torch.compile(model, backend="dhlo", dynamic=True)
    x = torch.randn(3, 4)
    for _ in range(2):
        compiled(x).sum().backward()
        want = torch.autograd.grad(model(x).sum(), model.weight)[0]
        torch.testing.assert_close(model.weight.grad, want)
        with torch.no_grad():
            model.weight -= 0.1 * model.weight.grad
        model.weight.grad = None
    assert said(caplog).count("aot_eager") == 1


def test_gradients_that_a_function_takes():
    """Those of torch.func are part of the graph; what torch.autograd is asked for inside torch.no_grad() runs as training does."""

    def score(q):
        return nn.functional.scaled_dot_product_attention(q, 2 * q, q + 1).sum()

    def asked(q):
        with torch.enable_grad():
            x = q.detach().requires_grad_()
            (slope,) = torch.autograd.grad(score(x), x)
        return slope + 1

    with torch.no_grad():
        for f in (torch.func.grad(score), asked):
            compiled = torch.compile(f, backend="dhlo", dynamic=True)
            for sizes in ((2, 3, 5, 4), (3, 2, 4, 5)):
                q = torch.randn(sizes)
                torch.testing.assert_close(compiled(q), f(q), rtol=1e-4, atol=1e-5)


def test_graph_breaks_and_inference_mode():
    def f(x):
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return y.cumsum(0) if y.sum() > 0 else y

    compiled = torch.compile(f, backend="dhlo", dynamic=True)
    for make in (torch.no_grad, torch.inference_mode):
        with make():
            for n in (5, 9):
                x = torch.rand(n)
                torch.testing.assert_close(compiled(x), f(x))


def test_weights_of_inference_mode_are_arguments(caplog):
    with torch.inference_mode():
        model = nn.Linear(4, 2)
        compiled = torch.compile(model, backend="dhlo", dynamic=True)
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
    assert "inference_mode" in said(caplog)


def results_that_share(x, w):
    y = x + w
    turned = x.transpose(1, 2) * 2
    a, b = (y * 3).split(2, dim=1)
    outer = turned.exp()
    return {
        "twice": [y, y],
        "views": [y[1:], y.view(-1), y.transpose(0, 1), y.unsqueeze(0).expand(2, -1, -1, -1)],
        "parts": [a, b],
        "turned": turned,
        "turned and views": [outer, outer.transpose(1, 2).flatten(1)],
        "argument": [x, x[0]],
    }


def test_results_share_memory_as_in_eager():
    """So that changes of one show in the other; strides are eager's, too, where they are dense."""
    compiled = torch.compile(results_that_share, backend="dhlo", dynamic=True, fullgraph=True)
    for sizes in ((3, 4, 5), (6, 4, 2)):
        x, w = torch.randn(sizes), torch.randn(sizes[-1])
        with torch.no_grad():
            got, want = (tree_leaves(f(x, w)) for f in (compiled, results_that_share))
        torch.testing.assert_close(got, want)
        assert [memory(got, t) for t in got] == [memory(want, t) for t in want]
        assert got[0] is got[1] and [t.stride() for t in got] == [t.stride() for t in want]
        got[0].add_(1)
        want[0].add_(1)
        torch.testing.assert_close(got, want)
    assert graphs() == 1


def memory(tensors: list[torch.Tensor], x: torch.Tensor) -> list[int]:
    """The numbers of the tensors that share memory with one, and where in that they begin."""
    return [t.storage_offset() if t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else -1 for t in tensors]


def test_random_numbers_follow_manual_seed():
    compiled = torch.compile(lambda x: torch.rand_like(x), backend="dhlo", dynamic=True)
    x = torch.zeros(100)
    torch.manual_seed(3)
    a, b = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), a) and torch.equal(compiled(x), b) and not torch.equal(a, b)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"options": {"wieghts": "int8"}}, "unknown option: 'wieghts'"),
        ({"options": {"grow": {"x": 0}}}, "'grow'"),
        ({"options": {"pages": {"x": 16}}}, "'pages'"),
        ({"mode": "max-autotune"}, "inductor"),
    ],
)
def test_unknown_options_are_refused(settings, text):
    compiled = torch.compile(lambda x: x + 1, backend="dhlo", **settings)
    with pytest.raises(Exception, match=text):
        compiled(torch.ones(3))


def test_what_has_no_lowering_is_named():
    compiled = torch.compile(lambda x: x.to_sparse().coalesce().values(), backend="dhlo", fullgraph=True)
    with pytest.raises(Exception, match="sparse"):
        compiled(torch.ones(3))


def test_numbers_may_be_negative():
    def shifted(x, n):
        return x * n + n // 2, torch.arange(n, n + 3), x[n:], x * 2 if n > 1 else x - n

    compiled = torch.compile(shifted, backend="dhlo", dynamic=True)
    with torch.no_grad():
        for n in (3, 4, -2, 0, -3, -4, 2):
            x = torch.randn(6)
            for got, want in zip(compiled(x, n), shifted(x, n), strict=True):
                torch.testing.assert_close(got, want)


def test_numbers_that_are_equal_or_that_sizes_follow_from():
    def scaled(x, a, b):
        return x * torch.ones(a + 1) + a - b, torch.arange(b)

    compiled = torch.compile(scaled, backend="dhlo", dynamic=True)
    with torch.no_grad():
        for n in (5, 7):
            x = torch.randn(n + 1)
            torch.testing.assert_close(compiled(x, n, n), scaled(x, n, n))
    assert graphs() == 1


def test_sizes_that_guards_fix():
    """What is pooled to one window is squeezed away, or broadcast; at another count of windows TorchDynamo traces again."""

    def pooled(x, w):
        y = nn.functional.max_pool2d(x, (4, 1))
        return y.squeeze(2) + 1, y * w

    compiled = torch.compile(pooled, backend="dhlo", dynamic=True)
    with torch.no_grad():
        for rows, length, many in ((3, 6, 1), (2, 7, 1), (4, 9, 2)):
            x, w = torch.randn(rows, 5, length, 11), torch.randn(10 if length < 8 else 2, 1)
            for got, want in zip(compiled(x, w), pooled(x, w), strict=True):
                torch.testing.assert_close(got, want)
            assert graphs() == many


def test_encoder_layers_of_pytorch():
    """Their operators for evaluation, which TorchDynamo calls where no gradients are asked of them."""
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True).eval()
    model = nn.TransformerEncoder(layer, 2).eval()
    compiled = torch.compile(model, backend="dhlo", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for rows, length in ((3, 6), (2, 9)):
            x = torch.randn(rows, length, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert graphs() == 1


class Filled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 9, 4))

    def forward(self, x, at):
        end = at + x.shape[1]
        self.rows[:, at:end] = x
        return self.rows[:, :end].sum(1), self.rows


def test_a_cache_that_is_filled_at_a_number():
    """Up to its end, too, of which TorchDynamo makes a graph where one number follows from another."""
    model, twin = Filled(), Filled()
    compiled = torch.compile(model, backend="dhlo", dynamic=True)
    with torch.no_grad():
        for at, length in ((2, 3), (5, 2), (6, 3)):
            x = torch.randn(2, length, 4)
            torch.testing.assert_close(compiled(x, at), twin(x, at))


def test_jagged_tensors():
    """Each graph has their parts as its arguments."""
    compiled = torch.compile(lambda x: (x * 2).cos(), backend="dhlo", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for lengths in ((2, 3), (5, 4, 2)):
            x = torch.nested.nested_tensor([torch.rand(n, 4) for n in lengths], layout=torch.jagged)
            got = compiled(x)
            assert got.is_nested and got.shape == x.shape
            torch.testing.assert_close(got.values(), (x.values() * 2).cos())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self']._modules['layers']._modules['0']._parameters['weight']", "layers.0.weight"),
        ("L['fn']._parameters['weight']", "weight"),
        ("L['model']._modules['a']._buffers['n']", "model.a.n"),
        ("G['cache'].keys[0]", "cache.keys[0]"),
        ("", "l_x_"),
    ],
)
def test_names_are_the_users(source, name):
    assert _source(SimpleNamespace(_dynamo_source=SimpleNamespace(name=source), name="l_x_")) == name


def test_sums_of_sizes():
    s = symbol("s0")
    assert scalar_call(torch.sym_sum, ([s, 2, s],), {}) == 2 * s + 2
    assert scalar_call(torch.sym_sum, ([1, 2, 4],), {}) == 7


def test_a_version_that_lacks_what_the_backend_rests_on(monkeypatch):
    with monkeypatch.context() as without:
        without.delattr("torch._functorch._aot_autograd.descriptors.PlainAOTInput")
        with pytest.raises(TorchVersionError, match=rf"torch {re.escape(torch.__version__)}: .*PlainAOTInput"):
            importlib.reload(internals)
    importlib.reload(internals)
