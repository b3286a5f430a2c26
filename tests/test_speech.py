"""Recordings: what is heard of them, which tokens may come, and the endpoints, over an engine that says what a script has."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from transformers import WhisperFeatureExtractor

from dhlo.errors import CompileError, ContractError, ModelFileError
from dhlo.serve.audio import cut, read_audio
from dhlo.serve.doors import ServerOptions
from dhlo.serve.folder import Served
from dhlo.serve.log_mel import LogMel
from dhlo.serve.server import make_app
from dhlo.serve.speech import Segment, Speech
from dhlo.serve.speech_server import subtitles
from dhlo.serve.tokens import Tokenizer
from dhlo.serve.types import EngineStats, Event, FinishReason, QueueFullError, SamplingParams, TokenLogprobs
from tests.serving import LANGUAGES, SPEECH_SECONDS, speech_words

RATE = 16000
HEAR, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
SAID = "größer 🙂, 世界"


def tone(seconds: float, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def recorded(samples: np.ndarray, rate: int = RATE, form: str = "WAV", subtype: str | None = None) -> bytes:
    data = io.BytesIO()
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    with soundfile.SoundFile(data, "w", rate, channels, subtype, format=form) as file:
        for at in range(0, len(samples), 4096):  # whole recordings are too much for Vorbis at once
            file.write(samples[at : at + 4096])
    return data.getvalue()


# ------------------------------------------------------------------ what is heard
@pytest.mark.parametrize("bands", [8, 80, 128])
def test_features_are_those_of_transformers(bands: int) -> None:
    theirs, ours, r = WhisperFeatureExtractor(feature_size=bands), LogMel(bands), np.random.default_rng(bands)
    for length in (1, 159, 160, 400, 16000, 479_999, 480_000):
        samples = (0.1 * r.standard_normal(length)).astype(np.float32)
        want = theirs(samples, sampling_rate=RATE, return_tensors="np")["input_features"]
        got = ours(samples)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)
    assert ours(np.zeros(0, np.float32)).shape == (1, bands, 3000)


def test_features_of_another_kind_are_refused() -> None:
    path = Path("folder/preprocessor_config.json")
    assert LogMel.of({"feature_size": 128, "chunk_length": 10}, path) == LogMel(128, seconds=10)
    for said, text in (
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "features by Wav2Vec2FeatureExtractor aren't known"),
        ({"do_normalize": True}, "do_normalize"),
        ({"n_fft": 0}, "n_fft is no number"),
        ({"hop_length": "160"}, "hop_length is no number"),
    ):
        with pytest.raises(ModelFileError, match=text):
            LogMel.of(said, path)


@pytest.mark.parametrize(
    "form, subtype", [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("MP3", None)]
)
@pytest.mark.parametrize("rate", [8000, 44100])
def test_recordings_of_any_form(form: str, subtype: str | None, rate: int) -> None:
    left = tone(1.5, rate)
    samples = read_audio(recorded(np.stack([left, 0.5 * left], 1), rate, form, subtype), RATE, 10)
    assert abs(len(samples) - 1.5 * RATE) <= 0.05 * RATE  # MP3 has whole frames
    inner = slice(RATE // 4, RATE)
    np.testing.assert_allclose(samples[inner].std(), 0.75 * tone(1.5)[inner].std(), rtol=0.02)
    assert np.argmax(np.abs(np.fft.rfft(samples[inner]))) == 330  # 440 hertz, of 3/4 of a second


def test_recordings_from_files(tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    path.write_bytes(recorded(tone(1), subtype="FLOAT"))
    np.testing.assert_allclose(read_audio(path, RATE, 1), tone(1), atol=1e-6)
    assert len(read_audio(recorded(tone(0)), RATE, 1)) == 0


def test_recordings_that_arent_taken() -> None:
    wave = recorded(tone(1))
    for data, text in (
        (b"", "can't be read"),
        (b"RIFF" + bytes(100), "can't be read"),
        (bytes(1000), "can't be read"),
        (recorded(tone(1.1)), "longer than 1 seconds"),
        (recorded(tone(0.01, 500), 500), "at 500 samples a second isn't taken"),
        (recorded(np.full(100, np.nan, np.float32), subtype="FLOAT"), "no numbers"),
    ):
        with pytest.raises(ContractError, match=text) as e:
            read_audio(data, RATE, 1)
        assert "0x" not in str(e.value)
    r = np.random.default_rng(0)
    for _ in range(100):  # damaged ones are read as far as they go, or refused
        data = bytearray(wave[: r.integers(1, len(wave))])
        for at in r.integers(0, min(len(data), 64), 4):
            data[at] = r.integers(0, 256)
        try:
            assert len(read_audio(bytes(data), RATE, 5)) <= 5 * RATE
        except ContractError:
            pass


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 20 * RATE), st.sampled_from([0.5, 2.0, 7.5]), st.integers(0, 99))
def test_pieces_are_the_whole(length: int, most: float, seed: int) -> None:
    samples = np.random.default_rng(seed).standard_normal(length, dtype=np.float32)
    pieces = cut(samples, RATE, most)
    assert all(0 < len(p) <= most * RATE for p in pieces)
    assert all(len(p) >= most * RATE / 2 for p in pieces[:-1])
    np.testing.assert_array_equal(np.concatenate([samples[:0], *pieces]), samples)


def test_pieces_end_where_it_is_quiet() -> None:
    samples = tone(50)
    quiet = slice(int(27.25 * RATE), int(27.45 * RATE))
    samples[quiet] = 0
    (first, second) = cut(samples, RATE, 30)
    assert quiet.start < len(first) < quiet.stop
    assert len(second) == len(samples) - len(first)


# ------------------------------------------------------------------ what may come
@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return speech_words(tmp_path_factory.mktemp("words") / "tokenizer.json")


CONFIG = {"model_type": "whisper", "max_target_positions": 64}
GENERATION = {"is_multilingual": True, "suppress_tokens": [10, 11, -1], "begin_suppress_tokens": [20]}
FEATURES = {"feature_size": 8, "chunk_length": SPEECH_SECONDS}


def speech_of(words: Tokenizer, **generation: Any) -> Speech:
    return Speech.of(FEATURES, Path("folder/preprocessor_config.json"), CONFIG, GENERATION | generation, words)


def allowed(speech: Speech, rules: Any, tokens: Sequence[int]) -> set[int]:
    memory = array("I", [0xFFFFFFFF] * (speech.size // 32 + 1))
    rules(0, tokens, memoryview(memory))
    assert not any(memory[t // 32] >> t % 32 & 1 for t in range(speech.size, 32 * len(memory)))
    return {t for t in range(speech.size) if memory[t // 32] >> t % 32 & 1}


def test_what_a_folder_says(words: Tokenizer) -> None:
    speech = speech_of(words)
    assert set(speech.languages) == set(LANGUAGES)
    assert words.special[speech.begin] == "<|startoftranscript|>"
    assert speech.never and speech.end not in speech.never
    assert speech.language_of("EN") == "en"
    with pytest.raises(ContractError, match="doesn't know 'tlh'; it knows de, en, yue"):
        speech.language_of("tlh")
    alone = speech_of(words, is_multilingual=False)
    assert alone.prompt(None, "transcribe", False, ()) == [alone.begin, alone.plain]
    assert alone.language_of("en") is None
    with pytest.raises(ContractError, match="it knows en"):
        alone.language_of("de")
    with pytest.raises(ContractError, match="translates nothing"):
        alone.prompt(None, "translate", False, ())
    with pytest.raises(ModelFileError, match="suppress_tokens is no list of tokens"):
        speech_of(words, suppress_tokens=[1 << 20])
    with pytest.raises(CompileError, match="of type 'moonshine'"):
        Speech.of(FEATURES, Path("f/p"), {"model_type": "moonshine"}, {}, words)


def test_prompts(words: Tokenizer) -> None:
    speech = speech_of(words)
    en, task = speech.languages["en"], speech.tasks
    assert speech.prompt("en", "transcribe", False, ()) == [speech.begin, en, task["transcribe"], speech.plain]
    assert speech.prompt("en", "translate", True, ()) == [speech.begin, en, task["translate"]]
    assert speech.prompt(None, "translate", True, (5, 6)) == [speech.earlier, 5, 6, speech.begin]
    long = speech.prompt(None, "transcribe", False, range(100))
    assert long == [speech.earlier, *range(69, 100), speech.begin]  # half of the positions less one


@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_language_and_task_come_first(words: Tokenizer, task: Any) -> None:
    speech = speech_of(words)
    rules = speech.rules(None, task, False)
    assert allowed(speech, rules, []) == set(speech.languages.values())
    de = speech.languages["de"]
    assert allowed(speech, rules, [de]) == {speech.tasks[task]}
    assert allowed(speech, rules, [de, speech.tasks[task]]) == {speech.plain}
    text = set(range(speech.end)) - {0, 1, 2, 10, 11}  # 0 to 2 are special
    assert allowed(speech, rules, [de, speech.tasks[task], speech.plain]) == text - {20} | {speech.end}
    assert allowed(speech, speech.rules("de", task, False), [5]) == text | {speech.end}
    assert speech.language_in([de, speech.tasks[task]]) == "de"
    assert speech.language_in([]) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_times_come_in_pairs_that_dont_decrease(words: Tokenizer, seed: int, times: float) -> None:
    speech = speech_of(words)
    rules, r, said = speech.rules("en", "transcribe", True), np.random.default_rng(seed), list[int]()
    while len(said) < 60 and said[-1:] != [speech.end]:
        can = allowed(speech, rules, said)
        ticks = sorted(t for t in can if speech.is_time(t))[: 1 + seed % 20]
        choices = ticks if ticks and r.random() < times else sorted(can - set(ticks))
        said.append(int(r.choice(choices or ticks)))
    marks = [t for t in said if speech.is_time(t)]
    assert marks == sorted(marks)
    assert speech.is_time(said[0]) and said[0] - speech.plain <= 51
    kinds = "".join("t" if speech.is_time(t) else "e" if t == speech.end else "w" for t in said)
    assert re.fullmatch("t(w*t(t|$))*w*(t?e)?", kinds)
    assert "ttt" not in kinds
    segments = speech.segments(said, words, 10.0, 1.5)
    assert all(10.0 <= s.start <= s.end <= 11.5 for s in segments)
    assert "".join(s.text for s in segments) == "".join(
        words.decode(part) for part in _runs(said, lambda t: not speech.is_time(t) and bool(words.vocabulary[t]))
    )


def _runs(tokens: Sequence[int], inside: Callable[[int], bool]) -> list[list[int]]:
    """The tokens between those that aren't inside, but for special ones."""
    out: list[list[int]] = [[]]
    for t in tokens:
        if inside(t):
            out[-1].append(t)
        else:
            out.append([])
    return out


