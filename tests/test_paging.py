"""Decoders as steps over packed tokens of many sequences, whose keys and values lie in blocks of pools."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    DiffLlamaConfig,
    DoryConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXJapaneseConfig,
    GptOssConfig,
    GraniteSWAConfig,
    JetMoeConfig,
    LlamaConfig,
    MixtralConfig,
    Phi3Config,
    Qwen3Config,
    Qwen3MoeConfig,
    RoFormerConfig,
    XGLMConfig,
)

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from tests.sequences import PAGE, Pools, feed, of_eager

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
WINDOWS = {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"]}
LATENTS = {"q_lora_rank": 12, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16}
EXPERTS = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SMALL),
    "gemma3": lambda: Gemma3TextConfig(**SMALL, head_dim=16, **WINDOWS),
    "qwen3": lambda: Qwen3Config(**SMALL, head_dim=16),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SMALL, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16),
    "mixtral": lambda: MixtralConfig(**SMALL, num_local_experts=4),
    "deepseek_v3": lambda: DeepseekV3Config(**{**SMALL, "num_key_value_heads": 4}, **LATENTS, **EXPERTS),
    "phi3": lambda: Phi3Config(**SMALL, pad_token_id=0),
    "gemma2": lambda: Gemma2Config(**SMALL, head_dim=16, **WINDOWS, attn_logit_softcapping=0.1, initializer_range=0.3),
    "gpt_oss": lambda: GptOssConfig(
        **SMALL, head_dim=16, **WINDOWS, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.3
    ),
    "bloom": lambda: BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
    "falcon": lambda: FalconConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, new_decoder_architecture=True, num_kv_heads=2
    ),
    "falcon_alibi": lambda: FalconConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True),
    # Values of half of the heads beside all keys; keys and values that are all repeated in turn.
    "diffllama": lambda: DiffLlamaConfig(**{**SMALL, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "jetmoe": lambda: JetMoeConfig(**SMALL, kv_channels=8, num_local_experts=4, num_experts_per_tok=2),
    "granite_swa": lambda: GraniteSWAConfig(**SMALL, **WINDOWS),  # shares beside sinks
    # Parts of constant matrices say what tokens see.
    "gpt_neo": lambda: GPTNeoConfig(
        vocab_size=96,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=40,
        max_position_embeddings=512,
    ),
    # Positions are counted by one op from the length of the past on.
    "roformer": lambda: RoFormerConfig(**{**SMALL, "max_position_embeddings": 256}, is_decoder=True, pad_token_id=0),
    # A layer that runs twice, and keeps keys and values for each time.
    "dory": lambda: DoryConfig(
        **{**SMALL, "num_hidden_layers": 3},
        head_dim=16,
        n_input_layers=1,
        n_output_layers=1,
        sliding_window=40,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "xglm": lambda: XGLMConfig(vocab_size=96, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
    "gpt_neox_japanese": lambda: GPTNeoXJapaneseConfig(  # products of queries and keys of batches and heads in one dim
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_multiple_size=2
    ),
    "gpt2": lambda: GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1),
}
UNLIKE = {"gemma2": 4e-4, "gpt_oss": 4e-4, "falcon_alibi": 3e-3}  # of wide weights; alibi is of bf16 there
PAGES = {"keys*": PAGE, "values*": PAGE}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


def compiled_of(model: Any) -> CompiledModel:
    return dhlo.compile(step_program(model), pages=PAGES)


def sequences(*lengths: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randint(0, 96, (n,), generator=g) for n in lengths]


def check(model: Any, compiled: CompiledModel, seed: int, tolerance: float = 1e-4) -> None:
    """Sequences are fed in parts, some in each step, from blocks in no order; logits are those of each alone."""
    given = sequences(83, 1, 5, 121, 16, 17)
    for got, want in zip(feed(Pools(compiled, 20, seed), given, random.Random(seed)), of_eager(model, given), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance / 5)


@pytest.fixture(scope="module")
def windowed() -> tuple[Any, CompiledModel]:
    """A decoder with a window in one layer and none in the other."""
    model = model_of("gemma3")
    return model, compiled_of(model)


@pytest.mark.parametrize("seed", range(3))
def test_sequences_of_all_lengths_in_one_step(windowed: tuple[Any, CompiledModel], seed: int) -> None:
    check(*windowed, seed)


@pytest.mark.parametrize("form", ["a number", "a buffer", "positions", "classes"])
def test_what_may_fail_by_any_token(form: str) -> None:
    """Divisors of positions and classes of tokens are checked for all of them: no token depends on it."""
    model = model_of("llama")
    model.model.rotary_emb.register_buffer("ratio", torch.tensor([2]))
    divided = {
        "a number": lambda p: p // 4,
        "a buffer": lambda p: p % (model.model.rotary_emb.ratio + 5),
        "positions": lambda p: p // (p % 7 + 1),
        "classes": lambda p: torch.nn.functional.one_hot(p % 5, 6).argmax(-1),
    }[form]
    turn = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids, *a, **k: turn(x, divided(position_ids), *a, **k)
    check(model, compiled_of(model), 3, 1e-3)


def check_trees(model: Any, compiled: CompiledModel, seed: int, tolerance: float = 1e-4) -> None:
    """Tokens of a step are a tree, behind texts of several lengths; each has the logits that its way from the root gives."""
    rng, pools = random.Random(seed), Pools(compiled, 40, seed)
    texts = sequences(3, 70, 16, 33, 101)
    for k, text in enumerate(texts):
        pools.step([(k, text)])
    sizes = [1, 32, 7, 33, 20]  # one of a chain
    drafts = sequences(*sizes)
    ways: list[list[list[int]]] = []
    for n in sizes:
        own = [[0]]
        for i in range(1, n):
            own.append([*own[i - 1 if n == 33 else rng.randrange(i)], i])
        ways.append(own)
    place = [len(text) + len(way) - 1 for text, own in zip(texts, ways, strict=True) for way in own]
    hidden = [sum(1 << (32 - i + j) for j in range(i) if j not in way) for own in ways for i, way in enumerate(own)]
    signed = torch.tensor([x - (x >> 31 << 32) for x in hidden], dtype=torch.int32)
    positions = torch.tensor(place)
    got = pools.step([*enumerate(drafts)], positions=positions, position_ids=positions[None], hidden=signed)
    paths = [torch.cat([text, new[way]]) for text, new, own in zip(texts, drafts, ways, strict=True) for way in own]
    want = torch.stack([y[-1] for y in of_eager(model, paths)])
    torch.testing.assert_close(torch.cat(got), want, rtol=tolerance, atol=tolerance / 5)


@pytest.mark.parametrize("seed", range(2))
def test_tokens_that_are_a_tree(windowed: tuple[Any, CompiledModel], seed: int) -> None:
    check_trees(*windowed, seed)


@pytest.mark.parametrize(("window", "branches"), [(0, True), (33, True), (32, False)])
def test_which_tokens_may_be_a_tree(window: int, branches: bool) -> None:
    """Those whose windows reach behind any tree's root."""

    class Windowed(torch.nn.Module):
        def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
            whole = torch.cat([past, x], 2)
            own, key = torch.arange(x.shape[2])[:, None] + past.shape[2], torch.arange(past.shape[2] + x.shape[2])[None]
            sees = (key <= own) & (key > own - window) if window else key <= own
            return torch.nn.functional.scaled_dot_product_attention(x, whole, whole, sees), whole

    dims = {0: Dim("batch"), 2: Dim("new")}
    args = torch.randn(3, 2, 5, 16), torch.randn(3, 2, 7, 16)
    exported = export(Windowed(), args, dynamic_shapes=(dims, {0: Dim("batch"), 2: Dim("past")}), strict=False)
    paging = json.loads(dhlo.compile(exported, pages={"past": 16}).metadata)["paging"]
    assert (paging["hidden"] is not None) == branches and paging["windows"] == [window]


