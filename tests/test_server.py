"""The server in OpenAI's form, over an engine that says its prompts again."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dhlo.serve.server import ServerOptions, make_app
from dhlo.serve.tokens import Tokenizer
from tests.chromium import EXECUTABLE, Browser
from tests.serving import WORDS, RuleEngine, byte_level, rule_served

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
TEXT = "größer 🙂, 世界 and more"
HELLO = {"messages": [{"role": "user", "content": TEXT}]}
RENDERED = f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    byte_level().save(str(path))
    return Tokenizer(path, WORDS)


@pytest.fixture
def engine(words: Tokenizer) -> RuleEngine:
    return RuleEngine(words.vocabulary)


def client_of(engine: RuleEngine, words: Tokenizer, **options: Any) -> TestClient:
    app = make_app(engine, rule_served(words), ServerOptions(**{"max_positions": 512} | options))
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def client(engine: RuleEngine, words: Tokenizer) -> TestClient:
    return client_of(engine, words)


def events(text: str) -> list[Any]:
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(p.removeprefix("data: ")) for p in parts[:-2]]


def is_error(answer: httpx.Response, status: int, match: str = "") -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert re.search(match, error["message"]), error
    return error


# ------------------------------------------------------------------ answers
def test_chat(client: TestClient, engine: RuleEngine, words: Tokenizer) -> None:
    answer = client.post(CHAT, json=HELLO).json()
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", answer["id"])
    assert (answer["object"], answer["model"]) == ("chat.completion", "rule")
    prompt = words.encode(RENDERED)
    assert engine.requests[0].prompt == prompt
    (choice,) = answer["choices"]
    # Special tokens are none of the text; the text ends where the prompt has one that ends it.
    assert choice["message"] == {"role": "assistant", "content": words.decode(prompt), "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), len(prompt) + 1)
    assert usage["total_tokens"] == 2 * len(prompt) + 1
    assert usage["prompt_tokens_details"]["cached_tokens"] == engine.requests[0].cached_tokens


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("usage", [None, {"include_usage": True}])
def test_streams_are_the_whole_in_parts(client: TestClient, n: int, usage: Any) -> None:
    whole = client.post(CHAT, json=HELLO | {"n": n, "logprobs": True, "top_logprobs": 1}).json()
    answer = client.post(
        CHAT, json=HELLO | {"n": n, "logprobs": True, "top_logprobs": 1, "stream": True} | {"stream_options": usage}
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    if usage:
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert all("usage" not in c and c["object"] == "chat.completion.chunk" and len(c["choices"]) == 1 for c in chunks)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["stop"]
        logprobs = [x for c in mine if c["logprobs"] for x in c["logprobs"]["content"]]
        assert logprobs == choice["logprobs"]["content"]


def test_completions_of_many_prompts(client: TestClient, words: Tokenizer) -> None:
    for prompts in (["one", "two and"], [words.encode("one"), words.encode("two and")]):
        body = {"prompt": prompts, "n": 2, "max_tokens": 30}
        answer = client.post(COMPLETE, json=body).json()
        tokens = [words.encode(p) if isinstance(p, str) else p for p in prompts]
        want = [words.decode(t[c:]) for t in tokens for c in range(2)]
        assert [c["text"] for c in answer["choices"]] == want
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
        texts = ["", "", "", ""]
        for chunk in events(client.post(COMPLETE, json=body | {"stream": True}).text):
            for c in chunk["choices"]:
                texts[c["index"]] += c["text"]
        assert texts == want


def test_completions_without_a_number_have_16_tokens(client: TestClient) -> None:
    answer = client.post(COMPLETE, json={"prompt": TEXT * 3}).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (16, "length")


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: TestClient, stream: bool) -> None:
    answer = client.post(COMPLETE, json={"prompt": "ab", "echo": True, "max_tokens": 100, "n": 2, "stream": stream})
    if stream:
        texts = ["", ""]
        for chunk in events(answer.text):
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    else:
        texts = [c["text"] for c in answer.json()["choices"]]
    assert texts[0] == "abab" and texts[1].startswith("ab")


@pytest.mark.parametrize("stop", [",", ["界", " a"], "er 🙂", "nowhere", ["größer"]])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_stop_strings(client: TestClient, stop: Any, keep: bool, stream: bool) -> None:
    body = {"prompt": TEXT, "stop": stop, "max_tokens": 100, "include_stop_str_in_output": keep, "stream": stream}
    answer = client.post(COMPLETE, json=body)
    text = "".join(c["choices"][0]["text"] for c in events(answer.text)) if stream else answer.json()["choices"][0]["text"]
    stops = [stop] if isinstance(stop, str) else stop
    at = min((TEXT.index(s) + (len(s) if keep else 0) for s in stops if s in TEXT), default=len(TEXT))
    assert text == TEXT[:at]


def test_stop_tokens_are_none_of_the_text(client: TestClient, words: Tokenizer) -> None:
    prompt = words.encode(TEXT)
    answer = client.post(COMPLETE, json={"prompt": TEXT, "stop_token_ids": [prompt[4]], "max_tokens": 50}).json()
    assert answer["choices"][0]["text"] == words.decode(prompt[: prompt.index(prompt[4])])
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_logprobs(client: TestClient, words: Tokenizer) -> None:
    content = client.post(CHAT, json=HELLO | {"logprobs": True, "top_logprobs": 2}).json()["choices"][0]["logprobs"]["content"]
    assert [x["logprob"] for x in content[:3]] == [0, -0.5, -1.0]
    assert b"".join(bytes(x["bytes"]) for x in content[1:]).startswith(b"user\n")
    assert content[0]["token"] == "<|im_start|>"
    assert content[0]["top_logprobs"][1]["logprob"] == -9999.0
    assert client.post(CHAT, json=HELLO | {"logprobs": True}).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    logprobs = client.post(COMPLETE, json={"prompt": "one two", "logprobs": 1, "max_tokens": 40}).json()["choices"][0]["logprobs"]
    names = [words.name_of(t) for t in words.encode("one two")]
    assert logprobs["tokens"][:-1] == names
    assert logprobs["text_offset"][:-1] == [len("".join(names[:k])) for k in range(len(names))]
    assert logprobs["top_logprobs"][1] == {names[1]: -0.5}


def test_sampling_is_what_the_body_says(client: TestClient, engine: RuleEngine) -> None:
    said = {
        "temperature": 0,
        "top_p": 0.5,
        "min_p": 0.1,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.1,
        "n": 2,
        "ignore_eos": True,
        "priority": -3,
        "cache_salt": "tenant",
    }
    client.post(CHAT, json=HELLO | said | {"seed": -1, "max_completion_tokens": 7, "stop": ["x"], "user": "u", "metadata": {}})
    params = engine.requests[-1].params
    assert {k: getattr(params, k) for k in said} == said
    assert (params.seed, params.max_tokens, params.stop, params.top_k) == ((1 << 63) - 1, 7, ("x",), 50)
    client.post(CHAT, json=HELLO | {"top_k": -1})
    params = engine.requests[-1].params
    assert (params.top_k, params.temperature, params.max_tokens) == (0, 1.0, 512 - len(engine.requests[-1].prompt))


def test_messages_as_templates_take_them(engine: RuleEngine, words: Tokenizer) -> None:
    template = (
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.a }}{% endfor %}{% endfor %}{{ thinking }}{{ reasoning_effort }}"
    )
    client = TestClient(make_app(engine, rule_served(words, template), ServerOptions(max_positions=512)))
    messages: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 7}'}}]},
        {"role": "tool", "content": "x"},
    ]
    body = {"messages": messages, "chat_template_kwargs": {"thinking": "T"}, "reasoning_effort": "low"}
    tools = [{"type": "function", "function": {"name": "f"}}]
    for choice, shown in (("auto", True), ("none", False)):
        answer = client.post(CHAT, json=body | {"tools": tools, "tool_choice": choice})
        text = answer.json()["choices"][0]["message"]["content"]
        assert text == (json.dumps(tools) if shown else "") + "system:a\nbassistant:7tool:xTlow"
    none = TestClient(make_app(engine, rule_served(words, None), ServerOptions()))
    is_error(none.post(CHAT, json=HELLO), 400, "no chat template")


# ------------------------------------------------------------------ structured output
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "ü"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}},
        lambda t: set(json.loads(t)) == {"a", "b"},
    ),
    "regex": ({"response_format": {"type": "regex", "regex": "(ab|c{2,3})d"}}, lambda t: re.fullmatch("(ab|c{2,3})d", t)),
    "grammar": (
        {"response_format": {"type": "grammar", "grammar": 'start: "(" start ")" | "x"'}},
        lambda t: re.fullmatch(r"\(*x\)*", t) and t.count("(") == t.count(")"),
    ),
    "vLLM's json": ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, lambda t: json.loads(t)["a"] < 100),
    "vLLM's regex": ({"structured_outputs": {"regex": "[0-9]{3}"}}, lambda t: re.fullmatch("[0-9]{3}", t)),
    "vLLM's choice": ({"structured_outputs": {"choice": ["größer", 'a "b"']}}, lambda t: t in ("größer", 'a "b"')),
}


@pytest.mark.parametrize("what", FORMATS)
def test_structured_output(client: TestClient, what: str) -> None:
    said, fits = FORMATS[what]
    answer = client.post(CHAT, json=HELLO | said | {"n": 3})
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] == "stop" and fits(choice["message"]["content"]), choice
    assert len({c["message"]["content"] for c in answer.json()["choices"]}) > 1
    if "structured_outputs" in said:
        for choice in client.post(COMPLETE, json={"prompt": ["a", "b"], "max_tokens": 99} | said).json()["choices"]:
            assert fits(choice["text"])


def test_any_json(client: TestClient) -> None:
    for said in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        text = client.post(CHAT, json=HELLO | said | {"max_tokens": 3}).json()["choices"][0]["message"]["content"]
        assert text.lstrip().startswith("{")
    assert client.post(CHAT, json=HELLO | {"response_format": {"type": "text"}}).json()["choices"][0]["message"]["content"]


# ------------------------------------------------------------------ refusals
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": 3}, "temperature.*less than or equal to 2"),
    "a text for a number": ({"temperature": "1"}, "temperature.*valid number"),
    "NaN": ({"top_p": math.nan}, "top_p.*finite"),
    "n": ({"n": 0}, "n: "),
    "true for a number": ({"max_tokens": True}, "max_tokens.*integer"),
    "max_tokens": ({"max_tokens": 10**30}, "max_tokens"),
    "context": ({"max_tokens": 1000}, "maximum context length is 512"),
    "unknown": ({"best": 1}, "Unrecognized request argument supplied: best"),
    "stop": ({"stop": ["a", 1]}, "stop.*valid string"),
    "empty stop": ({"stop": ""}, "stop.*empty"),
    "surrogate": ({"stop": "\ud800"}, ""),
    "bias": ({"logit_bias": {"x": 1}}, "logit_bias.*'x' is no token"),
    "bias beyond": ({"logit_bias": {str(WORDS): 1}}, "is no token: these are 0 to 399"),
    "bias of the engine": ({"logit_bias": {"5": 1}}, "the rule knows no bias"),
    "top_logprobs": ({"top_logprobs": 2}, "logprobs: true"),
    "many logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "tool choice": ({"tool_choice": "perhaps"}, "tool_choice.*'none', 'auto' or 'required'"),
    "a choice of no tools": ({"tool_choice": "required"}, "tool_choice: goes with tools"),
    "a choice of another tool": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice: 'g' is none of the tools",
    ),
    "a choice and a format": (
        {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "tool_choice: goes without other structured output",
    ),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "tools"),
    "no messages": ({"messages": []}, "messages"),
    "messages": ({"messages": "hi"}, "messages.*valid array"),
    "role": ({"messages": [{"content": "x"}]}, r"messages\.0\.role"),
    "content": ({"messages": [{"role": "user", "content": 5}]}, r"messages\.0\.content"),
    "image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url' aren't taken.*text alone"),
    "call": ({"messages": [{"role": "a", "tool_calls": [{"function": {"arguments": "{"}}]}]}, "isn't JSON"),
    "variables": ({"chat_template_kwargs": {"messages": []}}, "'messages' is the request's own"),
    "stream options": ({"stream_options": {"x": 1}}, r"stream_options\.x"),
    "format": ({"response_format": {"type": "xml"}}, "response_format"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "json_schema needs json_schema"),
    "schema": ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 1}}}}, "can't be compiled"),
    "far schema": ({"structured_outputs": {"json": {"$ref": "http://a.b/c"}}}, "can't be compiled"),
    "regex": ({"response_format": {"type": "regex", "regex": "("}}, "can't be compiled"),
    "long regex": ({"response_format": {"type": "regex", "regex": "x" * 300_000}}, "at most 262144"),
    "deep grammar": ({"response_format": {"type": "regex", "regex": "(" * 9999 + ")" * 9999}}, "can't be compiled"),
    "grammar": ({"response_format": {"type": "grammar", "grammar": "x"}}, "can't be compiled"),
    "two structures": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "one of.*got 2"),
    "two places": ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "goes without"),
    "no end": ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    "salt": ({"cache_salt": "x" * 300}, "cache_salt"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments_are_named(client: TestClient, engine: RuleEngine, what: str) -> None:
    changes, match = BAD[what]
    error = is_error(client.post(CHAT, content=json.dumps(HELLO | changes)), 400, match)
    assert error["type"] == "invalid_request_error"
    assert engine.working == 0
    assert client.post(CHAT, json=HELLO).status_code == 200


BAD_COMPLETIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({}, "you must provide prompt"),
    "empty": ({"prompt": ""}, "nothing to continue"),
    "none": ({"prompt": []}, "nothing to continue"),
    "one of none": ({"prompt": [[1], []]}, "nothing to continue"),
    "tokens": ({"prompt": [1, WORDS]}, "'400' is no token"),
    "negative": ({"prompt": [-1]}, "'-1' is no token"),
    "mixed": ({"prompt": ["a", 1]}, "prompt"),
    "many": ({"prompt": ["a"] * 129}, "129 prompts"),
    "suffix": ({"prompt": "a", "suffix": "b"}, "suffix"),
    "best_of": ({"prompt": "a", "best_of": 3}, "best_of"),
    "echo": ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
    "length_penalty": ({"prompt": "a", "length_penalty": 2}, "length_penalty: goes with use_beam_search"),
    "early_stopping": ({"prompt": "a", "early_stopping": True}, "early_stopping: goes with use_beam_search"),
    "beams": ({"prompt": "a", "use_beam_search": True, "early_stopping": "always"}, "early_stopping"),
    "long": ({"prompt": "a b " * 600}, "maximum context length"),
}


def test_beam_search(client: TestClient, engine: RuleEngine) -> None:
    """As vLLM's: n is the width, or best_of; what the folder says of drawing doesn't count."""
    said = {"prompt": "a", "use_beam_search": True, "n": 2, "length_penalty": 0.5, "early_stopping": "never"}
    for changes, width in (({}, 2), ({"best_of": 5}, 5), ({"n": None}, 1)):
        assert client.post(COMPLETE, json=said | changes).status_code == 200
        params = engine.requests[-1].params
        assert (params.beam_width, params.length_penalty, params.early_stopping) == (width, 0.5, "never")
        assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert client.post(COMPLETE, json={"prompt": "a", "length_penalty": 1, "early_stopping": False}).status_code == 200
    assert engine.requests[-1].params.beam_width == 0


@pytest.mark.parametrize("what", BAD_COMPLETIONS)
def test_bad_completions_are_named(client: TestClient, what: str) -> None:
    body, match = BAD_COMPLETIONS[what]
    is_error(client.post(COMPLETE, json=body), 400, match)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from("model messages prompt n stop seed logit_bias tools stream stream_options max_tokens logprobs echo".split())


@pytest.fixture(scope="module")
def fuzzed(words: Tokenizer) -> tuple[TestClient, RuleEngine]:
    engine = RuleEngine(words.vocabulary)
    return client_of(engine, words), engine


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_body_has_an_answer_or_an_error(fuzzed: tuple[TestClient, RuleEngine], data: st.DataObject) -> None:
    client, engine = fuzzed
    path = data.draw(st.sampled_from([CHAT, COMPLETE, "/v1/embeddings"]))
    body = data.draw(
        st.binary(max_size=20)
        | JSON.map(lambda x: json.dumps(x).encode())
        | st.dictionaries(NAMES, JSON, max_size=4).map(lambda x: json.dumps(HELLO | {"prompt": "a"} | x).encode())
        | st.dictionaries(NAMES, JSON, max_size=2).map(lambda x: json.dumps(HELLO | x).encode())
        | st.integers(0, 100).map(lambda n: json.dumps(HELLO).encode()[:n])
    )
    answer = client.post(path, content=body)
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        is_error(answer, answer.status_code)
    assert "Traceback" not in answer.text
    assert engine.working == 0


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"\x00", b"\xff\xfe", b"{}", b"null", b'"x"'])
def test_odd_bodies(client: TestClient, body: bytes) -> None:
    for path in (CHAT, COMPLETE, "/v1/embeddings"):
        answer = client.post(path, content=body)
        is_error(answer, 404 if answer.status_code == 404 else 400)


def test_long_bodies(engine: RuleEngine, words: Tokenizer) -> None:
    client = client_of(engine, words, max_body_bytes=1000)
    is_error(client.post(CHAT, content=b"x" * 1001), 413, "at most 1000 bytes")
    is_error(client.post(CHAT, content=iter([b"x" * 600, b"x" * 600])), 413)


def test_paths_and_models(client: TestClient) -> None:
    assert client.get("/v1/models").json()["data"][0]["id"] == "rule"
    assert client.get("/v1/models/rule").json()["max_model_len"] == 512
    is_error(client.get("/v1/models/a/b"), 404, "'a/b' does not exist")
    is_error(client.post(CHAT, json=HELLO | {"model": "gpt-5"}), 404, "'gpt-5' does not exist")
    is_error(client.post("/v1/embeddings", json={"model": "rule", "input": "x"}), 404, "gives no embeddings")
    is_error(client.get("/v1/nothing"), 404)
    is_error(client.get(CHAT), 405)
    assert client.get("/health").json() == {"status": "ok"}
    assert CHAT in client.get("/openapi.json").json()["paths"]


def test_keys(engine: RuleEngine, words: Tokenizer) -> None:
    client = client_of(engine, words, api_keys=("one", "zwö"))
    for header in ({}, {"authorization": "Bearer two"}, {"authorization": "one"}, {"authorization": "Basic one"}):
        for answer in (client.post(CHAT, json=HELLO, headers=header), client.get("/v1/models", headers=header)):
            assert is_error(answer, 401)["code"] == "invalid_api_key"
    for key in (b"one", "zwö".encode()):
        assert client.post(CHAT, json=HELLO, headers={b"authorization": b"Bearer " + key}).status_code == 200
    assert client.get("/health").status_code == client.get("/metrics").status_code == 200


def test_an_engine_that_failed(client: TestClient, engine: RuleEngine) -> None:
    assert "vllm:engine_failed{" in client.get("/metrics").text
    engine.failure = "a process is gone"
    answer = client.get("/health")
    assert (answer.status_code, answer.json()) == (503, {"status": "failed", "error": "a process is gone"})
    for path, body in ((CHAT, HELLO), (COMPLETE, {"prompt": "a", "stream": True})):
        is_error(client.post(path, json=body), 503, "the engine has failed.* a process is gone")
    assert not engine.requests
    assert re.search(r"^vllm:engine_failed\{.*\} 1\.0$", client.get("/metrics").text, re.MULTILINE)
    assert client.get("/v1/models").status_code == 200


def test_a_full_queue(words: Tokenizer) -> None:
    engine = RuleEngine(words.vocabulary, most=2)
    client = client_of(engine, words)
    answer = client.post(COMPLETE, json={"prompt": ["a", "b", "c"]})
    is_error(answer, 429, "as many requests wait as may")
    assert int(answer.headers["retry-after"]) >= 1
    assert engine.working == 0 and all(r.cancelled for r in engine.requests)
    assert client.post(COMPLETE, json={"prompt": ["a", "b"]}).status_code == 200


def test_limits_of_the_server(engine: RuleEngine, words: Tokenizer) -> None:
    client = client_of(engine, words, max_tokens=5)
    is_error(client.post(CHAT, json=HELLO | {"max_tokens": 6}), 400, "at most 5")
    assert client.post(CHAT, json=HELLO).json()["usage"]["completion_tokens"] == 5


def test_steps_that_fail(client: TestClient, engine: RuleEngine) -> None:
    engine.fails = True
    assert is_error(client.post(CHAT, json=HELLO), 500, "the rule fails")["type"] == "server_error"
    chunks = events(client.post(CHAT, json=HELLO | {"stream": True}).text)
    assert chunks[-1]["error"]["message"] == "the rule fails"
    engine.fails = False
    assert client.post(CHAT, json=HELLO).status_code == 200


def test_bugs_show_nothing(client: TestClient, engine: RuleEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(engine, "submit", submit)
    answer = client.post(CHAT, json=HELLO)
    is_error(answer, 500, "internal error")
    assert "secret" not in answer.text


# ------------------------------------------------------------------ metrics
def test_metrics_have_vllms_names(client: TestClient, engine: RuleEngine) -> None:
    client.post(CHAT, json=HELLO | {"n": 2})
    text = client.get("/metrics").text
    values = {m[1]: float(m[2]) for m in re.finditer(r'^vllm:(\w+)\{engine="0",model_name="rule"\} (\S+)$', text, re.M)}
    values |= {m[1]: float(m[2]) for m in re.finditer(r'^vllm:(\w+)\{model_name="rule",engine="0"\} (\S+)$', text, re.M)}
    prompt = len(engine.requests[0].prompt)
    assert values["num_requests_running"] == values["num_requests_waiting"] == 0
    assert values["kv_cache_usage_perc"] == 0.25
    assert values["prompt_tokens_total"] == values["request_prompt_tokens_sum"] == prompt
    assert values["generation_tokens_total"] == values["request_generation_tokens_sum"] == 2 * prompt + 1
    assert values["prefix_cache_hits_total"] == engine.requests[0].cached_tokens
    assert values["time_to_first_token_seconds_count"] == values["e2e_request_latency_seconds_count"] == 1
    assert values["inter_token_latency_seconds_count"] == 2 * prompt - 1
    assert re.search(r'vllm:request_success_total\{.*finished_reason="stop".*\} 1\.0', text)
    assert re.search(r'vllm:cache_tier_blocks\{.*tier="folder".*\} 7\.0', text)
    assert re.search(r'vllm:cache_tier_hits_total\{.*tier="folder".*\} 3\.0', text)


# ------------------------------------------------------------------ over a socket
@pytest.fixture
def address(words: Tokenizer) -> Iterator[tuple[str, RuleEngine]]:
    """A server in a thread, whose engine takes its time."""
    engine = RuleEngine(words.vocabulary, delay=0.02)
    with serving(engine, words) as url:
        yield url, engine


@contextlib.contextmanager
def serving(engine: RuleEngine, words: Tokenizer) -> Iterator[str]:
    import uvicorn

    app = make_app(engine, rule_served(words), ServerOptions(max_positions=4096))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listening.close()


def until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_goes_cancels(address: tuple[str, RuleEngine], stream: bool) -> None:
    url, engine = address
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(HELLO | {"stream": stream, "n": 3}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
        if stream:
            assert b"200 OK" in connection.recv(100)
        else:
            until(lambda: engine.generated > 2)
    until(lambda: engine.requests and engine.requests[0].cancelled)
    before = engine.generated
    assert engine.working == 0 and before < 3 * len(engine.requests[0].prompt)
    with socket.create_connection((host, int(port))) as connection:  # in the middle of a body
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{" % CHAT.encode())
    assert httpx.get(f"{url}/health").status_code == 200


def test_many_at_once(address: tuple[str, RuleEngine]) -> None:
    url, engine = address
    texts = [f"{k} {'x' * random.Random(k).randrange(9)}" for k in range(12)]
    got = dict[str, str]()

    def ask(text: str) -> None:
        with httpx.stream(
            "POST", f"{url}{COMPLETE}", json={"prompt": text, "max_tokens": 99, "stream": True}, timeout=60
        ) as answer:
            answer.read()
        got[text] = "".join(c["choices"][0]["text"] for c in events(answer.text))

    threads = [threading.Thread(target=ask, args=(t,)) for t in texts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == {t: t for t in texts}
    assert engine.working == 0


SERVER = """\
import socket, sys
from dhlo.serve.server import ServerOptions, make_app, run_server
from dhlo.serve.tokens import Tokenizer
from tests.serving import WORDS, RuleEngine, rule_served
words = Tokenizer(sys.argv[1], WORDS)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
options = ServerOptions(max_positions=512, drain_seconds=20)
engine = RuleEngine(words.vocabulary, delay=0.05)
run_server(make_app(engine, rule_served(words), options), listening, options)
print("drained" if engine.drained and not engine.working else "not drained")
"""


def test_sigterm_lets_requests_end(words: Tokenizer, tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "t.json"))
    command = [sys.executable, "-c", SERVER, str(tmp_path / "t.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        with httpx.stream("POST", url + COMPLETE, json={"prompt": TEXT, "max_tokens": 99, "stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [first, *lines]
        assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"
        text = "".join(json.loads(x[6:])["choices"][0]["text"] for x in rest if x.startswith("data: {"))
        assert text == TEXT
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/health")
        assert process.wait(20) == 0
        assert process.stdout.read().strip() == "drained"


# ------------------------------------------------------------------ the page
def test_the_page_needs_nothing_else(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"(src|href)=|https?://|import ", answer.text)


@pytest.mark.slow
@pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium")
def test_the_page_in_a_browser(address: tuple[str, RuleEngine], tmp_path: Path) -> None:
    url, engine = address
    browser = Browser(tmp_path / "profile", 1000, 800)
    try:
        browser.open(url)
        browser.wait_for("document.getElementById('model').textContent === 'rule'")
        browser.wait_for("document.getElementById('cache').textContent === '25 %'")
        browser.wait_for("document.getElementById('tier-folder').textContent === '0.0 MiB, 7 blocks, 3 hits'")
        browser.wait_for("document.getElementById('waiting').textContent === '0'")
        browser.evaluate(f"document.getElementById('text').value = {json.dumps(TEXT)}")
        browser.evaluate("document.getElementById('form').requestSubmit()")
        said = "document.querySelector('#talk .assistant').textContent"
        browser.wait_for(f"{said}.includes('more') && !document.getElementById('send').disabled")
        assert browser.evaluate(said).count(TEXT) == 1
        browser.wait_for("Number(document.getElementById('ended').textContent) === 1")
        browser.wait_for("document.getElementById('line').getAttribute('points').split(' ').length > 2")
        browser.evaluate("document.getElementById('text').value = 'x '.repeat(200)")
        browser.evaluate("document.getElementById('form').requestSubmit()")
        browser.wait_for("!document.getElementById('stop').disabled")
        browser.evaluate("document.getElementById('stop').click()")
        until(lambda: len(engine.requests) > 1 and engine.requests[1].cancelled)
        engine.fails = True
        browser.wait_for("!document.getElementById('send').disabled")
        browser.evaluate("document.getElementById('text').value = 'x'")
        browser.evaluate("document.getElementById('form').requestSubmit()")
        browser.wait_for("document.querySelector('#talk .error')?.textContent === 'the rule fails'")
        assert not browser.errors
        assert all(r.startswith(url) for r in browser.requests if not r.startswith("about:"))
        browser.dark(True)
        browser.screenshot(tmp_path / "page.png")
    finally:
        browser.close()


# ------------------------------------------------------------------ adapters
def test_adapters_are_models(engine: RuleEngine, words: Tokenizer) -> None:
    client = client_of(engine, words, adapters={"poet": "/adapters/poet"})
    cards = {m["id"]: m for m in client.get("/v1/models").json()["data"]}
    assert list(cards) == ["rule", "poet"] and cards["poet"]["parent"] == "rule"
    assert client.get("/v1/models/poet").json() == cards["poet"]
    assert client.post(CHAT, json=HELLO | {"model": "poet"}).json()["model"] == "poet"
    assert client.post(COMPLETE, json={"prompt": TEXT, "model": "poet"}).json()["model"] == "poet"
    assert client.post(COMPLETE, json={"prompt": TEXT, "model": "rule"}).json()["model"] == "rule"
    assert [r.params.adapter for r in engine.requests] == ["poet", "poet", ""]
    assert client.post(COMPLETE, json={"prompt": TEXT, "model": "painter"}).status_code == 404
    for path in ("load", "unload"):
        assert client.post(f"/v1/{path}_lora_adapter", json={"lora_name": "x", "lora_path": "/adapters"}).status_code in (404, 405)
    assert not engine.adapters


def test_adapters_that_clients_load(engine: RuleEngine, words: Tokenizer) -> None:
    client = client_of(engine, words, load_adapters=True, api_keys=("key",))
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    poet = {"lora_name": "poet", "lora_path": "/adapters/poet"}
    assert client.post(load, json=poet).status_code == 401
    client.headers["authorization"] = "Bearer key"
    assert client.post(load, json=poet).status_code == 200 and engine.adapters == {"poet": "/adapters/poet"}
    assert client.post(COMPLETE, json={"prompt": TEXT, "model": "poet"}).status_code == 200
    bad: list[Any] = [
        poet,
        poet | {"lora_name": "rule"},
        poet | {"lora_name": ""},
        {"lora_name": "other"},
        poet | {"lora_name": "other", "lora_path": "/somewhere"},
        poet | {"lora_name": "other", "load_inplace": True},
        [],
    ]
    assert {client.post(load, json=x).status_code for x in bad} == {400}
    assert client.post(load, json=poet | {"lora_name": "two"}).status_code == 200
    assert client.post(load, json=poet | {"lora_name": "three"}).status_code == 400
    assert client.post(unload, json={"lora_name": "poet"}).status_code == 200 and list(engine.adapters) == ["two"]
    assert client.post(unload, json={"lora_name": "poet"}).status_code == 404
    assert client.post(COMPLETE, json={"prompt": TEXT, "model": "poet"}).status_code == 404
