"""Recurrent layers, grouped matrix products and Fourier transforms; each has a kernel of its own."""

# ruff: noqa: E704
from typing import Any

import torch
from torch.utils._sympy.functions import FloorDiv

from dhlo.ir.dialect import Flag, Ints, Kind, Op, Out, Tensor, TypeError_, Variadic, attr, dims_of, equal_shapes
from dhlo.ir.mlir import ir
from dhlo.ir.ops.quantised import round_rows
from dhlo.ir.types import TensorType, from_mlir

Args = list[torch.Tensor]


class GroupedMatmul(Op, name="grouped_matmul"):
    """Rows offsets[e-1] to offsets[e] of x [S, K] times w[e] [K, N], for each of the E groups; rows after the last
    offset are
    zeros. `offsets` [E] are ascending integers (transformers' grouped_mm_fallback, aten._grouped_mm)."""

    kind = Kind.OPAQUE
    x: Tensor
    w: Tensor
    offsets: Tensor
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, w, offsets = operands
        if x.rank != 2 or w.rank != 3 or offsets.rank != 1 or x.dtype != w.dtype or not offsets.dtype.is_int:
            raise TypeError_("grouped_matmul wants [S, K], [E, K, N] and integer offsets [E]")
        return [x.with_shape([x.shape[0], w.shape[2]])]

    def reference(self, args: Args, sizes: Any) -> Args:
        return [_by_groups(*args)]


