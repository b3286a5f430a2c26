"""Recurrent layers and cells; the products with the input are matmuls of their own, the recurrences single ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.frontend.aten.activation import _relu as relu
from dhlo.frontend.aten.contraction import _linear as linear
from dhlo.frontend.aten.random import drop
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.compat import aten as A
from dhlo.frontend.registry import Lowering, lowers
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import sequence

Direction = Callable[[Value, Sequence[Value], Sequence[Value], bool], Any]


def _stack(b: OpBuilder, xs: list[Value]) -> Value:
    return b.concat([b.unsqueeze(x, 0) for x in xs], 0)


def _recurrent(
    b: OpBuilder,
    run: Direction,
    x: Value,
    initial: Sequence[Value],
    params: Sequence[Value],
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    """Layers of recurrences. `run(x, parameters, states, reverse)` is one direction of one layer: [its output, states after it]
    from x [T, B, I] and states [B, H]. Computed in f32 where x is f16. Returns [output, *states]."""
    narrow = b.dtype(x).name == "f16"
    if narrow:
        x, initial, params = b.convert(x, torch.float32), *([b.convert(v, torch.float32) for v in vs] for vs in (initial, params))
    unbatched, directions = b.rank(x) == 2, 2 if bidirectional else 1
    if unbatched:
        x, initial = b.unsqueeze(x, 1), [b.unsqueeze(h, 1) for h in initial]
    elif batch_first:
        x = b.swap(x, 0, 1)
    per = len(params) // (layers * directions)
    after: list[list[Value]] = [[] for _ in initial]
    for layer in range(layers):
        outs = []
        for d in range(directions):
            i = layer * directions + d
            y, *states = run(x, params[i * per : (i + 1) * per], [b.pick(h, 0, i) for h in initial], d == 1)
            outs.append(y)
            for all_, state in zip(after, states, strict=True):
                all_.append(state)
        x = b.concat(outs, 2)
        if train and dropout and layer < layers - 1:
            x = drop(b, x, dropout)[0]
    results = [x, *(_stack(b, s) for s in after)]
    if unbatched:
        results = [b.squeeze(v, [1]) for v in results]
    elif batch_first:
        results[0] = b.swap(results[0], 0, 1)
    return [b.convert(v, torch.float16) for v in results] if narrow else results


@lowers(A.lstm.input)
def _lstm(b: OpBuilder, x: Value, hx: Sequence[Value], params: Sequence[Value], has_biases: bool, *how: Any) -> list[Value]:
    def run(x: Value, p: Sequence[Value], states: Sequence[Value], reverse: bool) -> Any:
        gates = linear(b, x, p[0], b.add(p[2], p[3]) if has_biases else None)
        projection = p[-1:] if len(p) in (3, 5) else []
        return b.op(sequence.Lstm, [gates, p[1], *states, *projection], {"reverse": reverse})

    return _recurrent(b, run, x, hx, params, *how)


@lowers(A.gru.input)
def _gru(b: OpBuilder, x: Value, h0: Value, params: Sequence[Value], has_biases: bool, *how: Any) -> list[Value]:
    def run(x: Value, p: Sequence[Value], states: Sequence[Value], reverse: bool) -> Any:
        gates = linear(b, x, p[0], p[2] if has_biases else None)
        bias = p[3] if has_biases else b.full([b.shape(p[1])[0]], 0, b.dtype(p[1]))
        return b.op(sequence.Gru, [gates, p[1], bias, *states], {"reverse": reverse})

    return _recurrent(b, run, x, [h0], params, *how)


def _rnn(activation: str) -> Lowering:
    def rnn(b: OpBuilder, x: Value, h0: Value, params: Sequence[Value], has_biases: bool, *how: Any) -> list[Value]:
        def run(x: Value, p: Sequence[Value], states: Sequence[Value], reverse: bool) -> Any:
            gates = linear(b, x, p[0], b.add(p[2], p[3]) if has_biases else None)
            return b.op(sequence.Rnn, [gates, p[1], *states], {"activation": activation, "reverse": reverse})

        return _recurrent(b, run, x, [h0], params, *how)

    return rnn


lowers(A.rnn_tanh.input)(_rnn("tanh"))
lowers(A.rnn_relu.input)(_rnn("relu"))


@lowers(A.lstm_cell.default)
def _lstm_cell(
    b: OpBuilder,
    x: Value,
    hx: Sequence[Value],
    w_ih: Value,
    w_hh: Value,
    b_ih: Value | None = None,
    b_hh: Value | None = None,
) -> list[Value]:
    gates = b.add(linear(b, x, w_ih, b_ih), linear(b, hx[0], w_hh, b_hh))
    n = b.shape(hx[0])[-1]
    i, f, g, o = (b.slice(gates, b.rank(gates) - 1, n * k, n) for k in range(4))
    sigmoid: Any = lambda v: b.unary(ew.Sigmoid, v)
    c = b.add(b.mul(sigmoid(f), hx[1]), b.mul(sigmoid(i), b.unary(ew.Tanh, g)))
    return [b.mul(sigmoid(o), b.unary(ew.Tanh, c)), c]


@lowers(A.gru_cell.default)
def _gru_cell(
    b: OpBuilder, x: Value, h: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
) -> Value:
    gi, gh = linear(b, x, w_ih, b_ih), linear(b, h, w_hh, b_hh)
    n, d = b.shape(h)[-1], b.rank(h) - 1
    part: Any = lambda v, k: b.slice(v, d, n * k, n)
    r = b.unary(ew.Sigmoid, b.add(part(gi, 0), part(gh, 0)))
    z = b.unary(ew.Sigmoid, b.add(part(gi, 1), part(gh, 1)))
    new = b.unary(ew.Tanh, b.add(part(gi, 2), b.mul(r, part(gh, 2))))
    return b.add(b.mul(b.sub(1.0, z), new), b.mul(z, h))


def _rnn_cell(activation: Callable[[OpBuilder, Value], Value]) -> Lowering:
    def cell(
        b: OpBuilder, x: Value, h: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
    ) -> Value:
        return activation(b, b.add(linear(b, x, w_ih, b_ih), linear(b, h, w_hh, b_hh)))

    return cell


lowers(A.rnn_tanh_cell.default)(_rnn_cell(lambda b, x: b.unary(ew.Tanh, x)))
lowers(A.rnn_relu_cell.default)(_rnn_cell(relu))


# ---------------------------------------------------------------------------------------------------- grouped products
@lowers("transformers::grouped_mm_fallback")
def _grouped_mm(b: OpBuilder, x: Value, w: Value, offsets: Value) -> Value:
    b.dims.same(b.shape(x)[1], b.shape(w)[1])
    b.dims.same(b.shape(offsets)[0], b.shape(w)[0])
    return b.op(sequence.GroupedMatmul, [x, w, offsets])


@lowers(A._grouped_mm.default)
def _grouped_mm_aten(
    b: OpBuilder, x: Value, w: Value, offs: Value | None = None, bias: Value | None = None, out_dtype: Any = None
) -> Value:
    if offs is None:
        return b.matmul(x, w)
    y = _grouped_mm(b, x, w, offs)
    return y if out_dtype is None else b.convert(y, out_dtype)