def test_subtitles() -> None:
    segments = [Segment(0, 1.2, " one", (1,)), Segment(3599.9994, 3723.5, " two\n\n--> three", (2,))]
    assert subtitles(segments, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,200\none\n\n2\n00:59:59,999 --> 01:02:03,500\ntwo -> three\n\n"
    )
    assert subtitles(segments, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.200\none\n\n00:59:59.999 --> 01:02:03.500\ntwo -> three\n\n"
    )


# ------------------------------------------------------------------ the server
class ScriptRequest:
    """Says what a rule lets it of a script: a language, a task, times, and `SAID`."""

    def __init__(self, engine: ScriptEngine, prompt: Sequence[int], params: SamplingParams, inputs: Any) -> None:
        self.engine, self.prompt, self.params, self.inputs = engine, list(prompt), params, inputs
        self.cached_tokens, self.cancelled = 0, False

    def cancel(self) -> None:
        self.cancelled = True

    def _tokens(self) -> list[int]:
        speech, words, out = self.engine.speech, self.engine.words.encode(SAID, special=False), list[int]()
        start = speech.plain + 1
        script = [speech.languages["de"], *speech.tasks.values(), speech.plain]
        script += (
            [start + 10, *words, start + 50, start + 50, *words, start + 90, speech.end] if self.times else [*words, speech.end]
        )
        for token in script:
            if token in allowed(speech, self.params.constrain, out):
                out.append(token)
        return out

    @property
    def times(self) -> bool:
        return speech_times(self.engine.speech, self.prompt, self.params)

    async def __aiter__(self) -> AsyncIterator[Event]:
        if self.engine.fails:
            yield Event(0, (), finish=FinishReason.ERROR, error="the script is lost")
            return
        tokens = self._tokens()
        told = [() if self.params.logprobs is None else (TokenLogprobs(-0.5 * k, ()),) for k in range(len(tokens))]
        for token, logprobs in zip(tokens[:-1], told[:-1], strict=True):
            await asyncio.sleep(0)
            yield Event(0, (token,), logprobs=logprobs)
        yield Event(0, tuple(tokens[-1:]), logprobs=told[-1], finish=FinishReason.STOP)


