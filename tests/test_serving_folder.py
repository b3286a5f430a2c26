"""Folders of transformers as what is served: compiled once, found again, or refused by what they lack."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from transformers import AutoModelForCausalLM, BertConfig, BertModel
from typer.testing import CliRunner

from dhlo.cli import app
from dhlo.codegen.backends.artifact import Artifact
from dhlo.errors import CompileError, DhloError
from dhlo.serve import compiling
from dhlo.serve.compiling import FolderProgram
from dhlo.serve.engine import Engine
from dhlo.serve.folder import Served, StepProgram, open_folder
from dhlo.serve.server import ServerOptions, make_app
from dhlo.serve.tokens import TextStream
from dhlo.serve.types import EngineOptions, Event, SamplingParams
from tests.adapters import merged, random_pairs, write_folder
from tests.serving import WORDS, make_folder

AGAIN = """\
import sys
from dhlo.serve.folder import open_folder
served = open_folder(sys.argv[1], cache=sys.argv[2])
print([v["name"] for v in served.step.inputs], {"torch", "transformers"} & set(sys.modules))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Served]:
    """A folder, its cache, and what its first start gave."""
    root = tmp_path_factory.mktemp("served")
    folder = make_folder(root / "llama-0.1")
    generation = {"eos_token_id": [0, 2], "temperature": 0.5, "top_k": 7, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    said = list[str]()
    served = open_folder(folder, cache=str(root / "cache"), progress=said.append)
    assert "generate code" in said
    return folder, root / "cache", served


def test_a_folder_is_what_serving_takes(started: tuple[Path, Path, Served]) -> None:
    _, _, served = started
    assert (served.name, served.eos_tokens, served.max_positions) == ("llama-0.1", (0, 2), 512)
    assert served.defaults == {"temperature": 0.5, "top_k": 7}
    assert served.chat is not None and len(served.tokenizer.vocabulary) == WORDS
    names = [v["name"] for v in served.step.inputs]
    assert {"input_ids", "kept", "slots", "tables"} <= set(names)


def test_the_second_start_needs_no_torch(started: tuple[Path, Path, Served]) -> None:
    folder, cache, served = started
    command = [sys.executable, "-c", AGAIN, str(folder), str(cache)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert result.stdout.split("] ")[1].strip() == "set()"
    assert [v["name"] for v in served.step.inputs] == json.loads(result.stdout.split("] ")[0].replace("'", '"') + "]")


FIRST = """\
import pathlib, sys
from dhlo.errors import CompileError
from dhlo.serve.folder import open_folder
folder, cache, said = pathlib.Path(sys.argv[1]), sys.argv[2], []
served = open_folder(folder, cache=cache, progress=said.append, apart=True)
assert said.count("generate code") == 1, said
if cache.endswith("json"):  # no folder: it can't keep a file
    pass
elif cache:
    assert open_folder(folder, cache=cache).digest == served.digest
else:
    (folder / "model.safetensors").unlink()
    try:
        open_folder(folder, cache=cache, apart=True)
    except CompileError as e:
        assert "has no weights" in str(e)
    else:
        raise AssertionError
print([v["name"] for v in served.step.inputs], {"torch", "transformers"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    "cache", ["cache", pytest.param("", marks=pytest.mark.slow), pytest.param("m/config.json", marks=pytest.mark.slow)]
)
def test_the_first_start_leaves_no_torch(started: tuple[Path, Path, Served], tmp_path: Path, cache: str) -> None:
    """What compiles is a process of its own, whose errors come back."""
    folder = shutil.copytree(started[0], tmp_path / "m")
    command = [sys.executable, "-c", FIRST, str(folder), str(tmp_path / cache) if cache else ""]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"{[v['name'] for v in started[2].step.inputs]} set()"


@dataclass(frozen=True, kw_only=True)
class _Failing(FolderProgram):
    """Its process ends as `how` says."""

    how: str

    def compile(self) -> Artifact:
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise {"memory": MemoryError(), "file": OSError(28, "No space left", "x"), "bug": KeyError("the weight")}[self.how]

    def about(self) -> dict[str, Any]:
        return {}

    def files(self) -> list[Path]:
        return []


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ("killed", "has ended: SIGKILL, perhaps for want of memory"),
        pytest.param("memory", "has not enough memory", marks=pytest.mark.slow),
        pytest.param("file", "No space left.*: 'x'", marks=pytest.mark.slow),
        pytest.param("bug", r"has failed:\n(.|\n)*in compile(.|\n)*KeyError: 'the weight'", marks=pytest.mark.slow),
    ],
)
def test_how_the_process_that_compiles_fails_is_told(tmp_path: Path, how: str, match: str) -> None:
    with pytest.raises(DhloError, match=match):
        _Failing(folder=tmp_path, progress=lambda _: None, apart=True, how=how).open(None)


class _CompiledError(Exception):
    pass


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling raises _CompiledError."""

    def refuse(_: Any) -> None:
        raise _CompiledError

    monkeypatch.setattr(StepProgram, "compile", refuse)


@pytest.mark.usefixtures("compiles")
def test_whatever_changes_the_step_compiles_again(started: tuple[Path, Path, Served], tmp_path: Path, monkeypatch: Any) -> None:
    folder, cache, _ = started
    open_folder(folder, cache=str(cache))
    for options in ({"weights": {"default": "int8"}}, {"kv_cache": "bf16"}, {"cache": ""}, {"cache": str(tmp_path)}):
        with pytest.raises(_CompiledError):
            open_folder(folder, **({"cache": str(cache)} | options))
    with monkeypatch.context() as patch, pytest.raises(_CompiledError):
        patch.setenv("DHLO_TARGET", "x86-64-v3")
        open_folder(folder, cache=str(cache))
    for what in ("_transformers", "compiler_version"):  # whose modules are compiled, and PyTorch and the compiler
        with monkeypatch.context() as patch, pytest.raises(_CompiledError):
            patch.setattr(compiling, what, lambda: "another")
            open_folder(folder, cache=str(cache))
    copy = shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(_CompiledError):
        open_folder(copy, cache=str(cache))


@pytest.mark.usefixtures("compiles")
def test_damaged_and_foreign_files_arent_used(started: tuple[Path, Path, Served], tmp_path: Path) -> None:
    folder, cache, _ = started
    other = shutil.copytree(cache, tmp_path / "cache")
    (file,) = other.glob("*.so")
    open_folder(folder, cache=str(other))
    file.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="others may write"), pytest.raises(_CompiledError):
        open_folder(folder, cache=str(other))
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(_CompiledError):
        open_folder(folder, cache=str(other))


def break_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def save_bert(folder: Path) -> None:
    config = BertConfig(vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(folder)


REFUSALS = {
    "no config.json": lambda f: (f / "config.json").unlink(),
    "no tokenizer.json": lambda f: (f / "tokenizer.json").unlink(),
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "config.json' is no JSON": lambda f: (f / "config.json").write_text("{"),
    "config.json' is no object": lambda f: (f / "config.json").write_text("[]"),
    "generation_config.json' is no JSON": lambda f: (f / "generation_config.json").write_bytes(b"\xff"),
    "vocab_size": lambda f: break_config(f, vocab_size=None),
    "eos_token_id 9999": lambda f: break_config(f, eos_token_id=9999) or (f / "generation_config.json").unlink(),
    "quantised": lambda f: break_config(f, quantization_config={"quant_method": "x"}),
    "adapter": lambda f: (f / "adapter_config.json").write_text("{}"),
    "isn't a decoder": lambda f: save_bert(f),
    "is not a folder": lambda f: shutil.rmtree(f),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_missing_is_named(started: tuple[Path, Path, Served], tmp_path: Path, what: str) -> None:
    folder = shutil.copytree(started[0], tmp_path / "m")
    REFUSALS[what](folder)
    with pytest.raises(DhloError, match=what):
        open_folder(folder, cache="")


def test_options_are_the_compilers(started: tuple[Path, Path, Served]) -> None:
    with pytest.raises(CompileError, match="int9"):
        open_folder(started[0], cache="", weights={"default": "int9"})


# ------------------------------------------------------------------ with the engine
@pytest.fixture(scope="module")
def engine(started: tuple[Path, Path, Served]) -> Iterator[Engine]:
    served = started[2]
    options = EngineOptions(
        cache_bytes=1 << 22, max_positions=512, eos_tokens=served.eos_tokens, vocabulary=served.tokenizer.vocabulary
    )
    with Engine(served.step, options) as engine:
        yield engine


def are_most_likely(folder: Path, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether tokens are those that transformers finds most likely, or as good as such."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return bool((logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0] < 1e-3).all())


def test_chats_end_to_end(started: tuple[Path, Path, Served], engine: Engine) -> None:
    folder, _, served = started
    client = TestClient(make_app(engine, served, ServerOptions(max_positions=512)))
    body = {"messages": [{"role": "user", "content": "What is größer?"}], "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    answer = client.post("/v1/chat/completions", json={**body, "logprobs": True}).json()
    assert served.chat is not None
    prompt = served.tokenizer.encode(served.chat.render(body["messages"]), special=False)
    (choice,) = answer["choices"]
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    tokens = engine.generate([prompt], params)[0].choices[0].tokens
    assert are_most_likely(folder, prompt, tokens)
    assert choice["message"]["content"] == served.tokenizer.decode(tokens)
    assert [x["token"] for x in choice["logprobs"]["content"]] == list(map(served.tokenizer.name_of, tokens))
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (len(prompt), 24)
    streamed = client.post("/v1/chat/completions", json=body | {"stream": True}).text
    text = "".join(
        json.loads(x[6:])["choices"][0]["delta"].get("content", "") for x in streamed.splitlines() if x.startswith("data: {")
    )
    assert text == choice["message"]["content"]
    again = client.post("/v1/chat/completions", json=body).json()
    assert again["choices"][0]["message"]["content"] == text
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt) // 16 * 16 - 16
    assert "vllm:prefix_cache_hits_total" in client.get("/metrics").text


def test_structured_output_end_to_end(started: tuple[Path, Path, Served], engine: Engine) -> None:
    client = TestClient(make_app(engine, started[2], ServerOptions(max_positions=512)))
    said = {"structured_outputs": {"regex": "[0-9]{4}-(ab|ü)"}, "n": 3, "seed": 5, "max_tokens": 40, "prompt": "a"}
    for choice in client.post("/v1/completions", json=said).json()["choices"]:
        assert re.fullmatch("[0-9]{4}-(ab|ü)", choice["text"]) and choice["finish_reason"] == "stop"


def test_generate_on_the_command_line(started: tuple[Path, Path, Served], engine: Engine, tmp_path: Path) -> None:
    folder, cache, served = started
    options = ["--cache", str(cache), "--cache-gb", "0.01", "--temperature", "0", "--max-tokens", "12"]
    result = CliRunner().invoke(app, ["generate", str(folder), "The pass", *options])
    assert result.exit_code == 0, result.output
    params = SamplingParams(max_tokens=12, temperature=0, top_k=7)
    (output,) = engine.generate([served.tokenizer.encode("The pass")], params)
    stream = TextStream(served.tokenizer.vocabulary, served.eos_tokens)
    choice = output.choices[0]
    assert result.stdout == stream.read(Event(0, choice.tokens, finish=choice.finish)) + "\n"
    chat = CliRunner().invoke(app, ["generate", str(folder), "-", "--chat", *options], input="The pass")
    assert chat.exit_code == 0, chat.output
    blocks = ["--cache-folder", str(tmp_path / "blocks"), "--cache-folder-gb", "0.01"]
    first, again = (CliRunner().invoke(app, ["generate", str(folder), "The pass " * 20, *options, *blocks]) for _ in range(2))
    assert first.exit_code == again.exit_code == 0, first.output + again.output
    assert first.stdout == again.stdout and list((tmp_path / "blocks").glob("*.kv"))
    drafted = CliRunner().invoke(app, ["generate", str(folder), "The pass", *options, "--draft-model", str(folder)])
    assert drafted.stdout == result.stdout, drafted.output
    searched = CliRunner().invoke(app, ["generate", str(folder), "The pass", *options, "--beams", "3"])
    (output,) = engine.generate([served.tokenizer.encode("The pass")], SamplingParams(max_tokens=12, beam_width=3))
    stream = TextStream(served.tokenizer.vocabulary, served.eos_tokens)
    choice = output.choices[0]
    assert searched.stdout == stream.read(Event(0, choice.tokens, finish=choice.finish)) + "\n", searched.output
    few = ["--evict-to", "48", "--evict-sinks", "0", "--evict-by", "norms"]
    evicted = CliRunner().invoke(app, ["generate", str(folder), "The pass " * 20, *options, *few])
    assert evicted.exit_code == 0, evicted.output
    long = CliRunner().invoke(app, ["generate", str(folder), "a " * 600, *options])
    assert long.exit_code == 1 and "tokens; 1 to 511 are taken" in long.output


@pytest.mark.slow
def test_generate_by_an_adapter(started: tuple[Path, Path, Served], tmp_path: Path) -> None:
    folder, cache, served = started
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    pairs = random_pairs(model, ("q_proj", "up_proj"), 4, 0, 0.5)
    adapters = {name: write_folder(tmp_path / name, pairs, lora_alpha=alpha) for name, alpha in (("a", 4), ("b", 40))}
    options = ["--cache", str(cache), "--cache-gb", "0.01", "--temperature", "0", "--max-tokens", "12", "--max-lora-rank", "4"]
    both = [x for name, path in adapters.items() for x in ("--lora-modules", f"{name}={path}")]
    for name, scale in (("a", 1.0), ("b", 10.0)):
        result = CliRunner().invoke(app, ["generate", str(folder), "The pass", *options, *both, "--adapter", name])
        assert result.exit_code == 0, result.output
        prompt = torch.tensor([served.tokenizer.encode("The pass")])
        said = merged(model, pairs, scale).generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
        )
        tokens = said[0, prompt.shape[1] :].tolist()
        ended = [t for t in tokens if t not in served.eos_tokens]
        assert result.stdout == served.tokenizer.decode(ended) + "\n"
    for wrong, match in (([], "--adapter: which one of a, b"), (["--adapter", "c"], "'c' is none of --lora-modules")):
        result = CliRunner().invoke(app, ["generate", str(folder), "The pass", *options, *both, *wrong])
        assert result.exit_code == 1 and match in result.output


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--port", "0", "--api-key", ""], "empty key"),
        (["--host", "no.such.host.invalid"], "can't listen on no.such.host.invalid:8000"),
        (["--port", "0", "--cache-gb", "0.0000001"], "cache_bytes"),
        (["--port", "70000"], "65535"),
        (["--cache-gb", "nan"], "'--cache-gb': Input should be"),
        (["--cache-gb", "inf"], "'--cache-gb': Input should be"),
        (["--cache-folder-gb", "-1"], "'--cache-folder-gb': Input should be"),
        (["--drain-seconds", "inf"], "'--drain-seconds': Input should be"),
        (["--port", "0", "--cache-folder", "blocks", "--cache-folder-gb", "0"], "folder_bytes must be positive"),
        (["--port", "0", "--cache-store", "ftp://x"], "a store is s3://BUCKET/PREFIX"),
        (["--port", "0", "--draft-tokens", "4"], "--draft-tokens: does nothing without --draft-model"),
        (["--port", "0", "--draft-branches", "2"], "--draft-branches: does nothing without --draft-model"),
        (["--port", "0", "--cache-folder-gb", "4"], "--cache-folder-gb: does nothing without --cache-folder"),
        (["--port", "0", "--swap-gb", "4"], "--swap-gb: does nothing without --preemption swap"),
        (["--port", "0", "--preemption", "swop"], "'swop' is neither recompute nor swap"),
        (["--port", "0", "--max-lora-rank", "4"], "--max-lora-rank: there are no adapters"),
        (["--port", "0", "--allow-lora-loading"], "there is room for no adapter"),
        (["--port", "0", "--max-loras", "1", "--lora-modules", "a=b", "--lora-modules", "b=c"], "room for 1 adapters"),
        (["--port", "0", "--evict-to", "100"], "evict_to is a multiple of a block's tokens, 16"),
        (["--port", "0", "--evict-to", "64", "--evict-by", "age"], "'age' is neither recent nor norms"),
        (["--port", "0", "--evict-recent", "2"], "--evict-recent: does nothing without --evict-to"),
    ],
)
def test_what_serve_refuses(started: tuple[Path, Path, Served], arguments: list[str], match: str) -> None:
    result = CliRunner().invoke(app, ["serve", str(started[0]), "--cache", str(started[1]), *arguments])
    assert result.exit_code != 0 and match in result.output


def test_serve_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fastapi", "dhlo.serve.server"):
        monkeypatch.setitem(sys.modules, name, None) if name == "fastapi" else monkeypatch.delitem(sys.modules, name, False)
    result = CliRunner().invoke(app, ["serve", "."])
    assert result.exit_code == 1 and "fastapi: pip install 'dhlo[serve]'" in result.output


@pytest.mark.slow
def test_openais_client(started: tuple[Path, Path, Served]) -> None:
    """`dhlo serve` as its users have it: a process of its own, and the client that they use."""
    openai = pytest.importorskip("openai")
    folder, cache, served = started
    command = [sys.executable, "-m", "dhlo", "serve", str(folder), "--cache", str(cache), "--port", "0", "--api-key", "k"]
    with subprocess.Popen([*command, "--cache-gb", "0.05"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline().strip() for _ in range(2)]
            assert said[0].endswith("up to 512 tokens in a sequence")
            client = openai.OpenAI(base_url=said[1], api_key="k", max_retries=0)
            assert [m.id for m in client.models.list()] == [served.name]
            messages = [{"role": "user", "content": "Say größer"}]
            chat = lambda **more: client.chat.completions.create(
                model=served.name, messages=messages, seed=1, max_completion_tokens=20, **more
            )
            whole = chat(n=2, logprobs=True, top_logprobs=3)
            assert len(whole.choices) == 2 and len(whole.choices[0].logprobs.content[0].top_logprobs) == 3
            parts = list(chat(n=2, stream=True, stream_options={"include_usage": True}))
            assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
            for k in range(2):
                text = "".join(p.choices[0].delta.content or "" for p in parts[:-1] if p.choices[0].index == k)
                assert text == whole.choices[k].message.content
            schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
            schema["x-guidance"] = {"whitespace_flexible": False}
            form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            assert json.loads(chat(response_format=form).choices[0].message.content)["a"] in (1, 2)
            text = client.completions.create(model=served.name, prompt=["one", "two"], echo=True, max_tokens=4, temperature=0)
            assert text.choices[1].text.startswith("two")
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model=served.name, input="x")
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                client.completions.create(model=served.name, prompt="a " * 600)
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=said[1], api_key="x", max_retries=0).models.list()
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model="gpt", messages=messages)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_order_of_patterns_is_part_of_what_a_compiled_step_is_of(tmp_path: Path) -> None:
    """The first that fits a weight decides."""
    (tmp_path / "config.json").write_text("{}")
    formats = (("*q_proj*", "int8"), ("*", "int4:64"))
    keys = {StepProgram(folder=tmp_path, progress=print, weights=dict(f)).key() for f in (formats, formats[::-1])}
    assert len(keys) == 2 and "" not in keys


def test_files_that_change_while_they_are_compiled_are_not_found(tmp_path: Path) -> None:
    """What is kept is of the files that were there before they were read."""
    file, keys = tmp_path / "weights", list[str]()
    file.write_text("old")

    class Changing(FolderProgram):
        def compile(self) -> Any:
            file.write_text("newer")

        def about(self) -> dict[str, Any]:
            return {}

        def files(self) -> list[Path]:
            return [file]

        def _keep(self, artifact: Any, cache: Any, key: str) -> Path:
            keys.append(key)
            return tmp_path

    program = Changing(folder=tmp_path, progress=lambda _: None)
    before = program.key()
    program.compile_to(str(tmp_path), str(tmp_path))
    assert keys == [before] and program.key() != before
