"""Replicas under Ray Serve: what begins alike goes to one of them, other requests to the one with the least work."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from dhlo.serve.folder import open_folder
from tests.serving import make_folder

ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")
pytestmark = pytest.mark.slow

from dhlo.serve.ray import PrefixRouter, make_application, prefix_of  # noqa: E402

LONG = "You are a careful assistant who answers in few words, and never twice. " * 8


def body(text: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": text}], **more}).encode()


def test_beginnings() -> None:
    one, two = prefix_of(body("one")), prefix_of(body("two " * 100))
    assert len(one) >= 4 and one[:4] == two[:4]
    assert not set(one) & set(prefix_of(body("one", cache_salt="s"))) and not set(one) & set(prefix_of(body("one", model="m")))
    for odd in (b"", b"[]", b"{", b"\xff", b"[" * 10**5, b"{}", b'{"prompt": 7}', b'{"prompt": "short"}', b'{"prompt": "\\ud800"}'):
        assert prefix_of(odd) == ()


class _Router(PrefixRouter):
    """Without Ray's part."""

    def __init__(self, **options: Any) -> None:
        self.initialize_state(**options)


def test_the_router() -> None:
    replicas: Any = [SimpleNamespace(replica_id=k) for k in "abc"]
    router = _Router(imbalance=2, most_blocks=100)

    def choose(text: bytes) -> str:
        request: Any = SimpleNamespace(kwargs={"prefix": prefix_of(text)})
        first: str = asyncio.run(router.choose_replicas(replicas, request))[0][0].replica_id
        router.on_request_routed(request, first, None)
        return first

    first = choose(body("one"))
    assert [choose(body("two")), choose(body("three"))] == [first, first]
    others = {choose(b'{"prompt": "x"}'), choose(b'{"prompt": "y"}')}
    assert len(others) == 2 and first not in others  # they have less to do
    assert choose(body("four")) == first and choose(body("five")) != first  # as it has 3 more than others then
    for _ in range(9):
        router.on_request_completed(first, "")
    assert asyncio.run(router.choose_replicas([], None)) == []
    many = [json.dumps({"prompt": f"{k} " * 200}).encode() for k in range(100)]
    for text in many:
        router.on_request_completed(choose(text), "")
    assert len(router._known) == 100


def test_two_replicas(tmp_path: Path) -> None:
    """On this machine: they share a compiled file, and each has the beginnings that it was given."""
    from ray import serve

    folder = make_folder(tmp_path / "llama")
    open_folder(folder, cache=str(tmp_path / "cache"), threads=1)
    application = make_application(
        str(folder),
        replicas=2,
        folder_options={"cache": str(tmp_path / "cache"), "threads": 1},
        engine_options={"cache_bytes": 1 << 22},
        server_options={"name": "llama"},
        actor_options={"num_cpus": 0.5},
    )
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serve.start(http_options={"port": port})
        serve.run(application, route_prefix="/")
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=120) as client:
            assert client.get("/health").json() == {"status": "ok"}
            cached = Counter[str]()
            for k in range(6):
                for who in ("a", "b"):
                    text = f"{who} is " * 60
                    said = {"messages": [{"role": "user", "content": f"{text}{k}"}], "max_tokens": 2, "temperature": 0}
                    answer = client.post("/v1/chat/completions", json=said)
                    assert answer.status_code == 200, answer.text
                    cached[who] += answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
            assert cached == {"a": 5, "b": 5}  # each was computed once: the same replica has had it
            streamed = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 5, "stream": True}).text
            assert streamed.endswith("data: [DONE]\n\n")
            wrong = client.post("/v1/completions", json={"prompt": ""})
            assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "prompt"
            assert client.post("/v1/completions", content=b"x" * (5 << 20)).status_code == 413
        assert len(list((tmp_path / "cache").glob("*.so"))) == 1
    finally:
        serve.shutdown()
        ray.shutdown()
