"""Requests that nobody meant: bodies of wrong types at any place, of damaged bytes, which come in parts or stop, clients that go.
Each gets an answer, or an error in OpenAI's form, the client's; whatever it was, nothing of it is left in the engine.

One short run by default; `-m slow` tries many. What it finds is fixed, and kept as an example.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import uvicorn
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dhlo.serve.embedding_server import make_embedding_app
from dhlo.serve.server import ServerOptions, make_app
from dhlo.serve.tokens import Tokenizer
from tests.serving import WORDS, RuleEngine, byte_level, rule_embedder, rule_served

TEMPLATE = (
    "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ thinking }}"
)
SAMPLING: dict[str, Any] = {
    "model": "rule", "max_tokens": 9, "temperature": 0.5, "top_p": 0.5, "n": 2, "stream": True, "stop": ["x", "yz"], "seed": 7,
    "stream_options": {"include_usage": True}, "presence_penalty": 1, "frequency_penalty": 0.5, "logit_bias": {"5": 1.5},
    "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.5, "stop_token_ids": [9, 11], "ignore_eos": True, "priority": 3,
    "include_stop_str_in_output": True, "cache_salt": "s", "structured_outputs": {"regex": "a+"}, "user": "u",
    "metadata": {"a": "b"},
}  # fmt: skip
MESSAGES = [
    {"role": "system", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 7}'}}]},
    {"role": "user", "content": "größer"},
]
CHAT: dict[str, Any] = SAMPLING | {
    "messages": MESSAGES, "max_completion_tokens": 5, "logprobs": True, "top_logprobs": 2, "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}},
    "chat_template_kwargs": {"thinking": True}, "add_generation_prompt": True, "parallel_tool_calls": True,
}  # fmt: skip
COMPLETION: dict[str, Any] = SAMPLING | {"prompt": ["one", "two"], "echo": True, "logprobs": 2, "best_of": 2, "suffix": ""}
EMBEDDING: dict[str, Any] = {
    "model": "rule", "input": ["one", "two"], "encoding_format": "base64", "dimensions": 4, "user": "u", "prompt_name": "query",
}  # fmt: skip
POSTS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION, "/v1/embeddings": EMBEDDING}
GETS = [
    "/",
    "/health",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/rule",
    "/v1/nothing",
    "/v1/models/a%2Fb%00",
    "//",
    "/docs",
]
NEEDED = {"messages", "prompt", "input", "model"}

SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, 1e308, -0.0, math.nan, math.inf, -math.inf]
    + ["", "a", "\0", "\ud800", "𝕏" * 9, "x" * 5000, "NaN", "1", "data: [DONE]\n\n", "{{ 7 * 7 }}", "<|im_end|>", "../../etc", "("]
)
VALUES = st.one_of(
    SCALARS,
    st.recursive(SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3), max_leaves=6),
    st.sampled_from([[], {}, [[]], [{}], [[1, 2], "a"], list(range(500)), {str(k): 0 for k in range(1500)}]),
)
NAMES = st.sampled_from(sorted(CHAT | COMPLETION | EMBEDDING)) | st.text(max_size=5)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container within a value, with each of its keys."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()):
        yield value, key
        yield from places(inner)


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    """Some of the arguments that there are, one or some of them changed anywhere; sometimes its bytes too."""
    whole = POSTS[path]
    names = draw(st.sets(st.sampled_from(sorted(whole.keys() - NEEDED)), max_size=4))
    body = {k: copy.deepcopy(v) for k, v in whole.items() if k in NEEDED | names}
    for _ in range(draw(st.integers(0, 2))):
        found = list(places(body))
        container, key = found[draw(st.integers(0, len(found) - 1))] if found else (body, "model")
        match draw(st.sampled_from(["replace", "add", "remove", "nest"])):
            case "replace":
                container[key] = copy.deepcopy(draw(VALUES))
            case "add":
                body[draw(NAMES)] = copy.deepcopy(draw(VALUES))
            case "remove":
                del container[key]
            case "nest":
                container[key] = [container[key]] if draw(st.booleans()) else {"a": container[key]}
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    match draw(st.sampled_from(["whole"] * 6 + ["cut", "byte", "deep", "twice", "other"])):
        case "cut":
            return data[: draw(st.integers(0, len(data)))]
        case "byte":
            at = draw(st.integers(0, len(data) - 1))
            return data[:at] + draw(st.binary(max_size=3)) + data[at + 1 :]
        case "deep":
            at, depth = draw(st.integers(0, len(data))), draw(st.sampled_from([10, 5000]))
            return data[:at] + draw(st.sampled_from([b"[", b'{"a":', b"[["])) * depth + data[at:]
        case "twice":
            return data + draw(st.sampled_from([data, b"\0", b" ", b"}"]))
        case "other":
            return draw(st.binary(max_size=30) | VALUES.map(lambda x: json.dumps(x).encode()))
    return data


@dataclass
class Request:
    method: str
    path: str
    body: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: int = 1
    """That the body comes in."""
    stops: bool = False
    """The client goes before the last part of the body."""
    leaves: int | None = None
    """The client goes after so many parts of the answer."""


@st.composite
def requests(draw: st.DrawFn) -> Request:
    if draw(st.integers(0, 9)) == 0:
        return Request(
            draw(st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"])), draw(st.sampled_from([*GETS, *POSTS]))
        )
    path = draw(st.sampled_from(sorted(POSTS)))
    body = draw(bodies(path))
    kinds = [b"application/json", b"text/plain", b"application/json; charset=utf-16", b"multipart/form-data", b"\xff"]
    lengths = [str(len(body)).encode(), b"", b"x", b"-1", b"\xb2", b"9" * 30, b"9" * 5000]
    headers = [(b"content-type", draw(st.sampled_from(kinds)))]
    headers += [(b"content-length", draw(st.sampled_from([lengths[0]] * 6 + lengths)))]
    headers += [(b"authorization", draw(st.sampled_from([b"Bearer k"] * 8 + [b"", b"Bearer", b"Bearer \xff", b"Basic k", b" "])))]
    leaves = draw(st.none() | st.none() | st.integers(0, 6))
    return Request("POST", path, body, headers, draw(st.integers(1, 4)), draw(st.integers(0, 9)) == 0, leaves)


@dataclass
class Answer:
    status: int = 0
    kind: str = ""
    body: bytes = b""
    ended: bool = False


async def ask(app: Any, request: Request) -> Answer:
    """What an application of ASGI answers, as a server would have it."""
    answer, gone, sent = Answer(), asyncio.Event(), 0
    size = max(math.ceil(len(request.body) / request.parts), 1)
    todo = [request.body[k : k + size] for k in range(0, len(request.body), size)] or [b""]
    if request.leaves == 0:
        gone.set()

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        if request.stops and len(todo) == 1:
            return {"type": "http.disconnect"}
        if todo:
            part = todo.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(todo)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal sent
        await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.kind = dict(message["headers"]).get(b"content-type", b"").decode()
        else:
            answer.body += message.get("body", b"")
            answer.ended = not message.get("more_body", False)
        sent += 1
        if sent == request.leaves:
            gone.set()

    target = request.path.encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": request.method,
        "scheme": "http", "path": request.path, "raw_path": target, "query_string": b"", "root_path": "",
        "headers": [(b"host", b"x"), *request.headers], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 60)
    return answer


def check(answer: Answer, request: Request) -> None:
    went = request.stops or request.leaves is not None
    assert 200 <= answer.status < 500 or answer.status == 503 or (went and not answer.status), answer
    assert b"Traceback" not in answer.body
    if answer.status == 499:
        assert went
    elif answer.status >= 400:
        if request.method != "HEAD":
            error = json.loads(answer.body)["error"]
            assert set(error) == {"message", "type", "param", "code"} and isinstance(error["message"], str) and error["message"]
    elif answer.kind.startswith("text/event-stream"):
        parts = answer.body.split(b"\n\n")
        assert went or parts[-2:] == [b"data: [DONE]", b""]
        for part in parts[:-2]:
            said = json.loads(part.removeprefix(b"data: "))
            assert "choices" in said or set(said["error"]) == {"message", "type", "param", "code"}
            assert "error" not in said or said["error"]["type"] != "server_error"
    elif answer.kind.startswith("application/json") and request.method != "HEAD":
        json.loads(answer.body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


class Fuzzed:
    """Applications over an engine and an embedder by rules, and what to ask them with."""

    def __init__(self, words: Tokenizer, folder: Path) -> None:
        self.engine = RuleEngine(words.vocabulary)
        options = ServerOptions(max_positions=96, api_keys=("k",), max_body_bytes=1 << 16)
        self.embedder = rule_embedder(folder)
        texts = make_app(self.engine, rule_served(words, TEMPLATE), options)
        vectors = make_embedding_app(self.embedder, options)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (vectors if scope["path"] == "/v1/embeddings" else texts)(scope, receive, send)

        self.app = app
        self.runner = asyncio.Runner()

    def try_one(self, request: Request, log: pytest.LogCaptureFixture) -> None:
        async def one() -> Answer:
            try:
                return await ask(self.app, request)
            finally:
                for _ in range(3):
                    await asyncio.sleep(0)
                left = asyncio.all_tasks() - {asyncio.current_task()}
                assert not left, left

        answer = self.runner.run(one())
        check(answer, request)
        assert self.engine.working == 0 and self.embedder.stats.waiting == 0
        assert not [r for r in log.records if r.name in ("dhlo", "asyncio")], log.text
        self.engine.requests.clear()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    byte_level().save(str(path))
    made = Fuzzed(Tokenizer(path, WORDS), path.parent)
    with made.runner, made.embedder:
        yield made


def sized(length: bytes) -> Request:
    return Request("POST", "/v1/completions", b"{}", [(b"authorization", b"Bearer k"), (b"content-length", length)])


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@settings(max_examples=120, derandomize=True, **QUIET)
@example(request_=sized(b"\xb2"))
@example(request_=sized(b"9" * 5000))
@given(request_=requests())
def test_any_request(fuzzed: Fuzzed, caplog: pytest.LogCaptureFixture, request_: Request) -> None:
    with caplog.at_level(logging.WARNING):
        fuzzed.try_one(request_, caplog)


@pytest.mark.slow
@settings(max_examples=20_000, **QUIET)
@given(request_=requests())
def test_many_requests(fuzzed: Fuzzed, caplog: pytest.LogCaptureFixture, request_: Request) -> None:
    with caplog.at_level(logging.WARNING):
        fuzzed.try_one(request_, caplog)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"prompt": "one two", "stream": true}'
# What goes over the connection, part by part, before the client ends it, and the status that may come.
RAW: list[tuple[list[bytes], bytes]] = [
    ([CHUNKED, b'5\r\n{"a"', b":\r\n"], b""),
    ([CHUNKED, b"zz\r\n"], b"400"),
    ([CHUNKED, b"-1\r\n\r\n"], b"400"),
    ([CHUNKED, b"%x\r\n%b\r\n" % (len(BODY), BODY), b"0\r\n\r\n"], b"200"),
    ([CHUNKED, b"%x\r\n%b\r\n" % (len(BODY), BODY)], b""),
    ([CHUNKED, b"fffffff\r\n", b"x" * 70_000], b"413"),
    ([HEAD + b"Content-Length: 99999999999999999999\r\n\r\n"], b"413"),
    ([HEAD + b"Content-Length: 9\r\nContent-Length: 5\r\n\r\n123456789"], b"400"),
    ([HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY), *(BODY[k : k + 1] for k in range(len(BODY)))], b"200"),
    ([b"\x16\x03\x01\0\xee\x01\0"], b"400"),
]


def test_connections(fuzzed: Fuzzed, caplog: pytest.LogCaptureFixture) -> None:
    """Bodies in chunks that stop or are none, clients that send a byte at a time, what isn't HTTP."""

    async def talk(port: int, parts: list[bytes]) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.002)
        writer.write_eof()
        data = await reader.read()
        writer.close()
        return data

    async def run() -> list[bytes]:
        server = uvicorn.Server(uvicorn.Config(fuzzed.app, log_level="error", lifespan="off"))
        listening = socket.create_server(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            port = listening.getsockname()[1]
            return await asyncio.gather(*(asyncio.wait_for(talk(port, parts), 60) for parts, _ in RAW))
        finally:
            server.should_exit = True
            await task

    with mock.patch.object(uvicorn.Server, "capture_signals", contextlib.nullcontext), caplog.at_level(logging.ERROR):
        answers = fuzzed.runner.run(run())
    for answer, (parts, status) in zip(answers, RAW, strict=True):
        assert answer.split(b" ")[1:2] == ([status] if status else []), (parts, answer)
    assert fuzzed.engine.working == 0 and not caplog.records, caplog.text