def speech_times(speech: Speech, prompt: Sequence[int], params: SamplingParams) -> bool:
    """Whether the rules ask for times: what may come behind language and task."""
    head = [speech.languages["de"], next(t for t in speech.tasks.values() if _may(speech, params, t))]
    said = [] if speech.languages["de"] in prompt or speech.languages["en"] in prompt else head
    return speech.plain not in prompt and any(speech.is_time(t) for t in allowed(speech, params.constrain, said))


def _may(speech: Speech, params: SamplingParams, task: int) -> bool:
    can = allowed(speech, params.constrain, [speech.languages["de"]])
    return task in can or not can & set(speech.tasks.values())


class ScriptEngine:
    def __init__(self, speech: Speech, words: Tokenizer, most: int = 100) -> None:
        self.speech, self.words, self.most, self.fails, self.failure = speech, words, most, False, ""
        self.requests: list[ScriptRequest] = []
        self.drained = False

    def submit(self, prompt: Sequence[int], params: SamplingParams, inputs: Any = None) -> ScriptRequest:
        if self.drained or sum(not r.cancelled for r in self.requests) >= self.most:
            raise QueueFullError("as many requests wait as may")
        self.requests.append(ScriptRequest(self, prompt, params, inputs))
        return self.requests[-1]

    def load_adapter(self, name: str, adapter: str) -> None:
        raise ContractError("there is no room for adapters")

    def unload_adapter(self, name: str) -> None:
        raise ContractError("there is none")

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 1, 0, 0, 0, 0, 100, 25, 5, 0, 0, 0, {}, {}, failure=self.failure)

    def drain(self, timeout: float | None = None) -> bool:
        self.drained = True
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def engine(words: Tokenizer) -> ScriptEngine:
    words.empty(range(speech_of(words).plain + 1, len(words.vocabulary)))
    return ScriptEngine(speech_of(words), words)


