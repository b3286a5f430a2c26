"""Recurrent layers and cells; the products with the input are matmuls of their own, the recurrences single ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dhlo.frontend.aten.contraction import _linear as linear
from dhlo.frontend.aten.random import drop
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.registry import lowers
from dhlo.ops import elementwise as ew
from dhlo.ops import sequence

A: Any = torch.ops.aten


def _layers(params: Sequence[Value], has_biases: bool, directions: int) -> list[list[list[Value]]]:
    """Parameters by layer and direction."""
    per = 4 if has_biases else 2
    groups = [list(params[i : i + per]) for i in range(0, len(params), per)]
    return [groups[i : i + directions] for i in range(0, len(groups), directions)]


def _state(b: OpBuilder, h: Value, i: int) -> Value:
    return b.pick(h, 0, i)


def _stack(b: OpBuilder, xs: list[Value]) -> Value:
    return b.concat([b.unsqueeze(x, 0) for x in xs], 0)


@lowers(A.lstm.input)
def _lstm(
    b: OpBuilder,
    x: Value,
    hx: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    directions = 2 if bidirectional else 1
    unbatched = b.rank(x) == 2
    h0, c0 = (b.unsqueeze(h, 1) if unbatched else h for h in hx)
    x = b.unsqueeze(x, 1) if unbatched else b.swap(x, 0, 1) if batch_first else x
    hs, cs = [], []
    for layer, group in enumerate(_layers(params, has_biases, directions)):
        outs = []
        for d, p in enumerate(group):
            gates = linear(b, x, p[0], b.add(p[2], p[3]) if has_biases else None)
            i = layer * directions + d
            if len(p) in (3, 5):
                raise NotImplementedError("LSTM with projections")
            y, h, c = b.op(sequence.Lstm, [gates, p[1], _state(b, h0, i), _state(b, c0, i)], {"reverse": d == 1})
            outs.append(y)
            hs.append(h)
            cs.append(c)
        x = b.concat(outs, 2)
        if train and dropout and layer < layers - 1:
            x = drop(b, x, dropout)[0]
    y, h, c = x, _stack(b, hs), _stack(b, cs)
    if unbatched:
        return [b.squeeze(v, [1]) for v in (y, h, c)]
    return [b.swap(y, 0, 1) if batch_first else y, h, c]


@lowers(A.gru.input)
def _gru(
    b: OpBuilder,
    x: Value,
    h0: Value,
    params: Sequence[Value],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    directions = 2 if bidirectional else 1
    unbatched = b.rank(x) == 2
    h0 = b.unsqueeze(h0, 1) if unbatched else h0
    x = b.unsqueeze(x, 1) if unbatched else b.swap(x, 0, 1) if batch_first else x
    hs = []
    for layer, group in enumerate(_layers(params, has_biases, directions)):
        outs = []
        for d, p in enumerate(group):
            gates = linear(b, x, p[0], p[2] if has_biases else None)
            bias = p[3] if has_biases else b.full([b.shape(p[1])[0]], 0, b.dtype(p[1]))
            y, h = b.op(sequence.Gru, [gates, p[1], bias, _state(b, h0, layer * directions + d)], {"reverse": d == 1})
            outs.append(y)
            hs.append(h)
        x = b.concat(outs, 2)
        if train and dropout and layer < layers - 1:
            x = drop(b, x, dropout)[0]
    y, h = x, _stack(b, hs)
    if unbatched:
        return [b.squeeze(v, [1]) for v in (y, h)]
    return [b.swap(y, 0, 1) if batch_first else y, h]


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


@lowers(A.rnn_tanh_cell.default)
def _rnn_tanh_cell(
    b: OpBuilder, x: Value, h: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None
) -> Value:
    return b.unary(ew.Tanh, b.add(linear(b, x, w_ih, b_ih), linear(b, h, w_hh, b_hh)))


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
