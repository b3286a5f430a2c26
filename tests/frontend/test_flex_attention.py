"""flex_attention: scores and masks that are functions of positions, beside PyTorch's own dense form of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.export import Dim, export
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dhlo
from dhlo.api import import_programs
from dhlo.errors import CompileError
from dhlo.options import Options
from dhlo.pipeline import PASSES, run_passes

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
HEADS, DEPTH, MOST = 4, 16, 300


def inputs(batch: int, queries: int, keys: int, dtype: torch.dtype, kv_heads: int = 2) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(batch * 7 + queries * 3 + keys)
    q = torch.randn(batch, HEADS, queries, DEPTH, generator=g).to(dtype)
    k, v = (torch.randn(batch, kv_heads, keys, DEPTH, generator=g).to(dtype) for _ in range(2))
    return q, k, v, torch.randint(0, keys + 1, (batch,), generator=g)


class Flex(torch.nn.Module):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.form = form
        self.table = torch.nn.Parameter(torch.randn(HEADS, 2 * MOST))
        self.register_buffer("slope", torch.tensor(0.3, dtype=torch.float64))
        self.register_buffer("documents", torch.arange(MOST) // 7)

    def forward(self, q, k, v, lengths):
        return self.form(self, q, k, v, lengths)


def attend(q: Any, k: Any, v: Any, mod: Any, **more: Any) -> Any:
    return flex_attention(q, k, v, score_mod=mod, enable_gqa=True, **more)


def hidden(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Padding, some of whose rows see nothing at all."""
    return attend(q, k, v, lambda s, b, h, i, j: torch.where((j < lengths[b]) & (i >= j - 1), s, -math.inf))


