"""Steps that were exported for one token of each sequence, over pools of blocks: prompts and parts of such go through them, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

import dhlo
from dhlo.errors import CompileError
from dhlo.integrations.caches import CACHE, exportable_attention, exported_cache
from tests.sequences import PAGE
from tests.test_paging import CONFIGS, UNLIKE, check, model_of

PAGES = {"keys*": PAGE, "values*": PAGE}


class Step(torch.nn.Module):
    """One token of each sequence, whose position the model counts from the past unless it is told."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor, keys: list[Any], values: list[Any], **more: Any) -> Any:
        cache = exported_cache(input_ids, mask, keys, values, [False] * len(keys))
        out = self.model(input_ids=input_ids, attention_mask=mask, use_cache=True, **more, **{CACHE: cache})
        return out.logits.transpose(0, 1), [x.keys for x in cache.layers], [x.values for x in cache.layers]


class ToldStep(Step):
    def forward(  # type: ignore[override]
        self, input_ids: torch.Tensor, mask: torch.Tensor, keys: list[Any], values: list[Any], position_ids: torch.Tensor
    ) -> Any:
        return super().forward(input_ids, mask, keys, values, position_ids=position_ids)


def single_program(model: Any, told: bool) -> ExportedProgram:
    with torch.no_grad():
        layers = getattr(model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=True), CACHE).layers
    keys, values = (
        [torch.zeros(2, h, 5, d) for _, h, _, d in shapes]
        for shapes in zip(*((x.keys.shape, x.values.shape) for x in layers), strict=True)
    )
    one, two, cached = {0: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    ids, step = torch.zeros(2, 1, dtype=torch.int64), ToldStep if told else Step
    args = (ids, torch.ones(2, 6, dtype=torch.int64), keys, values, *([torch.full_like(ids, 5)] if told else []))
    sizes = (one, two, [cached] * len(keys), [cached] * len(values), *([one] if told else []))
    with torch.no_grad(), exportable_attention():
        return export(step(model), args, dynamic_shapes=sizes, strict=False)


UNTOLD = {"bloom", "falcon_alibi"}  # have no positions, but numbers that are added to scores
COUNTED = {"roformer"}  # count positions by themselves, from the length of the past, which differs from row to row here


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - COUNTED))
def test_decoders(name: str) -> None:
    model = model_of(name)
    compiled = dhlo.compile(single_program(model, name not in UNTOLD), pages=PAGES)
    for seed in range(2):
        check(model, compiled, seed, UNLIKE.get(name, 1e-4))


class Decoder(torch.nn.Module):
    """Attention over the last keys, and numbers that follow from how far a key is away; positions are counted from the past."""

    def __init__(self, width: int, table: int = 0, sums: bool = False) -> None:
        super().__init__()
        self.qkv, self.width, self.sums = torch.nn.Linear(16, 48), width, sums
        self.places = torch.nn.Embedding(table, 16) if table else None

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        past = keys.shape[2]
        at = torch.arange(1) + past
        x = x + (torch.sin(at[:, None] * 0.1) if self.places is None else self.places(at))
        q, k, v = self.qkv(x).unflatten(-1, (1, -1)).transpose(1, 2).chunk(3, -1)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        j = torch.arange(past + 1)
        sees = (j <= at[:, None]) & (j > at[:, None] - self.width)
        far = (j - at[:, None]) * 0.05
        if self.sums:
            far = far + torch.ones(past, 1).cumsum(0)[-1]
        mask = torch.where(sees, far, torch.finfo(torch.float32).min).expand(x.shape[0], 1, 1, past + 1)
        y = torch.nn.functional.scaled_dot_product_attention(q, keys, values, mask)
        return y.transpose(1, 2).flatten(2).transpose(0, 1), keys, values


