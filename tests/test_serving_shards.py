"""The engine over shards of a model: process 0 schedules, the others follow. Processes are threads with gloo's groups between
them, but where one dies."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dhlo
from dhlo.distributed import Communicator
from dhlo.errors import ContractError
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine
from dhlo.serve.shards import follow
from dhlo.serve.types import EngineOptions, FinishReason, Output, SamplingParams
from tests.sequences import PAGE
from tests.tensor_parallel import pretended, shard
from tests.test_distributed import together

VOCABULARY = 96
BLOCK_BYTES = 2 * 2 * 1 * 8 * 4 * PAGE  # of a shard: keys and values of 2 layers, a head of 8 floats
SECONDS = 300.0  # of operations, where none is to fail: processes may be stopped meanwhile
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)


def llama(heads: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2 * heads,
        num_key_value_heads=heads,
        head_dim=8,
    )
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(4)
    return made


def shards_of(model: Any, size: int) -> list[CompiledModel]:
    made = []
    for rank in range(size):
        with pretended(size, rank):
            made.append(dhlo.compile(step_program(shard(model, rank, size)), pages={"keys*": PAGE, "values*": PAGE}))
    return made


@pytest.fixture(scope="module")
def model() -> Any:
    return llama(2)


@pytest.fixture(scope="module")
def steps(model: Any) -> list[CompiledModel]:
    return shards_of(model, 2)


def serve(steps: Sequence[CompiledModel], use: Callable[[Engine], Any], options: EngineOptions) -> Any:
    """What `use` returns of an engine over the shards."""

    def one(rank: int, group: Any) -> Any:
        mine = copy.copy(steps[rank])
        mine.bind_process_group(group)
        if rank:
            return follow(mine, timeout=options.peer_timeout)
        with Engine(mine, options) as engine:
            return use(engine)

    found, *others = together(len(steps), one, SECONDS)
    for error in (found, *others):
        if isinstance(error, Exception):
            raise error
    return found


def options_of(blocks: int, **more: Any) -> EngineOptions:
    return EngineOptions(cache_bytes=blocks * BLOCK_BYTES, peer_timeout=SECONDS, **more)


def check_greedy(model: Any, prompt: Sequence[int], output: Output) -> None:
    for choice in output.choices:
        assert choice.finish is FinishReason.LENGTH, choice
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *choice.tokens]])).logits[0, len(prompt) - 1 : -1]
        given = logits.gather(1, torch.tensor(choice.tokens)[:, None])[:, 0]
        assert (given >= logits.max(-1).values - 1e-3).all()


def everything(model: Any, steps: Sequence[CompiledModel]) -> None:
    """Batches, prompts in parts, beginnings that are known, choices, preemption, drafts: greedy tokens are the whole model's."""
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(n)] for n in (61, 1, 5, 33, 100, 17)]
    prompts += [[*prompts[4][: 4 * PAGE], 7], [3, 9, 27, 81, 5] * 6]

    def use(engine: Engine) -> Any:
        first = engine.generate(prompts, GREEDY)
        again = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=20, n=3))
        sampled = engine.generate(prompts, SamplingParams(seed=5, max_tokens=8, n=2))
        return first, again, sampled, engine.stats()

    def whole(blocks: int, **more: Any) -> Any:
        return serve(steps, use, options_of(blocks, **more))

    first, again, sampled, stats = whole(120, max_step_tokens=24, max_sequences=12)
    for prompt, one, three in zip(prompts, first, again, strict=True):
        check_greedy(model, prompt, one)
        check_greedy(model, prompt, three)
    assert stats.cached_tokens > 0 and stats.preemptions == 0
    tight = whole(14, max_step_tokens=24, max_sequences=12, prompt_lookup=4)  # in which many give up their blocks
    for prompt, one, three in zip(prompts, tight[0], tight[1], strict=True):
        check_greedy(model, prompt, one)
        check_greedy(model, prompt, three)
    assert tight[3].preemptions > 0 and tight[3].drafted_tokens > 0
    assert len({c.tokens for output in sampled for c in output.choices}) == 2 * len(prompts)


def test_tokens_are_the_whole_models(model: Any, steps: list[CompiledModel]) -> None:
    everything(model, steps)


class Counted(Communicator):
    """Fails at an operation, by its number; 0: at none."""

    def __init__(self, group: Any, fails: int = 0) -> None:
        super().__init__(group)
        self.done, self.fails = 0, fails

    def exchange(self, kind: str, *args: Any, **more: Any) -> None:
        self.done += 1
        if self.done == self.fails:
            raise RuntimeError("the cable is out")
        super().exchange(kind, *args, **more)