def client_of(engine: ScriptEngine, **options: Any) -> TestClient:
    nothing: Any = None
    served = Served("script", nothing, engine.words, None, (engine.speech.end,), 64, speech=engine.speech)
    return TestClient(make_app(engine, served, ServerOptions(**options)), raise_server_exceptions=False)


def ask(client: TestClient, seconds: float = 1.0, path: str = HEAR, **fields: Any) -> httpx.Response:
    given = {k: v if isinstance(v, list) else str(v) for k, v in fields.items()}
    return client.post(path, data=given, files={"file": ("talk.wav", recorded(tone(seconds)), "audio/wav")})


def is_error(answer: httpx.Response, status: int, match: str) -> None:
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert re.search(match, answer.json()["error"]["message"]), answer.text


@pytest.mark.parametrize("language", [None, "de"])
def test_text_of_a_recording(engine: ScriptEngine, language: str | None) -> None:
    client = client_of(engine)
    known = {} if language is None else {"language": language}
    answer = ask(client, model="script", **known)
    assert answer.json() == {"text": SAID, "usage": {"type": "duration", "seconds": 1}}
    (request,) = engine.requests
    np.testing.assert_array_equal(request.inputs["input_features"], engine.speech.features(read_audio(recorded(tone(1)), RATE, 9)))
    assert request.prompt[0] == engine.speech.begin and len(request.prompt) == (1 if language is None else 4)
    assert request.params.temperature == 0 and request.params.max_tokens == 64 - len(request.prompt)
    assert ask(client, response_format="text", **known).text == SAID + "\n"
    assert ask(client, path=TRANSLATE, **known).json()["text"] == SAID
    task = engine.speech.tasks["translate"]
    assert task in engine.requests[-1].prompt or task in engine.requests[-1]._tokens()


