"""Adapters (LoRA) of a step over packed tokens: each sequence's tokens are those of the model that its adapter is merged into."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

import dhlo
from dhlo import LoraOptions
from dhlo.errors import CompileError, ContractError
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from tests.adapters import merged, packed, random_pairs
from tests.sequences import PAGE, Pools, feed, of_eager

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
PAGES = {"keys*": PAGE, "values*": PAGE}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ROOM = LoraOptions(max_rank=8, max_adapters=4)


def model_of(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


class Adapted(Pools):
    """Pools of a step with adapters, of each sequence one."""

    def __init__(self, compiled: CompiledModel, blocks: int, weights: torch.Tensor, chosen: dict[int, int]) -> None:
        super().__init__(compiled, blocks)
        self.names += ["adapters", "adapter_weights"] if "adapters" not in self.names else []
        self.weights, self.chosen = weights, chosen

    def inputs(self, tokens: Any) -> dict[str, torch.Tensor]:
        adapters = [self.chosen.get(s, -1) for s, new in tokens for _ in new]
        more = {"adapters": torch.tensor(adapters, dtype=torch.int32), "adapter_weights": self.weights}
        return super().inputs(tokens) | more


def given(*lengths: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randint(0, 96, (n,), generator=g) for n in lengths]


def check(model: Any, compiled: CompiledModel, targets: tuple[str, ...], tolerance: float) -> None:
    """Three adapters of several ranks and one sequence without, fed in parts."""
    scales = [0.5, 2.0, 1.0]
    pairs = [random_pairs(model, targets, rank, seed) for seed, rank in enumerate((8, 3, 1))]
    chosen = {0: 0, 1: 2, 3: 1, 4: 1}
    tokens = given(63, 40, 17, 90, 1)
    pools = Adapted(compiled, 24, packed(compiled, list(zip(pairs, scales, strict=True))), chosen)
    got = feed(pools, tokens, random.Random(0))
    models = [merged(model, p, s) for p, s in zip(pairs, scales, strict=True)]
    for k, (x, y) in enumerate(zip(tokens, got, strict=True)):
        (want,) = of_eager(models[chosen[k]] if k in chosen else model, [x])
        (plain,) = of_eager(model, [x])
        differs, changed = ((want - other).abs().max() / want.abs().max() for other in (y, plain))
        assert differs <= tolerance, f"sequence {k}: {differs}, where adapters make {changed}"
        assert k not in chosen or changed > 3 * tolerance, "adapters change nothing"


@pytest.fixture(scope="module")
def program() -> tuple[Any, torch.export.ExportedProgram]:
    model = model_of(LlamaConfig(**SMALL, attention_bias=True))
    return model, step_program(model)


@pytest.fixture(scope="module")
def llama(program: tuple[Any, torch.export.ExportedProgram]) -> tuple[Any, CompiledModel]:
    return program[0], dhlo.compile(program[1], pages=PAGES, lora=ROOM)


def test_sequences_with_adapters_of_their_own(llama: tuple[Any, CompiledModel]) -> None:
    check(*llama, LINEAR, 1e-4)


def test_adapters_of_some_products(llama: tuple[Any, CompiledModel]) -> None:
    check(*llama, ("k_proj", "up_proj"), 1e-4)


def test_a_step_without_adapters_reads_no_weights(llama: tuple[Any, CompiledModel]) -> None:
    model, compiled = llama
    tokens = given(20, 3)
    pools = Adapted(compiled, 4, packed(compiled, []), {})
    for y, want in zip(feed(pools, tokens, random.Random(0)), of_eager(model, tokens), strict=True):
        torch.testing.assert_close(y, want, rtol=1e-4, atol=2e-5)


def test_the_last_layer_of_the_tokens_that_are_wanted(llama: tuple[Any, CompiledModel]) -> None:
    """Products move behind the choice of tokens, and their adapters with them."""
    model, compiled = llama
    pairs = random_pairs(model, LINEAR, 8, 7)
    weights, tokens = packed(compiled, [(pairs, 1.0)]), list(enumerate(given(20, 7)))
    every = Adapted(compiled, 4, weights, {1: 0}).step(tokens)
    pools = Adapted(compiled, 4, weights, {1: 0})
    inputs = pools.inputs(tokens) | {"kept": torch.tensor([26, 19])}
    got: Any = compiled(*[inputs[n] for n in pools.names])
    last = (got if isinstance(got, torch.Tensor) else got[0])[0]
    torch.testing.assert_close(last, torch.stack([every[1][-1], every[0][-1]]), rtol=1e-4, atol=1e-5)


def test_an_adapter_that_there_isnt(llama: tuple[Any, CompiledModel]) -> None:
    """Fails its call, and no other."""
    model, compiled = llama
    tokens = list(enumerate(given(4, 2)))
    weights = packed(compiled, [])
    for bad in (4, 2**31 - 1):
        with pytest.raises(ContractError, match=f"index {bad} is out of range for size 4"):
            Adapted(compiled, 4, weights, {1: bad}).step(tokens)
    got = Adapted(compiled, 4, weights, {1: -(2**31)}).step(tokens)
    for y, want in zip(got, of_eager(model, [x for _, x in tokens]), strict=True):
        torch.testing.assert_close(y, want, rtol=1e-4, atol=2e-5)


def test_products_stay_joined(llama: tuple[Any, CompiledModel]) -> None:
    """Queries, keys and values are one product, and so is what adapters add to them."""
    launches = json.loads(llama[1].metadata)["levels"][0]["launches"]
    found = [x.rpartition("_")[2] for x in launches if x.startswith("low_rank")]
    assert found == ["3", "1", "1", "1", "1"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "weights", "tolerance"),
    [(torch.bfloat16, "", 0.04), (torch.float32, "int8", 0.02), (torch.float32, "int4:32", 0.05), (torch.float32, "bf16", 0.01)],
)
def test_bases_of_other_numbers(dtype: torch.dtype, weights: str, tolerance: float) -> None:
    model = model_of(LlamaConfig(**SMALL), dtype)
    if weights == "int4:32":  # of numbers that codes of four bits hold: the scale of each block is 0.02
        with torch.no_grad():
            for name, x in model.named_parameters():
                if x.dim() == 2 and "embed" not in name:
                    x.copy_((x / 0.02).round().clamp(-7, 7) * 0.02)
                    x[:, ::16] = 0.14
    compiled = dhlo.compile(step_program(model), pages=PAGES, lora=ROOM, weights=weights)
    check(model, compiled, LINEAR, tolerance)


@pytest.mark.slow
def test_mixture_of_experts() -> None:
    """Attention has adapters, experts have none."""
    more = {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    model = model_of(Qwen3MoeConfig(**SMALL, **more))
    check(model, dhlo.compile(step_program(model), pages=PAGES, lora=ROOM), LINEAR[:4], 1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": ROOM}, "the program is no step over sequences"),
        ({"pages": PAGES, "lora": LoraOptions(targets=("q_proj", "w_proj"))}, "no product with a constant of 'w_proj'"),
        ({"pages": PAGES, "lora": LoraOptions(targets=("lm_head",))}, "'model.lm_head' multiplies"),
        ({"pages": PAGES, "lora": LoraOptions(max_rank=0)}, "max_rank=0"),
        ({"pages": PAGES, "lora": 16}, "is a dhlo.LoraOptions, not 16"),
    ],
)
def test_what_cant_be(program: tuple[Any, torch.export.ExportedProgram], options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        dhlo.compile(program[1], **options)
