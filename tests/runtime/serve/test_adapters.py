"""Adapters (LoRA) by request: loaded while others are in use, chosen by name, of keys and values of their own."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import dhlo
from dhlo import LoraOptions
from dhlo.errors import ContractError, ModelFileError
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from dhlo.serve.adapters import Adapter, read_adapter
from dhlo.serve.engine import Engine
from dhlo.serve.types import Choice, EngineOptions, FinishReason, QueueFullError, SamplingParams
from tests.adapters import merged, random_pairs, write_folder
from tests.sequences import PAGE

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
OPTIONS = EngineOptions(cache_bytes=4 << 20, max_step_tokens=24)


@pytest.fixture(scope="module")
def model() -> Any:
    """A decoder whose weights are large enough that it says more than one token over and over."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    made = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(4)
    return made


@pytest.fixture(scope="module")
def step(model: Any) -> CompiledModel:
    pages = {"keys*": PAGE, "values*": PAGE}
    return dhlo.compile(step_program(model), pages=pages, lora=LoraOptions(max_rank=8, max_adapters=3))


@pytest.fixture(scope="module")
def folders(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three adapters: of all products; of rank 2, scaled by its root; and of two products, one of which has a scale of its own."""
    base = tmp_path_factory.mktemp("adapters")
    return {
        "all": write_folder(base / "all", random_pairs(model, LINEAR, 8, 0), lora_alpha=4),
        "roots": write_folder(base / "roots", random_pairs(model, LINEAR[:2], 2, 1, 0.5), lora_alpha=4, use_rslora=True),
        "patterns": write_folder(
            base / "patterns",
            random_pairs(model, ("up_proj", "o_proj"), 4, 2, 0.2),
            lora_alpha=8,
            alpha_pattern={"1.mlp.up_proj": 2},
        ),
    }


@pytest.fixture(scope="module")
def models(model: Any) -> dict[str, Any]:
    """Models that these are merged into."""
    some = random_pairs(model, ("up_proj", "o_proj"), 4, 2, 0.2)
    own = {n: p for n, p in some.items() if n.endswith("1.mlp.up_proj")}
    rest = {n: p for n, p in some.items() if n not in own}
    return {
        "": model,
        "all": merged(model, random_pairs(model, LINEAR, 8, 0), 0.5),
        "roots": merged(model, random_pairs(model, LINEAR[:2], 2, 1, 0.5), 4 / 2**0.5),
        "patterns": merged(merged(model, rest, 2.0), own, 0.5),
    }


@pytest.fixture
def engine(step: CompiledModel, folders: dict[str, Path]) -> Iterator[Engine]:
    with Engine(step, OPTIONS) as made:
        for name, folder in folders.items():
            made.load_adapter(name, folder)
        yield made


def prompt(n: int, seed: int = 0) -> list[int]:
    return [int(x) for x in torch.randint(0, 96, (n,), generator=torch.Generator().manual_seed(seed))]


def is_greedy(model: Any, prompt: Sequence[int], choice: Choice) -> bool:
    """Each token is the most likely one behind those before it, up to rounding."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *choice.tokens]])).logits[0, len(prompt) - 1 : -1]
    given = logits.gather(1, torch.tensor(choice.tokens)[:, None])[:, 0]
    return bool((given >= logits.max(-1).values - 2e-3).all())


def test_requests_with_adapters_of_their_own(engine: Engine, models: dict[str, Any]) -> None:
    """At once, in parts, and in more choices than one."""
    names = ["all", "", "roots", "patterns", "all", ""]
    prompts = [prompt(n, k) for k, n in enumerate((70, 3, 17, 40, 1, 33))]
    params = [replace(GREEDY, adapter=name, n=1 + (k == 3)) for k, name in enumerate(names)]
    outputs = engine.generate(prompts, params)
    for name, given, output in zip(names, prompts, outputs, strict=True):
        for choice in output.choices:
            assert is_greedy(models[name], given, choice), name
            assert name == "" or not is_greedy(models[""], given, choice), f"{name} changes nothing"


def test_beginnings_are_shared_by_content(engine: Engine, folders: dict[str, Path]) -> None:
    given = prompt(65, 9)

    def cached(adapter: str, salt: str = "") -> int:
        (output,) = engine.generate([given], replace(GREEDY, adapter=adapter, max_tokens=1, cache_salt=salt))
        return output.cached_tokens

    assert [cached(a) for a in ("all", "roots", "", "patterns")] == [0] * 4
    assert [cached(a) for a in ("all", "roots", "", "patterns")] == [64] * 4
    assert cached("all", "theirs") == 0 and cached("", "theirs") == 0 and cached("all", "theirs") == 64
    engine.unload_adapter("roots")
    engine.load_adapter("other name", folders["all"])
    assert cached("other name") == 64
    engine.unload_adapter("all")
    engine.load_adapter("all", folders["roots"])
    assert cached("all") == 64
    engine.unload_adapter("other name")
    engine.load_adapter("other name", replace_scale(read_adapter(folders["all"]), 1.01))
    assert cached("other name") == 0


def replace_scale(adapter: Adapter, factor: float) -> Adapter:
    return Adapter(tuple(replace(p, scale=p.scale * factor) for p in adapter.pairs))


def test_an_adapter_that_is_given_up_serves_who_has_it(engine: Engine, models: dict[str, Any], folders: dict[str, Path]) -> None:
    given, ended = prompt(5, 3), threading.Event()

    def hold(choice: int, tokens: Sequence[int], allowed: memoryview) -> None:
        """The fifth token comes when the test says so."""
        if len(tokens) == 4:
            ended.wait(60)

    request = engine.submit(given, replace(GREEDY, adapter="all", max_tokens=400, constrain=hold))
    next(iter(request))
    engine.unload_adapter("all")
    with pytest.raises(ContractError, match="no adapter 'all'"):
        engine.submit(given, replace(GREEDY, adapter="all"))
    with pytest.raises(QueueFullError, match="room for 3 adapters"):
        engine.load_adapter("all", folders["all"])
    ended.set()
    request.cancel()
    choice = request.result(60).choices[0]
    assert choice.finish in (FinishReason.CANCELLED, FinishReason.LENGTH)
    assert is_greedy(models["all"], given, replace(choice, tokens=choice.tokens[:30]))
    wait_for(lambda: loads(engine, "all", folders["roots"]))
    (output,) = engine.generate([given], replace(GREEDY, adapter="all"))
    assert is_greedy(models["roots"], given, output.choices[0])


def loads(engine: Engine, name: str, folder: Path) -> bool:
    try:
        engine.load_adapter(name, folder)
    except QueueFullError:
        return False
    return True


def wait_for(done: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(6000):
        if done():
            return
        ended.wait(0.01)
    raise AssertionError("it doesn't come about")


def test_loading_while_others_are_served(engine: Engine, models: dict[str, Any], folders: dict[str, Path]) -> None:
    """By two threads, whose adapters come and go."""
    engine.unload_adapter("all")
    engine.unload_adapter("roots")
    failed: list[object] = []

    def serve(name: str, content: str) -> None:
        try:
            for k in range(8):
                wait_for(lambda: loads(engine, name, folders[content]))
                request = engine.submit(prompt(20, k), replace(GREEDY, adapter=name, cache_salt=name))
                engine.unload_adapter(name)
                if not is_greedy(models[content], prompt(20, k), request.result(60).choices[0]):
                    failed.append((name, k))
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=serve, args=given) for given in (("one", "all"), ("two", "roots"))]
    for t in threads:
        t.start()
    for k in range(6):
        (output,) = engine.generate([prompt(30, k)], replace(GREEDY, adapter="patterns"))
        assert is_greedy(models["patterns"], prompt(30, k), output.choices[0])
    for t in threads:
        t.join()
    assert not failed