def test_long_recordings_go_in_pieces(engine: ScriptEngine) -> None:
    answer = ask(client_of(engine), 21.0, language="en").json()
    pieces = len(engine.requests)
    assert 11 <= pieces <= 21
    assert answer["text"] == SAID * pieces
    assert answer["usage"]["seconds"] == 21
    assert all(r.cancelled for r in engine.requests)  # nothing is left in work


def test_pieces_wait_for_places(engine: ScriptEngine) -> None:
    engine.most = 2
    assert ask(client_of(engine), 21.0, language="en").json()["text"] == SAID * len(engine.requests)
    engine.most = 0
    is_error(answer := ask(client_of(engine)), 429, "as many requests")
    assert answer.headers["retry-after"] == "1"


def test_times(engine: ScriptEngine) -> None:
    client = client_of(engine)
    told = ask(client, 1.9, response_format="verbose_json", language="de", **{"timestamp_granularities[]": ["segment"]}).json()
    assert (told["task"], told["language"], told["duration"], told["text"]) == ("transcribe", "de", 1.9, SAID * 2)
    first, second = told["segments"]
    assert (first["start"], first["end"], first["text"], first["id"]) == (0.2, 1.0, SAID, 0)
    assert (second["start"], second["end"], second["text"], second["id"]) == (1.0, 1.8, SAID, 1)
    assert engine.words.decode(first["tokens"]) == SAID
    count = len(engine.requests[-1]._tokens())  # of one piece
    assert first["avg_logprob"] == second["avg_logprob"] == -0.5 * (count - 1) / 2
    srt = ask(client, 1.9, response_format="srt").text
    assert srt == f"1\n00:00:00,200 --> 00:00:01,000\n{SAID}\n\n2\n00:00:01,000 --> 00:00:01,800\n{SAID}\n\n"
    assert ask(client, 1.9, response_format="vtt").text.startswith("WEBVTT\n\n00:00:00.200 --> 00:00:01.000\n")


