"""Decoders some of whose layers keep states of fixed size, and others keys and values: steps over packed tokens beside
transformers, tokens of the engine beside `generate()`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    DynamicCache,
    FalconH1Config,
    GraniteMoeHybridConfig,
    JambaConfig,
    Lfm2Config,
    NemotronHConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

import dhlo
from dhlo.errors import DhloError
from dhlo.integrations.caches import CACHE
from dhlo.integrations.decoder import step_pages, step_program
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine
from dhlo.serve.folder import open_folder
from dhlo.serve.types import EngineOptions, SamplingParams
from tests.sequences import Pools, feed
from tests.serving import WORDS, held, make_folder

TOKENS = 24
LENGTHS = (70, 13, 41, 1, 57, 20, 30, 25)
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)
WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL: dict[str, Any] = {
    **WIDTHS,
    "vocab_size": WORDS,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
TWO = {"num_hidden_layers": 2}
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16}
HEADS = {"linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
SHARED = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
CONFIGS: dict[str, Callable[[], Any]] = {
    # Gated delta rule; attention with a gate and partial rotary embeddings; experts, and one that all tokens share, in a layer.
    "qwen3_next": lambda: Qwen3NextConfig(**SMALL, **TWO, **LINEAR, **HEADS, **EXPERTS, **SHARED, mlp_only_layers=[0]),
    "qwen3_5": lambda: Qwen3_5TextConfig(**SMALL, **TWO, **LINEAR, **HEADS),
    "bamba": lambda: BambaConfig(**SMALL, **TWO, **MAMBA, attn_layer_indices=[1]),
    "falcon_h1": lambda: FalconH1Config(**SMALL, **TWO, **MAMBA, mamba_d_ssm=64, head_dim=16),  # both in each layer
    "granite": lambda: GraniteMoeHybridConfig(
        **SMALL,
        **TWO,
        **MAMBA,
        layer_types=["mamba", "attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=24,
    ),
    "jamba": lambda: JambaConfig(
        **SMALL,
        **TWO,
        **EXPERTS,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "lfm2": lambda: Lfm2Config(  # short convolutions, without a recurrence
        **SMALL, **TWO, conv_L_cache=3, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    ),
    "nemotron_h": lambda: NemotronHConfig(
        **SMALL,
        layers_block_type=["mamba", "attention", "moe"],  # the last keeps nothing
        head_dim=16,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
        n_group=1,
        topk_group=1,
    ),
}
UNLIKE = {"nemotron_h": 4e-3}  # which experts a token goes to, and how much: its own two forms differ by 0.03
OTHERS = sorted(CONFIGS.keys() - {"qwen3_next"})


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in (p for n, p in model.named_parameters() if "norm" in n):
            parameter += 0.2 * torch.randn_like(parameter)  # zero-centred ones, too
    return model


def compiled_of(model: Any) -> CompiledModel:
    return dhlo.compile(step_program(model), pages=step_pages(model, 16))


def by_tokens(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of the model, computed token by token: it computes prompts in another form, in which small models of wide weights
    differ from themselves."""
    cache, rows = DynamicCache(config=model.config), list[torch.Tensor]()
    with torch.no_grad():
        for i in range(len(tokens)):
            one = {"input_ids": tokens[None, i : i + 1], "position_ids": torch.tensor([[i]])}  # Bamba counts none from its cache
            out = model(**one, use_cache=True, **{CACHE: cache})
            rows.append(out.logits[0])
    return torch.cat(rows)