def own_program(module: torch.nn.Module) -> ExportedProgram:
    one, cached = {0: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    args = (torch.rand(2, 1, 16), torch.rand(2, 1, 5, 16), torch.rand(2, 1, 5, 16))
    return export(module.eval(), args, dynamic_shapes=(one, cached, cached))


@pytest.mark.parametrize("table", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_positions_are_counted_for_each_token(table: int) -> None:
    """Two sequences at once in parts, in blocks that lie across; each beside the program as it was exported."""
    torch.manual_seed(0)
    module = Decoder(20, table)
    compiled = dhlo.compile(own_program(module), pages=PAGES)
    want = list[torch.Tensor]()
    given = [torch.rand(1, n, 16) for n in (37, 21)]
    for x in given:
        keys = values = torch.zeros(1, 1, 0, 16)
        for i in range(x.shape[1]):
            with torch.no_grad():
                y, keys, values = module(x[:, i : i + 1], keys, values)
            want.append(y[0])
    pools, slots = [torch.full((1, 6 * PAGE, 16), torch.nan) for _ in range(2)], torch.tensor([4, 1, 3, 5, 0])
    tables, got = slots.to(torch.int32), ([torch.empty(0, 16)], [torch.empty(0, 16)])
    for first, second in ((0, 0), (30, 1), (31, 20), (36, 21)):
        ends = {0: (30, 1), 30: (31, 20), 31: (36, 21), 36: (37, 21)}[first]
        parts = [(0, first, ends[0]), (1, second, ends[1])]
        x = torch.cat([given[b][:, i:j] for b, i, j in parts], 1)
        at = torch.cat([torch.arange(i, j) for _, i, j in parts])
        blocks = torch.cat([slots[3 * b :][torch.arange(i, j) // PAGE] for b, i, j in parts])
        starts = torch.tensor([0, ends[0] - first, x.shape[1]], dtype=torch.int32)
        rows_of = torch.stack([tables[:3], torch.cat([tables[3:], tables[:1]])])
        out: Any = compiled(x, *pools, at, blocks * PAGE + at % PAGE, rows_of, starts, torch.tensor(ends, dtype=torch.int32))
        for b, rows in enumerate((out if isinstance(out, torch.Tensor) else out[0])[0].split(starts.diff().tolist())):
            got[b].append(rows)
    torch.testing.assert_close(torch.cat(got[0] + got[1]), torch.cat(want), rtol=1e-4, atol=1e-5)


def test_what_follows_from_all_of_the_past_is_named() -> None:
    with pytest.raises(CompileError, match="test_single_tokens.py"):
        dhlo.compile(own_program(Decoder(20, sums=True)), pages=PAGES)


def test_the_length_of_the_past_is_no_result() -> None:
    class Tells(Decoder):
        def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
            y, *grown = super().forward(x, keys, values)
            return y, torch.full((), keys.shape[2] + 1), *grown

    with pytest.raises(CompileError, match="a result says how long the past is"):
        dhlo.compile(own_program(Tells(20)), pages=PAGES)


def test_products_of_one_token_take_no_adapters() -> None:
    with pytest.raises(CompileError, match="lora: 'qkv' multiplies"):
        dhlo.compile(own_program(Decoder(20)), pages=PAGES, lora=dhlo.LoraOptions(max_rank=4, max_adapters=2))


class Both(torch.nn.Module):
    """A state that takes one token, and caches that take several."""

    def forward(self, x: torch.Tensor, total: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        total.copy_(total * 0.5 + x[:, 0])
        keys, values = torch.cat([keys, x[:, None]], 2), torch.cat([values, x[:, None]], 2)
        return torch.nn.functional.scaled_dot_product_attention(x[:, None], keys, values), keys, values


def test_states_and_steps_of_several_tokens_are_refused() -> None:
    one, two, cached = {0: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    args = (torch.rand(2, 3, 16), torch.rand(2, 16), torch.rand(2, 1, 5, 16), torch.rand(2, 1, 5, 16))
    program = export(Both(), args, dynamic_shapes=(two, one, cached, cached))
    with pytest.raises(CompileError, match="pages: state"):
        dhlo.compile(program, pages=PAGES | {"total": 1})