def test_streams(engine: ScriptEngine) -> None:
    answer = ask(client_of(engine), 3.0, language="en", stream="true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    events = [json.loads(p.removeprefix("data: ")) for p in parts[:-2]]
    whole = SAID * len(engine.requests)
    assert "".join(e["delta"] for e in events[:-1]) == whole
    assert events[-1] == {"type": "transcript.text.done", "text": whole, "usage": {"type": "duration", "seconds": 3}}
    engine.fails = True
    events = ask(client_of(engine), language="en", stream="true").text.split("\n\n")
    assert json.loads(events[0].removeprefix("data: "))["error"]["message"] == "the script is lost"


def test_what_was_said_before(engine: ScriptEngine) -> None:
    client = client_of(engine)
    ask(client, prompt="OmniGraffle", language="en")
    earlier = engine.words.encode(" OmniGraffle", special=False)
    assert engine.requests[0].prompt[: 1 + len(earlier)] == [engine.speech.earlier, *earlier]
    is_error(ask(client, prompt="<|endoftext|>"), 400, "written like a special token")


def test_requests_that_arent_taken(engine: ScriptEngine) -> None:
    client = client_of(engine, max_audio_seconds=3, api_keys=("key",))
    is_error(ask(client), 401, "API key")
    client.headers["authorization"] = "Bearer key"
    for fields, match in (
        ({"language": "tlh"}, "language: the model doesn't know 'tlh'"),
        ({"response_format": "xml"}, "response_format"),
        ({"temperature": 2}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"stream": "true", "response_format": "srt"}, "stream: goes with json and text"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities"),
        ({"timestamp_granularities[]": ["segment"]}, "goes with verbose_json"),
        ({"words": "x"}, "Unrecognized request argument supplied: words"),
    ):
        is_error(ask(client, **fields), 400, match)
    is_error(ask(client, model="other"), 404, "does not exist")
    is_error(ask(client, 3.1), 400, "longer than 3 seconds")
    is_error(ask(client, 0), 400, "the recording is empty")
    is_error(client.post(HEAR, files={"file": ("x.wav", b"no sound")}), 400, "can't be read")
    is_error(client.post(HEAR, data={"model": "script"}, files={"other": ("x.wav", b"no sound")}), 400, "other: is no file")
    is_error(client.post(HEAR, json={"file": "x"}), 400, "isn't a form")
    is_error(client.post(HEAR, content=b"--", headers={"content-type": "multipart/form-data"}), 400, "form can't be read")
    is_error(client.post(HEAR, files={"model": (None, "script")}), 400, "you must provide file")
    both = {"timestamp_granularities": "segment", "timestamp_granularities[]": "segment"}
    is_error(ask(client, response_format="verbose_json", **both), 400, "timestamp_granularities")
    pair = b'--edge\r\nContent-Disposition: form-data; name="model"\r\n\r\n\\ud800\r\n--edge--\r\n'
    odd = {"content-type": "Multipart/Form-Data; boundary=edge; charset=unicode_escape"}
    is_error(client.post(HEAR, content=pair, headers=odd), 400, "form can't be read")
    two = [("file", ("a.wav", b"1")), ("file", ("b.wav", b"2"))]
    is_error(client.post(HEAR, files=two), 400, "form can't be read")
    assert engine.requests == []
    engine.fails = True
    is_error(ask(client), 500, "the script is lost")
    engine.failure = "a process is gone"
    is_error(ask(client), 503, "a process is gone")


def test_bodies_are_bounded(engine: ScriptEngine) -> None:
    is_error(ask(client_of(engine, max_body_bytes=1000)), 413, "at most 1000 bytes")


def test_other_endpoints(engine: ScriptEngine) -> None:
    client = client_of(engine)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings"):
        is_error(client.post(path, json={}), 404, "reads recordings")
    assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 64
    assert client.get("/health").json() == {"status": "ok"}
    ask(client)
    assert "vllm:e2e_request_latency_seconds_count" in client.get("/metrics").text
    paths = client.get("/openapi.json").json()["paths"]
    assert "multipart/form-data" in paths[HEAR]["post"]["requestBody"]["content"]


def test_damaged_forms_are_answered(engine: ScriptEngine) -> None:
    """With what the client has done wrong, or with the text of what is left of the recording."""
    client, r = client_of(engine), random.Random(0)
    parts = [b'name="model"\r\n\r\nscript', b'name="file"; filename="a.wav"\r\n\r\n' + recorded(tone(0.05))]
    whole = b"".join(b"--edge\r\nContent-Disposition: form-data; " + p + b"\r\n" for p in parts) + b"--edge--\r\n"
    statuses = set[int]()
    for _ in range(300):
        data, at = bytearray(whole), r.randrange(250)
        match r.randrange(5):
            case 0:
                del data[r.randrange(len(data)) :]
            case 1:
                data[at] = r.randrange(256)
            case 2:
                data[at:at] = r.randbytes(r.randrange(1, 20))
            case 3:
                del data[at : at + r.randrange(1, 30)]
            case _:
                data = bytearray(r.randbytes(at))
        edge = r.choice(["edge"] * 8 + ["", "other", "x" * 5000, "edge; charset=none"])
        answer = client.post(HEAR, content=bytes(data), headers={"content-type": f"multipart/form-data; boundary={edge}"})
        assert answer.status_code in (200, 400, 404), answer.text
        statuses.add(answer.status_code)
    assert {200, 400} <= statuses