def relative(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return attend(q, k, v, lambda s, b, h, i, j: s + m.table[h, i - j + MOST])


def documents(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return attend(q, k, v, lambda s, b, h, i, j: torch.where(m.documents[i] == m.documents[j], 2 * s, s - 1e9))


def zeros(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return attend(q, k, v, lambda s, b, h, i, j: s + torch.where(j < lengths[b], torch.full_like(s, -0.5), torch.zeros_like(s)))


def capped(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return attend(q, k, v, lambda s, b, h, i, j: 5 * torch.tanh(s / 5), scale=0.7)


def blocks(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return attend(q, k, v, lambda s, b, h, i, j: s + (i // 4 - j // 4) * 0.1 + j % 3)


def bent(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """A buffer that is one number of double precision, which scores take on."""
    return attend(q, k, v, lambda s, b, h, i, j: torch.sin(s) * m.slope + (h + 1) * (j - i) / 50)


def sums(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return attend(q, k, v, lambda s, b, h, i, j: torch.where(j < lengths[b], s - m.table[h, i], -math.inf), return_lse=True)


FORMS: dict[str, tuple[Callable[..., Any], tuple[int, int]]] = {  # with how many attentions and products there are in the end
    "plain": (lambda m, q, k, v, _: attend(q, k, v, None), (1, 0)),
    "hidden": (hidden, (1, 0)),
    "relative": (relative, (1, 0)),
    "capped": (capped, (1, 0)),
    "blocks": (blocks, (1, 0)),
    "zeros": (zeros, (1, 0)),
    "sums": (sums, (1, 1)),  # of rows, which attention doesn't give
    "documents": (documents, (0, 2)),
    "bent": (bent, (0, 2)),
}


def masked(m: Any, q: Any, k: Any, v: Any, lengths: Any, see: Callable[..., Any], mod: Any = None) -> Any:
    mask = create_block_mask(see, q.shape[0], None, q.shape[2], k.shape[2], device="cpu")
    return attend(q, k, v, mod, block_mask=mask)


def alibi(m: Any, *args: Any) -> Any:
    return masked(m, *args, lambda b, h, i, j: i >= j, lambda s, b, h, i, j: s - (i - j) * 0.1 * (h + 1))


def window(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return masked(m, q, k, v, lengths, lambda b, h, i, j: (i >= j) & (i - j < 9) & (j < lengths[b]))


BLOCKS: dict[str, tuple[Callable[..., Any], str]] = {
    "causal": (lambda m, *args: masked(m, *args, lambda b, h, i, j: i >= j), "causal"),
    "alibi": (alibi, "causal"),
    "window": (window, "causal"),
}


def exported(form: Callable[..., Any], dtype: torch.dtype = torch.float32, length: int = 10) -> tuple[Flex, Any]:
    torch.manual_seed(0)
    module, sizes = Flex(form).eval(), {0: Dim.AUTO, 2: Dim.AUTO}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module, export(module, inputs(3, length, length + 2, dtype), dynamic_shapes=(sizes, sizes, sizes, {0: Dim.AUTO}))


def attentions(program: Any) -> tuple[list[str], int]:
    """Lines of attention, and the number of products beside it, once masks are understood."""
    imported = import_programs({"": program}, Options())[""]
    with imported.module.context:
        run_passes(imported.module, imported.weights, PASSES[: 1 + [p.name for p in PASSES].index("causal-masks")])
        lines = str(imported.module).splitlines()
    return [x for x in lines if "dhlo.attention" in x], sum("dhlo.matmul" in x for x in lines)


def agrees(module: Flex, program: Any, sizes: Sequence[tuple[int, int, int]], dtype: torch.dtype, tolerance: float) -> None:
    model = dhlo.compile(program)
    for batch, queries, keys in sizes:
        args = inputs(batch, queries, keys, dtype)
        with torch.no_grad():
            want, got = module(*args), model(*args)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


SIZES = [(3, 10, 12), (1, 1, 1), (2, 1, 33), (2, 17, 2), (1, 64, 65), (1, 299, 300), (3, 10, 12)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMS)
def test_functions_of_scores_match_at_all_sizes(name: str) -> None:
    form, expected = FORMS[name]
    module, program = exported(form)
    agrees(module, program, SIZES, torch.float32, 2e-5)
    found, products = attentions(program)
    assert (len(found), products) == expected


def test_nothing_to_attend_to() -> None:
    module, program = exported(relative)
    model = dhlo.compile(program)
    for batch, queries, keys in ((0, 3, 4), (2, 0, 3), (2, 3, 0)):
        assert torch.equal(model(*inputs(batch, queries, keys, torch.float32)), torch.zeros(batch, HEADS, queries, DEPTH))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["hidden", "relative"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    module, program = exported(FORMS[name][0], dtype)
    agrees(module.to(dtype), program, SIZES[:5], dtype, {torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_narrow_numbers_are_single_precision(dtype: torch.dtype) -> None:
    """What is added to them isn't rounded: results are as near to double precision as PyTorch's."""
    module, program = exported(
        lambda m, q, k, v, _: attend(q, k, v, lambda s, b, h, i, j: s - (i - j).abs() * 0.37 * (h + 1)), dtype
    )
    model = dhlo.compile(program)
    for sizes in ((3, 10, 12), (1, 1, 300), (2, 5, 299), (1, 290, 300)):
        args = inputs(*sizes, dtype)
        with torch.no_grad():
            exact = module(*(x.double() for x in args[:3]), args[3])
            assert (model(*args) - exact).abs().max() <= 1.1 * (module(*args) - exact).abs().max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BLOCKS)
def test_block_masks_say_which_keys_are_seen(name: str) -> None:
    form, said = BLOCKS[name]
    module, program = exported(form, length=150)
    agrees(module, program, [(3, 150, 152), (1, 129, 130), (2, 257, 129), (4, 200, 299)], torch.float32, 2e-5)
    (found,), products = attentions(program)
    assert f"{said} = true" in found and products == 0
    assert ("array<i32: 1, 1, 1, 0, 0>" in found) == (name == "causal")  # whose mask is gone


def test_keys_of_one_batch_are_everyones() -> None:
    module = Flex(window).eval()
    q, _, _, lengths = inputs(3, 150, 151, torch.float32)
    _, k, v, _ = inputs(1, 150, 151, torch.float32)
    rows = {2: Dim.AUTO}
    model = dhlo.compile(export(module, (q, k, v, lengths), dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO}, rows, rows, {0: Dim.AUTO})))
    for batch in (3, 2, 5):
        q, _, _, lengths = inputs(batch, 130, 140, torch.float32)
        args = (q, *inputs(1, 130, 140, torch.float32)[1:3], lengths)
        with torch.no_grad():
            torch.testing.assert_close(model(*args), module(*args), rtol=2e-5, atol=2e-5)


def test_inside_autocast() -> None:
    def form(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return relative(m, q, k, v, lengths)

    module, program = exported(form)
    args = inputs(2, 9, 8, torch.float32)
    with torch.no_grad():
        want = module(*args)
    got = dhlo.compile(program)(*args)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_functions_of_more_than_elements_are_refused() -> None:
    def rows(m: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
        return attend(q, k, v, lambda s, b, h, i, j: s + m.table[h].sum())

    with pytest.raises(CompileError, match=r"aten.index.Tensor, which isn't an operator on single(?s:.*)look up(?s:.*)test_flex"):
        dhlo.compile(exported(rows)[1])


@pytest.mark.parametrize(("dtype", "by"), [(torch.uint8, -5), (torch.int8, 100), (torch.int32, -5), (torch.int64, 3)])
def test_positions_that_wrap_are_no_causal_mask(dtype: torch.dtype, by: int) -> None:
    class Wrapping(torch.nn.Module):
        def forward(self, q, k, v):
            i = torch.arange(q.shape[2], dtype=dtype)[:, None] + by
            mask = i >= torch.arange(k.shape[2])
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    module, sizes = Wrapping(), {0: Dim.AUTO, 2: Dim.AUTO}
    args = inputs(2, 40, 40, torch.float32)[:3]
    model = dhlo.compile(export(module, args, dynamic_shapes=(sizes, sizes, sizes)))
    torch.testing.assert_close(model(*args), module(*args), rtol=1e-5, atol=1e-5)


def test_scores_in_other_groups_are_no_attention() -> None:
    """Views between the products and the softmax that regroup heads, or rows and columns; many sums of scores."""

    def grouped(q: Any, k: Any, v: Any) -> Any:
        (batch, heads, rows, depth), kv = q.shape, k.shape[1]
        scores = (q.reshape(batch, kv, heads // kv * rows, depth) @ k.mT).view(batch, heads, rows, -1)
        scores = scores.masked_fill(torch.arange(rows)[:, None] < torch.arange(k.shape[2]), float("-inf"))
        shares = torch.ops.aten._safe_softmax(scores, -1)
        return (shares.view(batch, kv, heads // kv * rows, -1) @ v).view(batch, heads, rows, depth)

    def turned(q: Any, k: Any, v: Any) -> Any:
        scores = q[:, :2] @ k.mT
        batch, heads, rows, columns = scores.shape
        return torch.ops.aten._safe_softmax(scores, -1).view(batch, heads, columns, rows) @ q[:, :2]

    def summed(q: Any, k: Any, v: Any) -> Any:
        scores = q[:, :2] @ k.mT
        for _ in range(40):
            scores = scores.sin()
            scores = scores * 0.5 + scores * 0.25
        return torch.ops.aten._safe_softmax(scores, -1) @ v

    for f in (grouped, turned, summed):

        class Written(torch.nn.Module):
            def forward(self, q, k, v, f=f):
                return f(q, k, v)

        sizes = {0: Dim.AUTO, 2: Dim.AUTO}
        program = export(Written(), inputs(2, 37, 41, torch.float32)[:3], dynamic_shapes=(sizes, sizes, sizes))
        assert attentions(program)[0] == []
        model = dhlo.compile(program)
        for queries, keys in ((37, 41), (5, 60)):
            args = inputs(3, queries, keys, torch.float32)[:3]
            torch.testing.assert_close(model(*args), f(*args), rtol=1e-5, atol=1e-5)


def test_inside_a_branch_is_refused_by_name() -> None:
    class Branching(torch.nn.Module):
        def forward(self, q, k, v):
            less = lambda q, k, v: attend(q, k, v, lambda s, b, h, i, j: s - (i - j))
            return torch.cond(q.sum() > 0, less, lambda q, k, v: q + 0, (q, k, v))

    args, sizes = inputs(2, 9, 9, torch.float32, HEADS)[:3], {0: Dim.AUTO}
    program = export(Branching(), args, dynamic_shapes=(sizes, sizes, sizes))
    with pytest.raises(CompileError, match="flex_attention(?s:.*)out of branches"):
        dhlo.compile(program)
