"""The operators behind nn.MultiheadAttention and nn.TransformerEncoderLayer in evaluation, at several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dhlo
from dhlo.frontend import import_program
from tests.frontend.helpers import check, export

WIDTH, HEADS = 16, 4
SIZES = ((2, 5), (3, 8), (2, 1), (1, 3))


def projections() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(s) * 0.3 for s in ((3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)))


def of_queries(_: int, length: int) -> torch.Tensor:
    return torch.rand(length, length) > 0.6


def of_keys(batch: int, length: int) -> torch.Tensor:
    return torch.rand(batch, length) > 0.6


def of_all(batch: int, length: int) -> torch.Tensor:
    return torch.rand(batch, HEADS, length, length) > 0.6


def of_numbers(_: int, length: int) -> torch.Tensor:
    """Whatever isn't 0 masks."""
    return torch.randn(length, length).relu()


@pytest.mark.parametrize(("need_weights", "average"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("kind", "mask"), [(None, None), (0, of_queries), (1, of_keys), (2, of_all), (0, of_all), (0, of_numbers)])
def test_multi_head_attention(kind: int | None, mask: Any, need_weights: bool, average: bool) -> None:
    """Queries that are masked as a whole give NaN."""
    torch.manual_seed(0)
    weights = projections()

    def attention(q: torch.Tensor, k: torch.Tensor, m: torch.Tensor | None) -> Any:
        options = (WIDTH, HEADS, *weights, m, need_weights, average, kind)
        y, shares = torch._native_multi_head_attention(q, k, k + q, *options)
        return (y, shares) if need_weights else y

    sets = [(torch.randn(b, t, WIDTH), torch.randn(b, t, WIDTH), mask(b, t) if mask else None) for b, t in SIZES]
    check(attention, *sets)


@pytest.mark.parametrize(("norm_first", "activation"), [(True, "relu"), (False, "gelu")])
@pytest.mark.parametrize("masks", ["", "queries", "keys", "both"])
def test_encoder_layer(norm_first: bool, activation: str, masks: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, norm_first=norm_first, activation=activation, layer_norm_eps=1e-2, batch_first=True
    )
    layer.eval().requires_grad_(False)

    def run(x: torch.Tensor, queries: torch.Tensor | None, keys: torch.Tensor | None) -> Any:
        return layer(x, queries, keys)

    def arguments(batch: int, length: int) -> tuple[Any, ...]:
        queries = nn.Transformer.generate_square_subsequent_mask(length) if masks in ("queries", "both") else None
        hidden = torch.arange(length) >= torch.randint(1, length + 1, (batch, 1))
        keys = torch.zeros(batch, length).masked_fill(hidden, -torch.inf) if masks in ("keys", "both") else None
        return torch.randn(batch, length, WIDTH), queries, keys

    program = check(run, *[arguments(b, t) for b, t in SIZES])
    with program.context:
        assert "dhlo.attention" in str(program.module)


def test_encoder_layer_compiled() -> None:
    """Also where there are no rows, and where some are masked as a whole."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True).eval().requires_grad_(False)

    def run(x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = layer(x, None, keys)
        return out

    compiled = dhlo.compile(export(run, (torch.randn(2, 5, WIDTH), of_keys(2, 5))))
    for batch, length in (*SIZES, (0, 4), (3, 0)):
        x, keys = torch.randn(batch, length, WIDTH), of_keys(batch, length)
        torch.testing.assert_close(compiled(x, keys), run(x, keys), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_kinds_of_masks_that_there_are_not() -> None:
    x, m, weights = torch.randn(2, 5, WIDTH), of_queries(2, 5), projections()
    program = export(lambda x, m: torch._native_multi_head_attention(x, x, x, WIDTH, HEADS, *weights, m, False, True, 0)[0], (x, m))
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten._native_multi_head_attention.default)
    node.args = (*node.args[:-1], 3)
    with pytest.raises(dhlo.CompileError, match="mask of kind 3"):
        import_program(program)
