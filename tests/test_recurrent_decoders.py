"""Decoders with states of fixed size: steps over packed tokens beside transformers, tokens of the engine beside `generate()`."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.export import Dim, export
from transformers import AutoModelForCausalLM, FalconMambaConfig, Mamba2Config, MambaConfig

import dhlo
from dhlo.errors import CompileError, ContractError, DhloError
from dhlo.integrations import recurrent
from dhlo.integrations.decoder import step_pages, step_program
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine
from dhlo.serve.folder import open_folder
from dhlo.serve.types import EngineOptions, SamplingParams
from tests.sequences import Pools, feed, of_eager
from tests.serving import WORDS, make_folder

SMALL: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.3}
ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MAMBA2 = {"num_heads": 4, "head_dim": 16, "state_size": 9, "n_groups": 2, "chunk_size": 8}
CONFIGS = {
    "mamba2": lambda: Mamba2Config(**SMALL, **ENDS, **MAMBA2),
    "mamba": lambda: MambaConfig(**SMALL, **ENDS, state_size=5),
    "falcon_mamba": lambda: FalconMambaConfig(**SMALL, **ENDS, state_size=5),
}
LENGTHS = (70, 3, 41, 1, 57)


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


def compiled_of(model: Any) -> CompiledModel:
    return dhlo.compile(step_program(model), pages=step_pages(model, 16))


def check(model: Any, compiled: CompiledModel, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    given = [torch.randint(0, 96, (n,), generator=g) for n in (83, 1, 5, 121, 16, 17)]
    for got, want in zip(feed(Pools(compiled, 20, seed), given, random.Random(seed)), of_eager(model, given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def mamba2() -> tuple[Any, CompiledModel]:
    model = model_of("mamba2")
    return model, compiled_of(model)


@pytest.mark.parametrize("seed", range(3))
def test_sequences_of_all_lengths_in_one_step(mamba2: tuple[Any, CompiledModel], seed: int) -> None:
    check(*mamba2, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"mamba2"}))
def test_decoders(name: str) -> None:
    model = model_of(name)
    compiled = compiled_of(model)
    for seed in range(2):
        check(model, compiled, seed)


def test_a_step_of_other_cells_and_starts_is_refused(mamba2: tuple[Any, CompiledModel]) -> None:
    pools = Pools(mamba2[1], 2)
    tokens = [(0, torch.tensor([5, 6, 7])), (1, torch.tensor([8]))]
    for name, wrong in (("cells", [0, 99]), ("cells", [-1, 0]), ("starts", [0, 3, 5]), ("starts", [0, 5, 4])):
        with pytest.raises(ContractError):
            pools.step(tokens, **{name: torch.tensor(wrong, dtype=torch.int32)})
    pools.done.clear()
    (y, _), (want,) = pools.step(tokens), of_eager(mamba2[0], [tokens[0][1]])
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------ the engine
@pytest.fixture(scope="module")
def answers(mamba2: tuple[Any, CompiledModel]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, and what `generate()` goes on with."""
    g = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, 96, (n,), generator=g).tolist() for n in LENGTHS]
    with torch.no_grad():
        out = [mamba2[0].generate(torch.tensor([p]), max_new_tokens=16, do_sample=False)[0, len(p) :].tolist() for p in prompts]
    return prompts, out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_step_tokens": 9, "max_sequences": 3},
        {"max_step_tokens": 5, "max_sequences": 1},
        {"max_sequences": 2, "max_step_tokens": 64},
    ],
    ids=["at once", "in parts", "one by one", "in turn"],
)
def test_tokens_are_those_of_generate(
    mamba2: tuple[Any, CompiledModel], answers: tuple[list[list[int]], list[list[int]]], options: dict[str, int]
) -> None:
    with Engine(mamba2[1], EngineOptions(**options)) as engine:
        for _ in range(2):  # the second time in cells that others have used
            outputs = engine.generate(answers[0], SamplingParams(temperature=0, max_tokens=16))
            assert [list(x.choices[0].tokens) for x in outputs] == answers[1]
            assert not any(x.cached_tokens for x in outputs)


def test_choices_of_a_request_go_on_from_one_state(mamba2: tuple[Any, CompiledModel], answers: Any) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=12, n=3)
    with Engine(mamba2[1], EngineOptions(max_sequences=5)) as engine:
        together = engine.generate(answers[0], params)
    with Engine(mamba2[1], EngineOptions(max_step_tokens=8)) as engine:
        assert [x.choices for x in engine.generate(answers[0], params)] == [x.choices for x in together]
    assert any(x.choices[0].tokens != x.choices[1].tokens for x in together)


