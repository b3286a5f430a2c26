"""Folders of encoder-decoders: texts of recordings and answers to texts, beside transformers' `generate()`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from transformers import BartConfig, BartForConditionalGeneration, WhisperForConditionalGeneration
from typer.testing import CliRunner

from dhlo.cli import app
from dhlo.commands.options import Model, Serving
from dhlo.commands.serve import working
from dhlo.errors import ContractError
from dhlo.serve.doors import ServerOptions
from dhlo.serve.engine import Engine
from dhlo.serve.folder import Served, hears, open_folder
from dhlo.serve.server import make_app
from dhlo.serve.types import EngineOptions, SamplingParams
from tests.serving import LANGUAGES, SPEECH_SECONDS, WORDS, byte_level, make_speech_folder
from tests.test_speech import RATE, ask, is_error, recorded

Opened = tuple[Path, Served, Engine]


def opened(folder: Path, cache: Path) -> Iterator[Opened]:
    served = open_folder(folder, cache=str(cache))
    options = EngineOptions(
        encoder=served.encoder,
        eos_tokens=served.eos_tokens,
        vocabulary=served.tokenizer.vocabulary,
        max_source_positions=served.max_source_positions,
        cache_bytes=1 << 22,
    )
    with Engine(served.step, options) as engine:
        prompt, inputs = served.example()
        engine.generate([prompt], SamplingParams(max_tokens=1), [inputs or {}])
        yield folder, served, engine


# ------------------------------------------------------------------ speech
@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    parent = tmp_path_factory.mktemp("speech")
    yield from opened(make_speech_folder(parent / "m"), parent / "cache")


def noise(seconds: float, seed: int) -> np.ndarray:
    return (0.2 * np.random.default_rng(seed).standard_normal(int(seconds * RATE))).astype(np.float32)


def text_by_transformers(folder: Path, served: Served, samples: np.ndarray, language: str | None, task: str) -> str:
    """Without tokens of times, which random weights say though nobody asks for any."""
    heard = served.speech
    assert heard is not None
    model: Any = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    never = sorted({*heard.never, *range(heard.end + 1, heard.size)})
    out = model.generate(torch.tensor(heard.features(samples)), language=language, task=task, suppress_tokens=never)
    return served.tokenizer.decode(out[0].tolist()).strip()


@pytest.mark.parametrize("language, task", [("en", "transcribe"), ("yue", "translate"), (None, "transcribe"), (None, "translate")])
def test_speech_is_text_as_transformers_writes_it(speech: Opened, language: str | None, task: str) -> None:
    folder, served, engine = speech
    client = TestClient(make_app(engine, served))
    path = "/v1/audio/transcriptions" if task == "transcribe" else "/v1/audio/translations"
    said = {} if language is None else {"language": language}
    for k, seconds in enumerate((0.1, 1.0, SPEECH_SECONDS)):
        samples = noise(seconds, k)
        file = {"file": ("x.wav", recorded(samples, subtype="FLOAT"))}
        answer = client.post(path, data=said | {"response_format": "verbose_json"}, files=file).json()
        assert answer["language"] in ([language] if language else LANGUAGES)
        got = client.post(path, data=said, files=file).json()["text"]
        assert got == text_by_transformers(folder, served, samples, language, task)
        assert got


def test_long_speech(speech: Opened) -> None:
    _, served, engine = speech
    client = TestClient(make_app(engine, served))
    before = engine.stats().encoded
    whole = ask(client, 9.0, language="de").json()["text"]
    assert whole and engine.stats().encoded - before >= 5
    told = ask(client, 9.0, response_format="verbose_json").json()["segments"]
    assert told and all(0 <= s["start"] <= s["end"] <= 9 for s in told)
    assert [s["start"] for s in told] == sorted(s["start"] for s in told)
    assert all(-20 < s["avg_logprob"] < 0 for s in told)
    assert engine.stats().blocks_used == 0


def test_transcribe_on_the_command_line(speech: Opened, tmp_path: Path) -> None:
    folder, served, engine = speech
    path = tmp_path / "x.wav"
    path.write_bytes(recorded(noise(1, 7), subtype="FLOAT"))
    text = ask(TestClient(make_app(engine, served)), language="en").json()["text"]
    options = ["--cache", str(folder.parent / "cache"), "--cache-gb", "0.01", "--language", "en"]
    result = CliRunner().invoke(app, ["transcribe", str(folder), str(path), str(path), *options])
    assert result.exit_code == 0, result.output
    lines = [x for x in result.stdout.split("\n") if x]
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :] != [] and text
    result = CliRunner().invoke(app, ["transcribe", str(folder), str(path), *options, "--format", "vtt"])
    assert result.stdout.startswith("WEBVTT\n\n00:00:0"), result.output
    for more, match in (
        (["--format", "doc"], "none of text, srt, vtt"),
        (["--language", "tlh"], "doesn't know 'tlh'"),
    ):
        result = CliRunner().invoke(app, ["transcribe", str(folder), str(path), *options, *more])
        assert result.exit_code and match in result.output
    result = CliRunner().invoke(app, ["transcribe", str(folder), str(tmp_path / "none.wav"), *options])
    assert result.exit_code and "is no file" in result.output
    result = CliRunner().invoke(app, ["generate", str(folder), "text", *options[:4]])
    assert result.exit_code and "reads recordings: dhlo transcribe" in result.output


def test_where_a_folder_says_what_is_heard(tmp_path: Path) -> None:
    folder, config, features = tmp_path, {"is_encoder_decoder": True}, {"feature_size": 8}
    (folder / "config.json").write_text(json.dumps(config))
    assert not hears(folder)
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": features}))
    assert hears(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": features}))
    assert not hears(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(features))
    assert hears(folder)
    (folder / "config.json").write_text(json.dumps({}))
    assert not hears(folder)


@pytest.mark.parametrize("command", [["transcribe", "FOLDER", "x.wav"], ["serve", "FOLDER"]], ids=lambda c: c[0])
def test_what_to_install_is_said(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"is_encoder_decoder": True}))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "soxr", None)
    result = CliRunner().invoke(app, [str(tmp_path) if c == "FOLDER" else c for c in command])
    assert result.exit_code and "speech needs the library soxr: pip install 'dhlo[speech]'" in " ".join(result.output.split())


# ------------------------------------------------------------------ texts
@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    parent = tmp_path_factory.mktemp("texts")
    folder = parent / "m"
    torch.manual_seed(0)
    layers = dict(encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes = dict(d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=WORDS, max_position_embeddings=64)
    ends = dict(eos_token_id=2, bos_token_id=0, pad_token_id=1, decoder_start_token_id=2, forced_eos_token_id=None)
    model = BartForConditionalGeneration(BartConfig(**layers, **sizes, **ends)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.3)
    model.generation_config._from_model_config = False
    model.generation_config.forced_bos_token_id = 0
    model.generation_config.suppress_tokens = [30, 31]
    model.generation_config.bad_words_ids = [[32], [33, 34]]
    model.save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    yield from opened(folder, parent / "cache")


def test_answers_to_texts(texts: Opened) -> None:
    folder, served, engine = texts
    model: Any = BartForConditionalGeneration.from_pretrained(folder).eval()
    assert (served.begin, served.never, served.max_source_positions) == ((2, 0), (30, 31, 32), 64)
    client = TestClient(make_app(engine, served, ServerOptions(max_positions=64)))
    prompts = ["The pass", "of a program", "x"]
    sources = [served.tokenizer.encode(p) for p in prompts]
    wanted = []
    for source in sources:
        out = model.generate(
            torch.tensor([source]), max_new_tokens=21, do_sample=False, num_beams=1, suppress_tokens=[*served.never, 33, 34]
        )
        wanted.append(served.tokenizer.decode(out[0].tolist()))
    assert len(set(wanted)) == 3
    bias = {"33": -100, "34": -100}
    for given in (prompts, sources):
        body = {"prompt": given, "max_tokens": 20, "temperature": 0, "logit_bias": bias}
        answer = client.post("/v1/completions", json=body).json()
        assert [c["text"] for c in answer["choices"]] == wanted
    assert answer["usage"]["prompt_tokens"] == sum(map(len, sources))
    is_error(client.post("/v1/completions", json={"prompt": "x", "echo": True}), 400, "echo: the model answers a text")
    is_error(client.post("/v1/completions", json={"prompt": "x" * 65}), 400, "65 positions, and there is room for 64")
    is_error(client.post("/v1/completions", json={"prompt": "x", "max_tokens": 63}), 400, "maximum context length is 64")
    is_error(ask(client), 404, "reads no recordings")


def test_generate_answers_texts(texts: Opened) -> None:
    folder, served, engine = texts
    options = ["--cache", str(folder.parent / "cache"), "--cache-gb", "0.01", "--temperature", "0", "--max-tokens", "20"]
    result = CliRunner().invoke(app, ["generate", str(folder), "The pass", *options])
    prompt, inputs = served.request(served.tokenizer.encode("The pass"))
    params = SamplingParams(temperature=0, max_tokens=20, logit_bias=dict.fromkeys(served.never, float("-inf")))
    (output,) = engine.generate([prompt], params, [inputs or {}])
    assert result.stdout.rstrip("\n") == served.tokenizer.decode(output.choices[0].tokens).rstrip("\n"), result.output
    result = CliRunner().invoke(app, ["transcribe", str(folder), __file__, *options[:4]])
    assert result.exit_code and "reads no recordings: dhlo generate" in result.output
    model = Model(folder=folder, draft_model=folder, cache=options[1])
    with pytest.raises(ContractError, match="where a decoder is needed"), working(model, Serving(), {}, None):
        pass
