"""The engine over shards of a model: process 0 schedules, the others follow. Processes are threads with gloo's groups between
them, but where one dies."""

from __future__ import annotations

import copy
import json
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    Phi3Config,
    Qwen3Config,
)

import dhlo
from dhlo.distributed import Communicator
from dhlo.errors import CompileError, ContractError, DhloError
from dhlo.integrations.decoder import step_program
from dhlo.integrations.shards import shard_decoder
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine
from dhlo.serve.folder import open_folder
from dhlo.serve.followers import Followers
from dhlo.serve.shards import follow
from dhlo.serve.types import EngineOptions, FinishReason, Output, SamplingParams
from tests.sequences import PAGE
from tests.serving import make_folder
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
    programs = (step_program(shard_decoder(model, rank, size)) for rank in range(size))
    return [dhlo.compile(p, pages={"keys*": PAGE, "values*": PAGE}) for p in programs]


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

    def whole(blocks: int, tokens: int, **more: Any) -> Any:
        greedy = replace(GREEDY, max_tokens=tokens)

        def use(engine: Engine) -> Any:
            first, again = engine.generate(prompts, greedy), engine.generate(prompts, replace(greedy, n=3))
            sampled = engine.generate(prompts, SamplingParams(seed=5, max_tokens=tokens, n=3))
            return first, again, sampled, engine.stats()

        return serve(steps, use, options_of(blocks, max_step_tokens=24, max_sequences=12, **more))

    first, again, sampled, stats = whole(120, 20)
    for prompt, one, three in zip(prompts, first, again, strict=True):
        check_greedy(model, prompt, one)
        check_greedy(model, prompt, three)
    assert stats.cached_tokens > 0 and stats.preemptions == 0
    # In which many give up their blocks: three texts of the longest prompt need 18 by themselves, however the others come.
    tight = whole(14, 60, prompt_lookup=4)
    for prompt, one, three in zip(prompts, tight[0], tight[1], strict=True):
        check_greedy(model, prompt, one)
        check_greedy(model, prompt, three)
    assert tight[3].preemptions > 0 and tight[3].drafted_tokens > 0
    assert len({c.tokens for output in sampled for c in output.choices}) == 3 * len(prompts)


def test_tokens_are_the_whole_models(model: Any, steps: list[CompiledModel]) -> None:
    everything(model, steps)


def even(_: int, tokens: Sequence[int], allowed: memoryview) -> None:
    """Every other token, beginning with the even ones."""
    for i in range(len(allowed)):
        allowed[i] &= 0xAAAAAAAA if len(tokens) % 2 else 0x55555555


def kinds_of_requests() -> dict[str, SamplingParams]:
    return {
        "beams": SamplingParams(beam_width=4, n=3, max_tokens=12),
        "beams with ends": SamplingParams(beam_width=3, n=3, max_tokens=12, stop_tokens=(5, 7, 11), early_stopping=True),
        "log-probabilities": replace(GREEDY, logprobs=3, n=2),
        "stop strings": replace(GREEDY, stop=("a", "bc"), max_tokens=60),
        "structured": replace(GREEDY, constrain=even),
        "penalties": replace(GREEDY, repetition_penalty=1.5, presence_penalty=0.5, logit_bias={3: 2.0}),
        "drawn": SamplingParams(seed=7, n=2, top_k=20, top_p=0.9, max_tokens=12),
    }


def test_kinds_of_requests(model: Any, steps: list[CompiledModel]) -> None:
    """Together, with drafts, with too few blocks, and where sequences go on without some: all that an engine of one process over
    the whole model gives."""
    rng = random.Random(1)
    whole = dhlo.compile(step_program(model), pages={"keys*": PAGE, "values*": PAGE})
    prompts = [[rng.randrange(VOCABULARY) for _ in range(n)] for n in (45, 3)] + [[3, 9, 27, 81] * 9]
    kinds = kinds_of_requests()

    def use(engine: Engine) -> dict[str, list[Output]]:
        takes = [kind for kind, how in kinds.items() if not (how.beam_width and engine.options.evict_to)]  # refused
        made = {kind: [engine.submit(p, kinds[kind]) for p in prompts] for kind in takes}
        return {kind: [r.result() for r in requests] for kind, requests in made.items()}

    vocabulary = tuple(bytes([97 + t % 26]) for t in range(VOCABULARY))
    plain: dict[str, Any] = {"max_step_tokens": 24, "max_sequences": 12, "vocabulary": vocabulary}
    for options in ({"blocks": 120}, {"blocks": 30, "prompt_lookup": 4}, {"blocks": 60, "evict_to": 3 * PAGE}):
        blocks, more = options.pop("blocks"), plain | options
        with Engine(whole, EngineOptions(cache_bytes=2 * blocks * BLOCK_BYTES, **more)) as engine:
            wanted = use(engine)
        got = serve(steps, use, options_of(blocks, **more))
        assert got.keys() == wanted.keys()
        for kind in wanted:
            for one, other in zip(got[kind], wanted[kind], strict=True):
                for x, y in zip(one.choices, other.choices, strict=True):
                    assert (x.tokens, x.finish, x.stop) == (y.tokens, y.finish, y.stop), (kind, options)
                    assert x.score == pytest.approx(y.score, abs=1e-4)
                    assert [t.logprob for t in x.logprobs] == pytest.approx([t.logprob for t in y.logprobs], abs=1e-4)
    assert any(c.stop for o in wanted["stop strings"] for c in o.choices)


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
        assert "all_reduce of process group 'tp' at " in choices[0].error and "the communicator failed" in choices[0].error
        assert "an earlier step failed" in choices[2].error and "make another engine" in choices[2].error
        assert stats.running == stats.waiting == stats.blocks_used == 0
        assert "the communicator failed" in stats.failure and "make another engine" in stats.failure
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
        with pytest.raises(ContractError, match="process 0 of group 'tp', which is to have the engine"):
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
    wrong = dhlo.compile(step_program(shard_decoder(other, 1, 2)), pages={"keys*": PAGE, "values*": PAGE})

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