def test_beams_go_on_from_copies_of_states(mamba2: tuple[Any, CompiledModel], answers: Any) -> None:
    """As transformers' search, which computes each text anew."""
    params = SamplingParams(beam_width=3, n=2, max_tokens=6)
    prompts = [p for p in answers[0] if len(p) > 4][:2]
    with Engine(mamba2[1], EngineOptions(max_sequences=4, max_step_tokens=16)) as engine:
        outputs = engine.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            found = mamba2[0].generate(ids, max_new_tokens=6, do_sample=False, num_beams=3, num_return_sequences=2, use_cache=False)
        assert [list(c.tokens) for c in output.choices] == found[:, len(prompt) :].tolist()


def test_what_states_cant_do_is_refused(mamba2: tuple[Any, CompiledModel], tmp_path: Any) -> None:
    folder = {"cache_folder": str(tmp_path), "cache_folder_bytes": 1 << 20}
    store = {"cache_store": SimpleNamespace(put=lambda name, data: None, get=lambda name: None, remove=lambda name: None)}
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("prompt_lookup", {"prompt_lookup": 3}),
        ("cache_folder", folder),
        ("cache_store", store),
        ("evict_to", {"evict_to": 64}),
    )
    for name, options in cases:
        with pytest.raises((DhloError, ValueError), match=name), Engine(mamba2[1], EngineOptions(**options)):
            pass


@pytest.mark.slow
def test_a_folder(tmp_path: Path) -> None:
    make_folder(tmp_path)  # a tokenizer, and a model whose place this one takes
    torch.manual_seed(0)
    config = Mamba2Config(**SMALL | {"vocab_size": WORDS}, **MAMBA2, bos_token_id=None, eos_token_id=2, pad_token_id=0)
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    served = open_folder(tmp_path)
    prompt = served.tokenizer.encode("Once upon a time")
    with torch.no_grad():
        want = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
    with Engine(served.step, EngineOptions(eos_tokens=served.eos_tokens)) as engine:
        (output,) = engine.generate([prompt], SamplingParams(temperature=0, max_tokens=12))
    assert list(output.choices[0].tokens) == want


# ------------------------------------------------------------------------------------------------ programs of other kinds
def test_layers_of_other_kinds_are_refused() -> None:
    model = model_of("mamba")
    with patch.object(recurrent, "_KINDS", ()), pytest.raises(CompileError, match="something else than states"):
        step_program(model)


class Leaky(torch.nn.Module):
    """A leaky sum of what comes, which tells of the sum before, too; by products with a constant, if `mixes`."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes, self.weight = mixes, torch.nn.Parameter(torch.rand(6, 6))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        before = total * 0.5
        new = (before @ self.weight if self.mixes else before) + x[:, 0]
        total.copy_(new)
        return (new.sum(-1) + before.amax(-1))[None]


@pytest.mark.parametrize("mixes", [False, True])
def test_programs_of_ones_own(mixes: bool) -> None:
    module, batch = Leaky(mixes).eval(), {0: Dim.AUTO}
    with torch.no_grad():
        program = export(module, (torch.rand(2, 1, 6), torch.zeros(2, 6)), dynamic_shapes=(batch, batch))
    compiled = dhlo.compile(program, pages={"total": 1})
    x, pool, i32 = torch.rand(1, 7, 6), torch.full((3, 6), torch.nan), lambda *n: torch.tensor(n, dtype=torch.int32)
    got: Any = compiled(x, pool, i32(2, 0), i32(0, 4, 7), i32(4, 3))
    want, states = list[torch.Tensor](), []
    for rows in (x[:, :4], x[:, 4:]):
        total = torch.zeros(1, 6)
        with torch.no_grad():
            want += [module(rows[:, i : i + 1], total)[0] for i in range(rows.shape[1])]
        states.append(total[0])
    torch.testing.assert_close((got if isinstance(got, torch.Tensor) else got[0])[0], torch.cat(want))
    torch.testing.assert_close(pool[[2, 0]], torch.stack(states))
    assert pool[1].isnan().all()


def test_what_isnt_a_state_is_named() -> None:
    class Grows(torch.nn.Module):
        def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            total.copy_(total + x.sum())
            return total * 2

    args = (torch.rand(2, 3), torch.rand(2, 3))
    program = export(Grows(), args, dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    with pytest.raises(CompileError, match="of one slot"):
        dhlo.compile(program, pages={"total": 16})