def check(model: Any, compiled: CompiledModel, seed: int, tolerance: float = 2e-4) -> None:
    g = torch.Generator().manual_seed(seed)
    given = [torch.randint(0, WORDS, (n,), generator=g) for n in (53, 1, 5, 71, 16, 17)]
    for got, x in zip(feed(Pools(compiled, 20, seed), given, random.Random(seed)), given, strict=True):
        torch.testing.assert_close(got, by_tokens(model, x), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def qwen() -> tuple[Any, CompiledModel]:
    model = model_of("qwen3_next")
    return model, compiled_of(model)


@pytest.mark.parametrize("seed", range(2))
def test_sequences_of_all_lengths_in_one_step(qwen: tuple[Any, CompiledModel], seed: int) -> None:
    # Roundings add up from token to token: 2.7e-4 behind 71 of them on a Granite Rapids, below 2e-4 on CPUs before it. Which side
    # is nearer the exact result wasn't found out: the model doesn't run in f64.
    check(*qwen, seed, 6e-4)


def test_one_token_and_none(qwen: tuple[Any, CompiledModel]) -> None:
    pools, tokens = Pools(qwen[1], 4), torch.tensor([7, 8])
    (first,), () = pools.step([(0, tokens[:1])]), pools.step([])
    (second,) = pools.step([(0, tokens[1:])])
    torch.testing.assert_close(torch.cat([first, second]), by_tokens(qwen[0], tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_decoders(name: str) -> None:
    model = model_of(name)
    compiled = compiled_of(model)
    for seed in range(2):
        check(model, compiled, seed, UNLIKE.get(name, 2e-4))


# ------------------------------------------------------------------------------------------------ the engine
Answers = tuple[list[list[int]], list[list[int]]]


def answers_of(model: Any, *lengths: int) -> Answers:
    """Prompts, and what `generate()` goes on with."""
    g = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, WORDS, (n,), generator=g).tolist() for n in lengths]
    with torch.no_grad():
        out = [model.generate(torch.tensor([p]), max_new_tokens=TOKENS, do_sample=False)[0, len(p) :].tolist() for p in prompts]
    return prompts, out


@pytest.fixture(scope="module")
def answers(qwen: tuple[Any, CompiledModel]) -> Answers:
    return answers_of(qwen[0], *LENGTHS)


BLOCK = 4096  # bytes of 16 slots of a layer
MIXES: dict[str, dict[str, Any]] = {
    "at once": {},
    "in parts": {"max_step_tokens": 9, "max_sequences": 3},
    "one by one": {"max_step_tokens": 5, "max_sequences": 1},
    "few blocks": {"cache_bytes": 7 * BLOCK, "max_step_tokens": 16},
    "few blocks, swapped": {"cache_bytes": 7 * BLOCK, "preemption": "swap", "max_step_tokens": 16},
}


@pytest.mark.parametrize("mix", MIXES)
def test_tokens_are_those_of_generate(qwen: tuple[Any, CompiledModel], answers: Answers, mix: str) -> None:
    with Engine(qwen[1], EngineOptions(**MIXES[mix])) as engine:
        for _ in range(2):  # the second time in places and blocks that others have used
            outputs = engine.generate(answers[0], GREEDY)
            assert [list(x.choices[0].tokens) for x in outputs] == answers[1]
            assert not any(x.cached_tokens for x in outputs)
        with held(engine):  # begun with a block each, they come to want three
            together = [engine.submit(answers[0][1], GREEDY) for _ in range(6)]
        for request in together:
            assert list(request.result(60).choices[0].tokens) == answers[1][1]
        stats = engine.stats()
        assert bool(stats.preemptions) == ("blocks" in mix)
        assert stats.swaps == 0  # states would be lost


def test_choices_go_on_from_one_state_and_share_blocks(qwen: tuple[Any, CompiledModel], answers: Answers) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=12, n=3)
    with Engine(qwen[1], EngineOptions(max_sequences=5)) as engine:
        together = engine.generate(answers[0], params)
    with Engine(qwen[1], EngineOptions(max_step_tokens=8, cache_bytes=12 * BLOCK)) as engine:
        assert [x.choices for x in engine.generate(answers[0], params)] == [x.choices for x in together]
    assert any(x.choices[0].tokens != x.choices[1].tokens for x in together)


def test_what_states_cant_do_is_refused(qwen: tuple[Any, CompiledModel], tmp_path: Path) -> None:
    folder = {"cache_folder": str(tmp_path), "cache_folder_bytes": 1 << 20}
    store = {"cache_store": SimpleNamespace(put=lambda name, data: None, get=lambda name: None, remove=lambda name: None)}
    for name, options in (("prompt_lookup", {"prompt_lookup": 3}), ("cache_folder", folder), ("cache_store", store)):
        with pytest.raises((DhloError, ValueError), match=name), Engine(qwen[1], EngineOptions(**options)):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_folders(name: str, tmp_path: Path) -> None:
    make_folder(tmp_path)  # a tokenizer, and a model whose place this one takes
    model = model_of(name)
    model.save_pretrained(tmp_path)
    prompts, want = answers_of(model, *LENGTHS)
    served = open_folder(tmp_path)
    for options in MIXES.values():
        if "cache_bytes" in options and name == "falcon_h1":  # whose layers all keep keys and values
            options = options | {"cache_bytes": 16 * BLOCK}
        with Engine(served.step, EngineOptions(**options)) as engine:
            assert [list(x.choices[0].tokens) for x in engine.generate(prompts, GREEDY)] == want