def test_tokens_that_see_their_part_of_a_text() -> None:
    """No more keys than a part has are kept for them, and results are those of each sequence alone."""

    class Parts(torch.nn.Module):
        def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
            whole = torch.cat([past, x], 2)
            own, key = torch.arange(x.shape[2])[:, None] + past.shape[2], torch.arange(past.shape[2] + x.shape[2])[None]
            sees = (key <= own) & ((key + 3) // 24 == (own + 3) // 24)
            return torch.nn.functional.scaled_dot_product_attention(x, whole, whole, sees), whole

    dims = {0: Dim("batch"), 2: Dim("new")}
    args = torch.randn(3, 2, 5, 16), torch.randn(3, 2, 7, 16)
    exported = export(Parts(), args, dynamic_shapes=(dims, {0: Dim("batch"), 2: Dim("past")}), strict=False)
    compiled = dhlo.compile(exported, pages={"past": 16})
    paging = json.loads(compiled.metadata)["paging"]
    assert paging["windows"] == [24] and paging["hidden"] is None
    check_packed(Parts(), compiled, [2], 1)


class Masked(torch.nn.Module):
    """Attention under a mask that is computed of positions of queries and keys; under none where there is no such function."""

    def __init__(self, sees: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None) -> None:
        super().__init__()
        self.sees = sees

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
        whole = torch.cat([past, x], 2)
        own, key = torch.arange(x.shape[2])[:, None] + past.shape[2], torch.arange(past.shape[2] + x.shape[2])[None]
        mask = None if self.sees is None else self.sees(own, key)
        return torch.nn.functional.scaled_dot_product_attention(x, whole, whole, mask), whole


def exported_masked(module: torch.nn.Module) -> torch.export.ExportedProgram:
    args = torch.randn(3, 2, 5, 16), torch.randn(3, 2, 7, 16)
    dims = {0: Dim("batch"), 2: Dim("new")}, {0: Dim("batch"), 2: Dim("past")}
    return export(module, args, dynamic_shapes=dims, strict=False)


DISTANCES: dict[str, tuple[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "no less than nothing": (0, lambda own, key: own - key >= 0),
    "less than one": (0, lambda own, key: key - own < 1),
    "less than some": (40, lambda own, key: (own - key >= 0) & (own - key < 40)),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_masks_of_distances(name: str) -> None:
    window, sees = DISTANCES[name]
    compiled = dhlo.compile(exported_masked(Masked(sees)), pages={"past": 16})
    assert json.loads(compiled.metadata)["paging"]["windows"] == [window]
    check_packed(Masked(sees), compiled, [2], 1)


LATER: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None] = {
    "all": None,
    "the next one": lambda own, key: key <= own + 1,
    "both sides": lambda own, key: (own - key).abs() < 4,
    "what is near": lambda own, key: key > own - 4,
}


@pytest.mark.parametrize("name", LATER)
def test_tokens_that_see_later_ones(name: str) -> None:
    """How many come at once would say what a token sees."""
    with pytest.raises(CompileError, match=r"hide the keys of tokens that come later[\s\S]*test_paging.py:"):
        dhlo.compile(exported_masked(Masked(LATER[name])), pages={"past": 16})


class Looked(torch.nn.Module):
    """Attention under part of a constant matrix of who sees whom."""

    def __init__(self, seen: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("seen", seen)

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
        whole = torch.cat([past, x], 2)
        sees = self.seen[whole.shape[2] - x.shape[2] : whole.shape[2], : whole.shape[2]]
        scores = torch.where(sees, x @ whole.transpose(2, 3) / 4, torch.tensor(torch.finfo(x.dtype).min))
        return torch.softmax(scores, -1) @ whole, whole


def exported_looked(seen: torch.Tensor) -> Any:
    args = torch.randn(3, 2, 5, 16), torch.randn(3, 2, 7, 16)
    dims = {0: Dim("batch"), 2: Dim.AUTO}, {0: Dim("batch"), 2: Dim.AUTO}
    return export(Looked(seen), args, dynamic_shapes=dims, strict=False)


@pytest.mark.parametrize("window", [0, 1, 40])
def test_masks_in_a_constant_matrix(window: int) -> None:
    """Are windows, and end where the matrix does; a step may have more tokens than that."""
    seen = torch.ones(100, 100, dtype=torch.bool).tril()
    seen = seen.triu(1 - window) if window else seen
    compiled = dhlo.compile(exported_looked(seen), pages={"past": 16})
    paging = json.loads(compiled.metadata)["paging"]
    assert paging["windows"] == [window] and paging["max_positions"] in (99, 100)  # torch.export leaves out the whole matrix
    check_packed(Looked(seen), compiled, [2], 1)


@pytest.mark.parametrize("hole", [(60, 20), (5, 9), (99, 99)])
def test_matrices_that_are_no_bands(hole: tuple[int, int]) -> None:
    seen = torch.ones(100, 100, dtype=torch.bool).tril()
    seen[hole] ^= True
    with pytest.raises(CompileError, match="dhlo.slice depends on how long the past is"):
        dhlo.compile(exported_looked(seen), pages={"past": 16})


def check_packed(module: torch.nn.Module, compiled: CompiledModel, heads: Sequence[int], pools: int) -> None:
    """Prompts of several lengths in one step; `module` takes what is new, of so many heads, and as many pasts as pools."""
    g, lengths = torch.Generator().manual_seed(1), (70, 1, 20, 21, 22)
    new = [[torch.randn(1, n, length, 16, generator=g) for n in heads] for length in lengths]
    blocks = [-(-n // PAGE) for n in lengths]
    order = torch.randperm(sum(blocks), generator=g).int().split(blocks)
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for k, own in enumerate(order):
        tables[k, : len(own)] = own
    at = [torch.arange(n) for n in lengths]
    given = {
        "positions": torch.cat(at),
        "slots": torch.cat([tables[k, x // PAGE].long() * PAGE + x % PAGE for k, x in enumerate(at)]),
        "tables": tables,
        "starts": torch.tensor([0, *lengths]).cumsum(0).int(),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "hidden": torch.zeros(sum(lengths), dtype=torch.int32),
    }
    held = [torch.full((n, PAGE * sum(blocks), 16), torch.nan) for n in heads[len(heads) - pools :]]
    names = [x["name"] for x in json.loads(compiled.metadata)["inputs"]]
    rows = [torch.cat(x, 2) for x in zip(*new, strict=True)]
    got = compiled(*rows, *held, *(given[name] for name in names if name in given))
    want = [module(*x, *(y[:, :, :0] for y in x[len(x) - pools :]))[0] for x in new]
    torch.testing.assert_close(got if isinstance(got, torch.Tensor) else got[0], torch.cat(want, 2), rtol=1e-4, atol=1e-5)


class Beside(torch.nn.Module):
    """Attention whose result is multiplied by the share that keys have beside a sink, if `factor` is 1: else by another number."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.sinks = factor, torch.nn.Parameter(torch.tensor([0.5, -30.0, 2.0]))

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
        whole = torch.cat([past, x], 2)
        own, key = torch.arange(x.shape[2])[:, None] + past.shape[2], torch.arange(past.shape[2] + x.shape[2])[None]
        scores = x @ whole.transpose(2, 3) / 4 + torch.where((key <= own) & (key > own - 40), 0.0, -torch.inf)
        share = (torch.logsumexp(scores * self.factor, -1) - self.sinks.view(1, -1, 1)).sigmoid()
        return torch.softmax(scores, -1) @ whole * share[..., None], whole


def exported_beside(factor: float) -> Any:
    args = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 7, 16)
    dims = {0: Dim("batch"), 2: Dim("new")}, {0: Dim("batch"), 2: Dim("past")}
    return export(Beside(factor), args, dynamic_shapes=dims, strict=False)


def test_a_share_beside_a_sink() -> None:
    with torch.no_grad():
        check_packed(Beside(), dhlo.compile(exported_beside(1.0), pages={"past": 16}), [3], 1)


def test_what_is_no_share_beside_a_sink() -> None:
    with pytest.raises(CompileError, match="tokens of a sequence meet in dhlo.reduce"):
        dhlo.compile(exported_beside(2.0), pages={"past": 16})


CHOICES: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "all in turn": lambda k, v: (k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)),
    "keys of all, values of half": lambda k, v: (k, v[:, :2].repeat(1, 2, 1, 1)),
    "values of one": lambda k, v: (k, v[:, 3:].expand(-1, 4, -1, -1)),
    "in another order": lambda k, v: (torch.cat([k[:, 2:], k[:, :2]], 1), torch.cat([v[:, 1:], v[:, :1]], 1)),
    "every other": lambda k, v: (k[:, ::2], v[:, 1::2]),
    "each twice": lambda k, v: (k[:, 1:].repeat_interleave(2, 1)[:, 1:5], v[:, :2].repeat_interleave(2, 1)),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_heads_that_are_chosen(choice: str) -> None:
    """Of keys and of values, in any order, with a number added to each head's scores."""

    class Chosen(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> Any:
            keys, values = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            own, key = torch.arange(k.shape[2])[:, None] + past_k.shape[2], torch.arange(keys.shape[2])[None]
            slopes = torch.arange(1, 9)[:, None, None] / 16
            bias = torch.where(key <= own, slopes * (key - own), -torch.inf)[None]
            y = torch.nn.functional.scaled_dot_product_attention(q, *CHOICES[choice](keys, values), bias, enable_gqa=True)
            return y, keys, values

    batch, sizes = Dim("batch"), (({2: Dim("new")}, (8, 4, 4), 5), ({2: Dim("past")}, (4, 4), 7))
    args = tuple(torch.randn(3, n, size, 16) for _, heads, size in sizes for n in heads)
    dims = tuple({0: batch, **dim} for dim, heads, _ in sizes for _ in heads)
    exported = export(Chosen(), args, dynamic_shapes=dims, strict=False)
    compiled = dhlo.compile(exported, pages={"past_*": 16})
    check_packed(Chosen(), compiled, (8, 4, 4), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"gemma3"}))
def test_decoders(name: str) -> None:
    model = model_of(name)
    compiled = compiled_of(model)
    for seed in range(2):
        check(model, compiled, seed, UNLIKE.get(name, 1e-4))
    if json.loads(compiled.metadata)["paging"]["hidden"] is not None:
        check_trees(model, compiled, 0, UNLIKE.get(name, 1e-4))


@pytest.mark.parametrize(
    ("form", "tolerance"),
    [("int8", 0.03), pytest.param("bf16", 0.02, marks=pytest.mark.slow), pytest.param("f16", 0.003, marks=pytest.mark.slow)],
)
def test_pools_of_fewer_bits(windowed: tuple[Any, CompiledModel], form: str, tolerance: float) -> None:
    """Rows are rounded as they are written; int8 codes have a scale for each slot and head."""
    model = windowed[0]
    compiled = dhlo.compile(step_program(model), pages=PAGES, kv_cache=form)
    text = str(compiled.signature)
    assert text.count({"bf16": "bfloat16", "f16": "float16"}.get(form, "int8") + "[2, slots, 16]") == 4
    assert text.count("float32[2, slots, 1]") == (4 if form == "int8" else 0)
    check(model, compiled, 0, tolerance)
    check_that_share(compiled)


def check_that_share(compiled: CompiledModel) -> None:
    """Sequences get the same logits whether they have the blocks of one another or equal ones of their own."""
    begins, own = sequences(160)[0], [(k, x) for k, x in enumerate(sequences(1, 2, 1, 1, 1))]
    apart, shared = Pools(compiled, 60), Pools(compiled, 60)
    apart.step([(k, begins) for k, _ in own])
    shared.step([(0, begins)])
    for k, _ in own:
        shared.tables[k], shared.done[k] = list(shared.tables[0]), 160
    for got, want in zip(shared.step(own), apart.step(own), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "int8"])
def test_models_of_bf16(form: str) -> None:
    model = model_of("llama").to(torch.bfloat16)
    check(model, dhlo.compile(step_program(model), pages=PAGES, kv_cache=form), 0, 0.1)


def test_pools_that_take_no_less() -> None:
    with pytest.raises(CompileError, match="kv_cache: there is no format 'int3'"):
        dhlo.compile(program(lambda x, _: x), pages={"past": 16}, kv_cache="int3")
    args = torch.randn(3, 2, 5, 1), torch.randn(3, 2, 7, 1)
    dims = {0: Dim("batch"), 2: Dim("new")}, {0: Dim("batch"), 2: Dim("past")}
    with pytest.raises(CompileError, match="kv_cache: 'past' of .* takes no less as int8"):
        dhlo.compile(export(Decoder(lambda x, _: x), args, dynamic_shapes=dims, strict=False), pages={"past": 16}, kv_cache="int8")


def test_files(windowed: tuple[Any, CompiledModel], tmp_path: Path) -> None:
    model, compiled = windowed
    compiled.save(tmp_path / "step.so")
    check(model, dhlo.load(tmp_path / "step.so"), 3)


def test_what_a_file_says_of_its_pools(windowed: tuple[Any, CompiledModel]) -> None:
    meta = json.loads(windowed[1].metadata)
    paging, names = meta["paging"], [x["name"] for x in meta["inputs"]]
    assert paging["block_slots"] == PAGE and paging["windows"] == [0]  # one of its layers sees all
    one = {role: names[paging[role]] for role in ("positions", "starts", "lengths")}
    assert one == {"positions": "positions", "starts": "starts", "lengths": "lengths"}
    assert [names[k] for k in (*paging["slots"], *paging["tables"])] == ["slots", "tables"]
    pools = [(names[k], g, names[paging["pools"][keys][0]] if keys >= 0 else "", scales) for k, g, keys, scales in paging["pools"]]
    assert set(pools) == {p for i in range(2) for p in ((f"keys[{i}]", 0, "", -1), (f"values[{i}]", 0, f"keys[{i}]", -1))}


def test_planning(windowed: tuple[Any, CompiledModel]) -> None:
    """Without data all but the number of launches is known."""
    pools = Pools(windowed[1], 8)
    given = pools.inputs(list(enumerate(sequences(40, 1))))
    plan = windowed[1].plan([list(given[n].shape) for n in pools.names])
    assert plan["outputs"][0] == ("float32", (1, 41, 96)) and plan["data_dependent"]


@pytest.mark.slow
def test_latents_are_one_pool() -> None:
    """[1, slots, columns of latents and of what is rotated], for each layer; heads share it."""
    text = str(compiled_of(model_of("deepseek_v3")).signature)
    assert text.count("float32[1, slots, 28]") == 2 and "values[" not in text


def test_masks_that_positions_explain_are_gone(windowed: tuple[Any, CompiledModel]) -> None:
    text = str(windowed[1].signature)
    assert "attention_mask" not in text
    assert "tables: int32[sequences, blocks]" in text and "starts: int32[sequences + 1]" in text


def test_no_tokens(windowed: tuple[Any, CompiledModel]) -> None:
    pools = Pools(windowed[1], 4)
    assert pools.step([]) == []
    (nothing,) = pools.step([(0, torch.empty(0, dtype=torch.int64))])
    assert nothing.shape == (0, 96)


def test_only_tokens_that_are_kept_have_logits(windowed: tuple[Any, CompiledModel]) -> None:
    """What is kept reaches into the last layer; it may name tokens in any order, twice, and from the end."""
    new = [(k, x) for k, x in enumerate(sequences(7, 1, 20))]
    whole = torch.cat(Pools(windowed[1], 8).step(new))
    for kept in ([], [27], [3, 0, 3, -1, -28, 19], list(range(28))):
        pools = Pools(windowed[1], 8)
        given = pools.inputs(new) | {"kept": torch.tensor(kept, dtype=torch.int64)}
        logits = windowed[1](*[given[n] for n in pools.names])
        torch.testing.assert_close(logits[0], whole[kept], rtol=1e-5, atol=1e-6)
    for wrong in (28, -29, 1 << 62):
        given = pools.inputs(new) | {"kept": torch.tensor([0, wrong])}
        with pytest.raises(ContractError, match="kept"):
            windowed[1](*[given[n] for n in pools.names])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tables", torch.tensor([[0], [7]], dtype=torch.int32), "index 7 is out of range for size 4"),
        ("tables", torch.tensor([[-1], [0]], dtype=torch.int32), "index -1 is out of range for size 4"),
        ("slots", torch.tensor([0, 1, 64]), "index 64 is out of range"),
        ("starts", torch.tensor([0, 2, 2], dtype=torch.int32), "starts ascend"),
        ("starts", torch.tensor([1, 2, 3], dtype=torch.int32), "starts ascend"),
        ("starts", torch.tensor([0, 5, 3], dtype=torch.int32), "starts ascend"),
        ("starts", torch.tensor([0, -(2**31), 3], dtype=torch.int32), "starts ascend"),
        ("lengths", torch.tensor([2, 17], dtype=torch.int32), "starts ascend"),
        ("lengths", torch.tensor([1, 1], dtype=torch.int32), "starts ascend"),
        ("lengths", torch.tensor([2, 2**31 - 1], dtype=torch.int32), "starts ascend"),
    ],
)
def test_wrong_tables(windowed: tuple[Any, CompiledModel], name: str, value: torch.Tensor, message: str) -> None:
    """Are refused, by name; what comes after is right."""
    model, compiled = windowed
    given = sequences(2, 1)
    with pytest.raises(ContractError, match=message):
        Pools(compiled, 4).step(list(enumerate(given)), **{name: value})
    for got, want in zip(Pools(compiled, 4).step(list(enumerate(given))), of_eager(model, given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


# ------------------------------------------------------------------------------------------------ programs that can't be paged
class Decoder(torch.nn.Module):
    """Attention of what is new over a cache and itself, and something before it."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self.before = before

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
        x = self.before(x, past)
        whole = torch.cat([past, x], 2)
        n, p = x.shape[2], past.shape[2]
        sees = torch.arange(p + n)[None] <= torch.arange(n)[:, None] + p
        return torch.nn.functional.scaled_dot_product_attention(x, whole, whole, sees), whole


def program(before: Any) -> torch.export.ExportedProgram:
    dims = {0: Dim("batch"), 2: Dim("new")}
    args = torch.randn(3, 2, 5, 16), torch.randn(3, 2, 7, 16)
    return export(Decoder(before), args, dynamic_shapes=(dims, {0: Dim("batch"), 2: Dim("past")}), strict=False)


def test_a_decoder_without_a_library() -> None:
    compiled = dhlo.compile(program(lambda x, _: x * 2), pages={"past": 16})
    x, pool = torch.randn(1, 2, 3, 16), torch.zeros(2, 32, 16)
    i32 = {"dtype": torch.int32}
    tables, starts, lengths = torch.tensor([[1]], **i32), torch.tensor([0, 3], **i32), torch.tensor([3], **i32)
    got = compiled(x, pool, torch.arange(3), torch.arange(16, 19), tables, starts, lengths, torch.zeros(3, **i32))
    want = torch.nn.functional.scaled_dot_product_attention(2 * x, 2 * x, 2 * x, is_causal=True)
    torch.testing.assert_close(got[0] if isinstance(got, (list, tuple)) else got, want, rtol=1e-5, atol=1e-6)
    assert torch.equal(pool[:, 16:19], 2 * x[0]) and not pool[:, :16].any()


def test_positions_that_a_table_has() -> None:
    table = torch.randn(52, 16)
    compiled = dhlo.compile(program(lambda x, past: x + table[torch.arange(x.shape[2]) + past.shape[2] + 2]), pages={"past": 16})
    assert json.loads(compiled.metadata)["paging"]["max_positions"] == 50


@pytest.fixture(scope="module")
def plain_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("decoder") / "decoder.so"
    dhlo.compile(program(lambda x, _: x), pages={"past": 16}).save(file)
    return file


@pytest.mark.parametrize("lengths", [[3000], [7, 2500, 1, 900], [600] * 5, [2047, 0, 33]])
def test_keys_split_among_threads(lengths: list[int], plain_decoder: Path) -> None:
    """Few sequences, or some of many keys: parts of their keys are combined; a prompt among them has blocks of rows."""
    tokens = [1 if n % 3 else 2 for n in lengths]
    tokens[-1] = 20 if len(lengths) == 3 else tokens[-1]
    tokens = [0 if n == 0 else t for n, t in zip(lengths, tokens, strict=True)]
    g = torch.Generator().manual_seed(0)
    need = [-(-n // 16) for n in lengths]
    blocks = torch.randperm(sum(need), generator=g).int()
    tables = torch.zeros(len(lengths), max(need), dtype=torch.int32)
    for row, own in zip(tables, blocks.split(need), strict=True):
        row[: len(own)] = own
    pool = torch.randn(2, 16 * sum(need), 16, generator=g)
    x = torch.randn(1, 2, sum(tokens), 16, generator=g)
    at = [(b, i) for b, (n, t) in enumerate(zip(lengths, tokens, strict=True)) for i in range(n - t, n)]
    slots = torch.tensor([int(tables[b, i // 16]) * 16 + i % 16 for b, i in at])
    starts = torch.tensor([0, *tokens]).cumsum(0).int()
    given = (
        torch.tensor([i for _, i in at]),
        slots,
        tables,
        starts,
        torch.tensor(lengths, dtype=torch.int32),
        torch.zeros(sum(tokens), dtype=torch.int32),
    )
    got = [dhlo.load(plain_decoder, num_threads=n)(x, pool.clone(), *given) for n in (1, 3, 16)]
    pool[:, slots] = x[0]
    for b, (n, t) in enumerate(zip(lengths, tokens, strict=True)):
        rows = pool[:, [int(tables[b, i // 16]) * 16 + i % 16 for i in range(n)]][None]
        sees = torch.arange(n)[None] <= torch.arange(n - t, n)[:, None]
        own = slice(int(starts[b]), int(starts[b + 1]))
        want = torch.nn.functional.scaled_dot_product_attention(x[:, :, own], rows, rows, sees)
        for y in got:
            torch.testing.assert_close((y if isinstance(y, torch.Tensor) else y[0])[:, :, own], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (lambda x, _: x.cumsum(2), "tokens of a sequence meet in dhlo.scan"),
        (lambda x, _: x - x.mean(2, keepdim=True), "tokens of a sequence meet in dhlo.reduce"),
        (lambda x, _: x.flip(2), "tokens of a sequence meet in dhlo.reverse"),
        (lambda x, _: x + x[:, :, :1], "tokens of a sequence meet in dhlo.slice"),
        (lambda x, past: x * past.shape[2], "how long the past is"),
        (lambda x, past: x + past.sum(), "'past' of .* is no cache"),
        (lambda x, _: x * x.shape[2], "how many tokens are new"),
        (lambda x, _: x + torch.arange(x.shape[2])[:, None], "a token's place among them"),
    ],
)
def test_tokens_that_meet_elsewhere(before: Any, message: str) -> None:
    """Are refused, by the source line."""
    with pytest.raises(CompileError, match=message) as e:
        dhlo.compile(program(before), pages={"past": 16})
    assert "test_paging.py" in str(e.value)


def test_what_is_cached_and_read_elsewhere() -> None:
    class Returns(Decoder):
        def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
            y, whole = super().forward(x, past)
            return y, whole, whole * 2

    args = torch.randn(3, 2, 5, 16), torch.randn(3, 2, 7, 16)
    dims = {0: Dim("batch"), 2: Dim("new")}, {0: Dim("batch"), 2: Dim("past")}
    given = export(Returns(lambda x, _: x), args, dynamic_shapes=dims, strict=False)
    with pytest.raises(CompileError, match="'past', with what is new, is read by dhlo.mul"):
        dhlo.compile(given, pages={"past": 16})


def test_a_cache_that_the_program_keeps() -> None:
    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = torch.nn.Buffer(torch.zeros(1, 2, 8, 16))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.keys.index_copy_(2, at, x)
            return torch.nn.functional.scaled_dot_product_attention(x, self.keys, self.keys)

    args = torch.randn(1, 2, 3, 16), torch.arange(3)
    with pytest.raises(CompileError, match="takes 3 new tokens at each call, no more and no less"):
        dhlo.compile(export(Keeps(), args), pages={"key*": 16})
    tokens = Dim("tokens", max=8)
    with pytest.raises(CompileError, match=r"isn't under a mask that hides what comes later[\s\S]*test_paging.py:"):
        dhlo.compile(export(Keeps(), args, dynamic_shapes=({2: tokens}, {0: tokens})), pages={"key*": 16})


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ({"future": 16}, "no argument is called 'future'"),
        ({"past": 0}, "pages: is a dict"),
        ({"past": 1 << 40}, "pages: is a dict"),
        (["past"], "pages: is a dict"),
        ({"past": 12}, "a multiple of 16"),
        ({"x": 16}, "'x' of .* is no cache"),
    ],
)
def test_wrong_options(pages: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        dhlo.compile(program(lambda x, _: x), pages=pages)