def test_what_the_step_has_no_room_for(engine: Engine, model: Any, tmp_path: Path, folders: dict[str, Path]) -> None:
    engine.unload_adapter("all")
    q = "model.layers.0.self_attn.q_proj"
    good = read_adapter(folders["all"]).pairs
    wide = write_folder(tmp_path / "wide", random_pairs(model, ("q_proj",), 9, 0))
    bad = {
        "its rank is 9, and the step has room for 8": wide,
        "'q_proj' may be one of several": Adapter((replace(good[0], module="q_proj"),)),
        "'layers.0.w_proj' isn't one": Adapter((replace(good[0], module="layers.0.w_proj"),)),
        "'proj' isn't one": Adapter((replace(good[0], module="proj"),)),
        f"has module '{q}' twice": Adapter((*good, replace(next(p for p in good if p.module == q)))),
        "scale isn't finite": Adapter((replace(good[0], scale=float("nan")),)),
        "have other sizes than they say": Adapter((replace(good[0], rank=1 << 62),)),
        "float32, bfloat16 or float16": Adapter((replace(good[0], dtype=9, a=halved(good[0].a), b=halved(good[0].b)),)),
        "no pairs of matrices": Adapter(()),
    }
    for message, adapter in bad.items():
        with pytest.raises((ContractError, dhlo.errors.DhloError), match=message):
            engine.load_adapter("all", adapter)
    with pytest.raises(ContractError, match="there is an adapter 'roots' already"):
        engine.load_adapter("roots", folders["all"])
    for name in ("", "x" * 2000):
        with pytest.raises(ContractError, match="name has from 1"):
            engine.load_adapter(name, folders["all"])
        with pytest.raises(ContractError, match="no adapter"):
            engine.unload_adapter(name)
    engine.load_adapter("all", folders["all"])