# ---------------------------------------------------------------------------------------------------- plans
def test_a_shard_is_its_part_of_the_model(model: Any) -> None:
    part = shard_decoder(model, 1, 2)
    layer, whole = part.model.layers[1], model.model.layers[1]
    assert torch.equal(layer.self_attn.k_proj.weight, whole.self_attn.k_proj.weight[8:])
    assert torch.equal(layer.mlp.down_proj.weight, whole.mlp.down_proj.weight[:, 24:])
    assert part.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert isinstance(whole.self_attn.k_proj, torch.nn.Linear)
    assert shard_decoder(model, 0, 1).lm_head(torch.ones(1, 1, 32)).shape == (1, 1, VOCABULARY)


def test_what_cant_be_shared_is_named(model: Any) -> None:
    for size, message in (
        (3, r"3 processes can't share 4 heads evenly \(num_attention_heads"),
        (4, "2 heads evenly .num_key_value"),
    ):
        with pytest.raises(CompileError, match=message):
            shard_decoder(model, 0, size)
    with pytest.raises(CompileError, match="no process 2 of 2"):
        shard_decoder(model, 2, 2)
    with pytest.raises(CompileError, match="no plan how several processes share a GPT2LMHeadModel"):
        shard_decoder(AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=7)), 0, 2)
    odd = copy.deepcopy(model)
    odd.config.base_model_tp_plan |= {"layers.*.mlp.down_proj": "sideways"}
    with pytest.raises(CompileError, match=r"divides 'layers\.0\.mlp\.down_proj' \(Linear\) as 'sideways'"):
        shard_decoder(odd, 0, 2)
    odd.config.base_model_tp_plan |= {"layers.*.mlp.down_proj": "rowwise"}
    odd.model.layers[0].mlp.down_proj = torch.nn.Linear(47, 32)
    with pytest.raises(CompileError, match="can't share 47 rows or columns"):
        shard_decoder(odd, 0, 2)


SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "n_routed_experts": 8, "moe_intermediate_size": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SMALL),
        Phi3Config(**SMALL),
        Gemma2Config(**SMALL, sliding_window=24),
        MixtralConfig(**SMALL, num_local_experts=4),
        DeepseekV3Config(**{**SMALL, **LATENT}),
    ],
    ids=lambda c: c.model_type,
)
def test_models_by_their_plans(config: Any) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    rng = random.Random(0)
    prompts = [[rng.randrange(96) for _ in range(n)] for n in (41, 1, 7)]
    outputs = serve(
        shards_of(model, 2), lambda e: e.generate(prompts, GREEDY), EngineOptions(cache_bytes=1 << 20, peer_timeout=SECONDS)
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        check_greedy(model, prompt, output)


# ---------------------------------------------------------------------------------------------------- processes
@pytest.mark.slow
def test_a_folder_shared_by_processes(tmp_path: Path) -> None:
    """As `dhlo serve --tensor-parallel 2` does; and then the other process is killed."""
    folder = make_folder(tmp_path / "llama")
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    with Followers(folder, 2, threads=1, cache=str(tmp_path / "cache"), apart=True) as followers:
        served, communicator = followers.open()
        options = EngineOptions(cache_bytes=1 << 22, communicator=communicator, peer_timeout=20.0)
        with Engine(served.step, options) as engine:
            rng = random.Random(0)
            prompts = [[rng.randrange(3, 400) for _ in range(n)] for n in (41, 1, 7)]
            for prompt, output in zip(prompts, engine.generate(prompts, GREEDY), strict=True):
                check_greedy(model, prompt, output)
            request = engine.submit([5, 6, 7], replace(GREEDY, max_tokens=400))
            next(iter(request))
            for process, _ in followers._processes:
                process.kill()
            (choice,) = request.result(60).choices
            assert choice.finish is FinishReason.ERROR and "process group 'tp'" in choice.error
            assert engine.submit([5]).result(60).choices[0].finish is FinishReason.ERROR
    again = open_folder(folder, cache=str(tmp_path / "cache"), threads=1)
    assert "tp" not in json.loads(again.step.metadata).get("process_groups", {})  # not a shard that was kept


@pytest.mark.slow
def test_a_server_of_two_processes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llama")
    command = [sys.executable, "-m", "dhlo", "serve", str(folder), "--tensor-parallel", "2", "--threads", "1", "--port", "0"]
    command += ["--cache", str(tmp_path / "cache"), "--cache-gb", "0.01"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = next(line.strip() for line in server.stdout if line.startswith("http"))
    body = json.dumps({"model": "llama", "prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 12
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    server.stdout.close()


@pytest.mark.slow
def test_a_folder_that_processes_cant_share(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llama")
    with (
        Followers(folder, 4, threads=1, cache=str(tmp_path / "cache")) as followers,
        pytest.raises(CompileError, match="2 heads evenly"),
    ):
        followers.open()
    with pytest.raises(DhloError, match="2 to 64 processes, got 1"):
        Followers(folder, 1)


@pytest.mark.slow
def test_four_processes() -> None:
    model = llama(4)
    everything(model, shards_of(model, 4))