def test_a_process_that_fails_ends_the_others(steps: list[CompiledModel]) -> None:
    """Whichever of both: the engine's requests end with an error, later ones at once, and whoever follows ends, too."""

    def pair(fails: int, failing: int) -> list[Any]:
        def one(rank: int, group: Any) -> Any:
            world = Counted(group, fails if rank == failing else 0)
            if rank:
                return follow(steps[1], world, timeout=2.0)
            with Engine(steps[0], EngineOptions(cache_bytes=40 * BLOCK_BYTES, peer_timeout=2.0, communicator=world)) as engine:
                outputs = engine.generate([[1, 2, 3], [4] * 30], GREEDY)
                return [*outputs, *engine.generate([[5]], GREEDY)], engine.stats()

        return together(2, one, SECONDS)

    for failing in (0, 1):
        (outputs, stats), followed = pair(5, failing)
        choices = [output.choices[0] for output in outputs]
        assert [c.finish for c in choices] == [FinishReason.ERROR] * 3
        assert "all_reduce of process group '0' at " in choices[0].error and "the communicator failed" in choices[0].error
        assert "an earlier step failed" in choices[2].error and "make another engine" in choices[2].error
        assert stats.running == stats.waiting == stats.blocks_used == 0
        assert getattr(followed, "status", None) == "host", followed
    assert "the cable is out" in str(followed)
    first, followed = pair(2, 1)  # as it says that it is ready
    assert "asking whether all processes are ready" in str(first) and "the cable is out" in str(followed)


def test_what_goes_with_no_shards(steps: list[CompiledModel], tmp_path: Path) -> None:
    small = EngineOptions(cache_bytes=4 * BLOCK_BYTES)

    def one(rank: int, group: Any) -> Any:
        mine = copy.copy(steps[rank])
        mine.bind_process_group(group)
        if rank:
            with pytest.raises(ContractError, match="process 0 has the engine, and the others follow"):
                Engine(mine, small)
            with pytest.raises(ContractError, match="above 0 seconds, got 0"):
                follow(mine, timeout=0)
            return None
        for wrong, what in (
            ({"preemption": "swap"}, "preemption"),
            ({"cache_folder": str(tmp_path), "cache_folder_bytes": 1 << 20, "model_digest": bytes(32)}, "cache_folder"),
        ):
            with pytest.raises(ContractError, match=f"{what}: .* not with a communicator"):
                Engine(mine, replace(small, **wrong))
        for wrong, what in (
            ({"peer_timeout": -1.0}, "above 0 seconds, got -1"),
            ({"communicator": group}, "is a dhlo.distributed"),
        ):
            with pytest.raises(ContractError, match=what):
                Engine(mine, replace(small, **wrong))
        with pytest.raises(ContractError, match="process 0 of group '0', which is to have the engine"):
            follow(mine)
        return None

    assert together(2, one) == [None, None]
    with pytest.raises(ContractError, match="call bind_process_group"):
        follow(copy.copy(steps[1]))
    with pytest.raises(ContractError, match="no communicator: set dhlo_session_options.communicator"):
        Engine(copy.copy(steps[0]), small)
    with pytest.raises(ContractError, match="with a compiled model"):
        follow(7)  # type: ignore[arg-type]


def test_processes_without_room_say_so(steps: list[CompiledModel]) -> None:
    """The engine isn't made where another process has a step of another kind."""
    other = LlamaForCausalLM(LlamaConfig(**llama(2).config.to_diff_dict() | {"vocab_size": 2 * VOCABULARY})).eval()
    with pretended(2, 1):
        wrong = dhlo.compile(step_program(shard(other, 1, 2)), pages={"keys*": PAGE, "values*": PAGE})

    def one(rank: int, group: Any) -> Any:
        world = Communicator(group)
        if rank:
            return follow(wrong, world, timeout=SECONDS)
        return Engine(steps[0], replace(options_of(4), communicator=world))

    engine, followed = together(2, one)
    assert "another process can't follow this engine" in str(engine)
    assert isinstance(followed, ContractError) and "all are to be shards of one model" in str(followed)


@pytest.mark.slow
def test_an_engine_without_requests_tells_of_itself(steps: list[CompiledModel]) -> None:
    """So that those that follow can tell that it is there."""

    def one(rank: int, group: Any) -> Any:
        world = Counted(group)
        if rank:
            return follow(steps[1], world, timeout=SECONDS)
        with Engine(steps[0], replace(options_of(40), communicator=world)) as engine:
            while world.done < 2 + 2:
                time.sleep(0.1)
            return engine.generate([[1, 2, 3]], GREEDY)[0].choices[0].finish

    assert together(2, one, SECONDS) == [FinishReason.LENGTH, None]


@pytest.mark.slow
def test_four_processes() -> None:
    model = llama(4)
    everything(model, shards_of(model, 4))