def halved(data: memoryview) -> memoryview:
    return data[: len(data) // 2]


def test_halves_as_matrices(step: CompiledModel, model: Any, tmp_path: Path) -> None:
    pairs = random_pairs(model, LINEAR, 4, 5, 0.2)
    with Engine(step, OPTIONS) as engine:
        for dtype in (torch.bfloat16, torch.float16):
            halves = {n: (a.to(dtype), b.to(dtype)) for n, (a, b) in pairs.items()}
            engine.load_adapter(str(dtype), write_folder(tmp_path / str(dtype), halves))
            (output,) = engine.generate([prompt(30)], replace(GREEDY, adapter=str(dtype)))
            other = merged(model, {n: (a.float(), b.float()) for n, (a, b) in halves.items()}, 1.0)
            assert is_greedy(other, prompt(30), output.choices[0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "has DoRA"),
        ({"bias": "all"}, "has biases"),
        ({"lora_bias": True}, "has 'lora_bias'"),
        ({"modules_to_save": ["lm_head"]}, "has whole modules"),
        ({"trainable_token_indices": [1]}, "tokens' embeddings"),
        ({"peft_type": "IA3"}, "of kind 'IA3'"),
        ({"init_lora_weights": "pissa"}, "began as 'pissa'"),
        ({"something_new": {"x": 1}}, "has 'something_new'"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "alpha_pattern"),  # takes for ever
        ({"lora_alpha": 10**400}, "lora_alpha"),
    ],
)
def test_adapters_of_other_kinds(config: dict[str, Any], message: str, model: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "x", random_pairs(model, ("q_proj",), 2, 0), **config)
    with pytest.raises((ContractError, ModelFileError), match=message):
        read_adapter(folder)


def test_folders_that_arent_whole(model: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "x", random_pairs(model, ("q_proj",), 2, 0))
    file = folder / "adapter_model.safetensors"
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    one = dict(list(header.items())[:1])
    strange = {"base_model.model.embed.lora_embedding_A": next(iter(one.values()))}

    def of(header: Any) -> bytes:
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[-4096:]

    damaged = [b"", data[:5], data[:100], data[:-1], (1 << 62).to_bytes(8, "little"), of([]), of({"x": 1}), of(one), of({})]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(ModelFileError, match="adapter_model"):
            read_adapter(folder)
    file.write_bytes(of(header | {name.removeprefix("base_model.model."): told for name, told in header.items()}))
    with pytest.raises(ContractError, match=r"module 'model.layers.0.self_attn.q_proj' twice"):
        read_adapter(folder)
    file.write_bytes(of(strange))
    with pytest.raises(ContractError, match="lora_embedding_A' is no matrix of LoRA"):
        read_adapter(folder)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ModelFileError, match="no adapter_config"):
        read_adapter(folder)


@pytest.mark.slow
def test_a_step_without_room(model: Any, folders: dict[str, Path]) -> None:
    plain = dhlo.compile(step_program(model), pages={"keys*": PAGE, "values*": PAGE})
    with Engine(plain, OPTIONS) as engine, pytest.raises(ContractError, match="compile it with lora"):
        engine.load_adapter("all", folders["all"])


def test_what_peft_writes(step: CompiledModel, model: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False, rank_pattern={"o_proj": 2})
    other = peft.get_peft_model(copy.deepcopy(model), config)
    other.save_pretrained(tmp_path / "peft")
    with Engine(step, OPTIONS) as engine:
        engine.load_adapter("peft", tmp_path / "peft")
        (output,) = engine.generate([prompt(30)], replace(GREEDY, adapter="peft"))
    assert is_greedy(other.merge_and_unload(), prompt(30), output.choices[0])