def _by_groups(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    y = x.new_zeros(x.shape[0], w.shape[2])
    start = 0
    for e, end in enumerate(offsets.tolist()):
        y[start:end] = x[start:end] @ w[e]
        start = max(start, end)
    return y


class RoundedGroupedMatmul(Op, name="rounded_grouped_matmul"):
    """`grouped_matmul` whose rows are rounded to int8 as they are read, as those of `rounded_matmul`."""

    kind = Kind.OPAQUE
    x: Tensor
    w: Tensor
    offsets: Tensor
    group: ir.IntegerAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        return GroupedMatmul.infer(operands, attrs)

    def reference(self, args: Args, sizes: Any) -> Args:
        x, w, offsets = args
        return [_by_groups(round_rows(x, attr(self, "group")), w.float(), offsets).to(x.dtype)]


class Lstm(Op, name="lstm"):
    """The recurrence of one LSTM direction: gates [T, B, 4H] from the input (i, f, g, o; biases included), w [4H, P] of the hidden
    state, h0 [B, P], c0 [B, H] and perhaps a projection [P, H] of the hidden state after each step (else P = H); results
    y [T, B, P], h [B, P] and c [B, H] after the last step. `reverse` runs from the last step."""

    kind = Kind.OPAQUE
    gates: Tensor
    w: Tensor
    h0: Tensor
    c0: Tensor
    projection: Variadic  # none or one
    reverse: Flag
    y: Out
    h: Out
    c: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        gates, w, h0, c0 = operands[:4]
        _ranks(operands, (3, 2, 2, 2, 2))
        equal_shapes([w.with_shape([gates.shape[2], h0.shape[1]]), w], "weights and gates")
        return [gates.with_shape([*gates.shape[:2], h0.shape[1]]), h0, c0]

    def reference(self, args: Args, sizes: Any) -> Args:
        gates, w, h, c, *projection = args
        y = gates.new_empty(*gates.shape[:2], h.shape[1])
        for t in _steps(gates.shape[0], attr(self, "reverse")):
            i, f, g, o = (gates[t] + h @ w.t()).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            h = h @ projection[0].t() if projection else h
            y[t] = h
        return [y, h.clone(), c.clone()]


class Rnn(Op, name="rnn"):
    """The recurrence of one direction of a plain recurrent layer: gates [T, B, H] from the input (biases included), w [H, H] of the
    hidden state, h0 [B, H]; results y [T, B, H] and h [B, H]. `activation` is tanh or relu; `reverse` runs from the last step."""

    kind = Kind.OPAQUE
    gates: Tensor
    w: Tensor
    h0: Tensor
    activation: ir.StringAttr
    reverse: Flag
    y: Out
    h: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        _ranks(operands, (3, 2, 2))
        if attrs["activation"] not in ("tanh", "relu"):
            raise TypeError_(f"there is no activation {attrs['activation']!r}")
        return [operands[0], operands[2]]

    def reference(self, args: Args, sizes: Any) -> Args:
        gates, w, h = args
        y = torch.empty_like(gates)
        f = torch.tanh if attr(self, "activation") == "tanh" else torch.relu
        for t in _steps(gates.shape[0], attr(self, "reverse")):
            h = f(gates[t] + h @ w.t())
            y[t] = h
        return [y, h.clone()]


class Gru(Op, name="gru"):
    """The recurrence of one GRU direction: gates [T, B, 3H] from the input (r, z, n; biases included), w [3H, H] and
    bias [3H] of
    the hidden state, h0 [B, H]; results y [T, B, H] and h [B, H]. `reverse` runs from the last step."""

    kind = Kind.OPAQUE
    gates: Tensor
    w: Tensor
    bias: Tensor
    h0: Tensor
    reverse: Flag
    y: Out
    h: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        gates, _, _, h0 = operands
        _ranks(operands, (3, 2, 1, 2))
        return [gates.with_shape([*gates.shape[:2], h0.shape[1]]), h0]

    def reference(self, args: Args, sizes: Any) -> Args:
        gates, w, bias, h = args
        y = gates.new_empty(*gates.shape[:2], h.shape[1])
        for t in _steps(gates.shape[0], attr(self, "reverse")):
            (xr, xz, xn), (hr, hz, hn) = gates[t].chunk(3, -1), (h @ w.t() + bias).chunk(3, -1)
            z = (xz + hz).sigmoid()
            h = (1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * h
            y[t] = h
        return [y, h.clone()]


def _ranks(operands: list[TensorType], ranks: tuple[int, ...]) -> None:
    if len(operands) > len(ranks) or any(
        t.rank != r or t.dtype != operands[0].dtype or not t.dtype.is_float for t, r in zip(operands, ranks, strict=False)
    ):
        raise TypeError_(f"a recurrence wants floats of one dtype and of the ranks {', '.join(map(str, ranks))}")


def _steps(n: int, reverse: bool) -> range:
    return range(n - 1, -1, -1) if reverse else range(n)


class Fft(Op, name="fft"):
    """Discrete Fourier transform along `dims` of re + i im, both of one shape: real and imaginary part of the result.
    `inverse`
    uses the positive exponent; nothing is scaled (aten._fft_c2c, normalisation 0)."""

    kind = Kind.OPAQUE
    re: Tensor
    im: Tensor
    dims: Ints
    inverse: Flag
    out_re: Out
    out_im: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        if operands[0] != operands[1] or not operands[0].dtype.is_float:
            raise TypeError_("fft wants two float tensors of one type")
        dims_of(attrs["dims"], operands[0].rank)
        return operands

    def reference(self, args: Args, sizes: Any) -> Args:
        z = torch.complex(args[0], args[1])
        if z.numel() == 0:
            return [args[0], args[1]]
        f = torch.fft.ifftn if attr(self, "inverse") else torch.fft.fftn
        z = f(z, dim=attr(self, "dims"), norm="forward" if attr(self, "inverse") else "backward")
        return [z.real.contiguous(), z.imag.contiguous()]


class Rfft(Op, name="rfft"):
    """Discrete Fourier transform along `dim` of real x [.., n, ..]: real and imaginary part [.., n // 2 + 1, ..] of the half that
    isn't redundant (aten._fft_r2c, one-sided, normalisation 0)."""

    kind = Kind.OPAQUE
    x: Tensor
    dim: ir.IntegerAttr
    out_re: Out
    out_im: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        x, d = operands[0], attrs["dim"]
        dims_of([d], x.rank)
        if not x.dtype.is_float:
            raise TypeError_("rfft wants a float tensor")
        return [x.with_shape([FloorDiv(n, 2) + 1 if k == d else n for k, n in enumerate(x.shape)])] * 2

    def reference(self, args: Args, sizes: Any) -> Args:
        x, d = args[0], attr(self, "dim")
        if x.numel() == 0:
            return [x.new_zeros([n // 2 + 1 if k == d else n for k, n in enumerate(x.shape)]) for _ in range(2)]
        z = torch.fft.rfft(x, dim=d)
        return [z.real.contiguous(), z.imag.contiguous()]


class Irfft(Op, name="irfft"):
    """The real tensor [.., n, ..] whose transform along `dim` starts with re + i im [.., n // 2 + 1, ..], times n. Imaginary parts
    of what is real in such a transform count as 0 (aten._fft_c2r, normalisation 0)."""

    kind = Kind.OPAQUE
    explicit = True
    re: Tensor
    im: Tensor
    dim: ir.IntegerAttr
    y: Out

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        (x, im), y, d = operands, results[0], attrs["dim"]
        dims_of([d], x.rank)
        if x != im or not x.dtype.is_float or y.dtype != x.dtype or y.rank != x.rank:
            return "irfft wants two float tensors of one type, and gives one of their dtype"
        half = y.with_shape([FloorDiv(n, 2) + 1 if k == d else n for k, n in enumerate(y.shape)])
        equal_shapes([half, x], "half of the result's transform and irfft's operands")
        return None

    def reference(self, args: Args, sizes: Any) -> Args:
        shape, d = [sizes(n) for n in from_mlir(self.results[0]).shape], attr(self, "dim")
        if 0 in shape:
            return [args[0].new_zeros(shape)]
        return [torch.fft.irfft(torch.complex(*args), n=shape[d], dim=d, norm="forward")]


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)]
