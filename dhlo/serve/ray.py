"""Replicas of an engine under Ray Serve: an ingress that takes OpenAI's requests, and gives those that begin alike to one replica.

`pip install 'ray[serve]'`, and `serve.run(make_application(FOLDER, replicas=2))`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dhlo.errors import ContractError
from dhlo.serve.doors import ServerOptions

__all__ = ["EngineReplica", "Ingress", "PrefixRouter", "make_application", "prefix_of"]

_BLOCK_BYTES: Final = 128  # of a text, that are looked up together
_MOST_BLOCKS: Final = 64  # of a text


def prefix_of(body: bytes) -> tuple[bytes, ...]:
    """Digests of the beginnings of what a request has the model read, the shortest first; none of what isn't such a request.
    Requests for other models or with another `cache_salt` have no beginnings in common."""
    try:
        said = json.loads(body)
        if not isinstance(said, dict):
            return ()
        text = json.dumps(said["messages"] if "messages" in said else said["prompt"], ensure_ascii=False)
        of = json.dumps([said.get("model"), said.get("cache_salt")])
        data = text.encode(errors="surrogatepass")
    except (ValueError, KeyError, RecursionError):
        return ()
    digest, out = hashlib.sha256(of.encode(errors="surrogatepass")), list[bytes]()
    for at in range(0, min(len(data) - _BLOCK_BYTES + 1, _MOST_BLOCKS * _BLOCK_BYTES), _BLOCK_BYTES):
        digest.update(data[at : at + _BLOCK_BYTES])
        out.append(digest.digest()[:16])
    return tuple(out)


class PrefixRouter(RequestRouter):
    """Gives a request to the replica that was given most of its beginning, unless that has many more in work than others; those
    of which nothing is known to the one with the fewest."""

    def initialize_state(self, imbalance: int = 8, most_blocks: int = 1 << 16) -> None:
        """`imbalance`: so many requests more than the replica with the fewest may one have that is chosen for a beginning.
        `most_blocks`: of beginnings that are remembered, those that were used last."""
        self._imbalance, self._most = imbalance, most_blocks
        self._known: OrderedDict[bytes, ReplicaID] = OrderedDict()
        self._working: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas in the order in which they are asked."""
        fewest_first = sorted(candidate_replicas, key=lambda r: self._working[r.replica_id])
        if not fewest_first:
            return []
        by_id = {r.replica_id: r for r in fewest_first}
        least = self._working[fewest_first[0].replica_id]
        for block in reversed(_prefix(pending_request)):
            found = by_id.get(self._known.get(block))
            if found is not None and self._working[found.replica_id] - least <= self._imbalance:
                return [[found], *([r] for r in fewest_first if r is not found)]
        return [[r] for r in fewest_first]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """Remembers who has which beginnings."""
        self._working[replica_id] += 1
        for block in _prefix(pending_request):
            self._known[block] = replica_id
            self._known.move_to_end(block)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """One request less in work."""
        self._working[replica_id] = max(self._working[replica_id] - 1, 0)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets it."""
        super().on_replica_actor_died(replica_id)
        del self._working[replica_id]
        for block in [b for b, r in self._known.items() if r == replica_id]:
            del self._known[block]


def _prefix(request: PendingRequest | None) -> Sequence[bytes]:
    return () if request is None else request.kwargs.get("prefix", ())


class EngineReplica:
    """An engine over the model of a folder, and what answers requests by it."""

    def __init__(
        self,
        folder: str,
        folder_options: Mapping[str, Any],
        engine_options: Mapping[str, Any],
        server_options: Mapping[str, Any],
    ) -> None:
        from dhlo.serve.engine import Engine
        from dhlo.serve.folder import BLOCK_SLOTS, need_decoder, open_folder
        from dhlo.serve.server import ServerOptions, make_app
        from dhlo.serve.types import EngineOptions, SamplingParams

        need_decoder(folder)
        served = open_folder(folder, apart=True, **folder_options)
        plain = {
            "eos_tokens": served.eos_tokens,
            "vocabulary": served.tokenizer.vocabulary,
            "max_positions": served.max_positions,
            "model_digest": served.digest,
        }
        options = EngineOptions(**{**plain, **engine_options})
        self._engine = Engine(served.step, options)
        for name, adapter in server_options.get("adapters", {}).items():
            self._engine.load_adapter(name, adapter)
        # A first step says whether steps work here, and how many blocks there are.
        self._engine.generate([[0]], SamplingParams(max_tokens=1))
        room = None if options.evict_to is not None else self._engine.stats().blocks * BLOCK_SLOTS
        longest = min((n for n in (room, served.max_positions, options.max_positions) if n is not None), default=1 << 31)
        self._app = make_app(self._engine, served, ServerOptions(**{"max_positions": longest, **server_options}))

    async def handle(self, scope: dict[str, Any], body: bytes, prefix: Sequence[bytes] = ()) -> AsyncIterator[dict[str, Any]]:
        """Messages of ASGI that answer a request. `prefix` is what the router goes by."""
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        gone, given = asyncio.Event(), False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app({**scope, "type": "http", "asgi": {"version": "3.0"}, "state": {}}, receive, messages.put)
            finally:
                await messages.put(None)

        task = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
        finally:  # whoever asked has gone, or has it all
            gone.set()
            with contextlib.suppress(Exception):
                await task

    def check_health(self) -> None:
        """Called by Ray: raises where there is no engine any more, or none that can run requests. Steps that fail end their
        requests alone."""
        if failure := self._engine.stats().failure:
            raise RuntimeError(failure)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.close()


class Ingress:
    """Takes requests, and gives each to a replica."""

    def __init__(self, replicas: DeploymentHandle, max_body_bytes: int) -> None:
        self._replicas, self._most = replicas.options(stream=True), max_body_bytes

    async def __call__(self, request: Request) -> Response:
        """The answer of a replica, as it comes."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._most:
                break  # the replica refuses it as too long
        keys = ("method", "path", "raw_path", "query_string", "headers", "http_version", "scheme", "client", "server")
        scope = {k: request.scope[k] for k in keys if k in request.scope} | {"root_path": ""}
        whole = bytes(body)
        answer = self._replicas.handle.remote(scope, whole, prefix=prefix_of(whole))
        first = await anext(aiter(answer))

        async def rest() -> AsyncIterator[bytes]:
            try:
                async for message in answer:
                    yield message.get("body", b"")
            finally:
                answer.cancel()

        response = StreamingResponse(rest(), first["status"])
        response.raw_headers = [(bytes(k), bytes(v)) for k, v in first["headers"]]
        return response


def make_application(
    folder: str,
    *,
    replicas: int = 2,
    folder_options: Mapping[str, Any] | None = None,
    engine_options: Mapping[str, Any] | None = None,
    server_options: Mapping[str, Any] | None = None,
    imbalance: int = 8,
    max_ongoing_requests: int = 256,
    actor_options: Mapping[str, Any] | None = None,
) -> Any:
    """For `ray.serve.run`: the model in a folder, which every node has at this path, behind an ingress.

    Options are arguments of `open_folder`, fields of `EngineOptions` and of `ServerOptions`. With the same `cache` the replicas of
    a machine share one compiled file, and with the same `cache_folder` the blocks that they leave there. `imbalance` is
    `PrefixRouter`'s. `actor_options` are Ray's of a replica: `{"num_cpus": 8}`. Raises ContractError for an option that clients
    would need to reach every replica by.
    """
    if (server_options or {}).get("load_adapters"):
        raise ContractError("load_adapters: a client would load them into one replica alone")
    router = RequestRouterConfig(request_router_class=PrefixRouter, request_router_kwargs={"imbalance": imbalance})
    engines = serve.deployment(
        EngineReplica,
        num_replicas=replicas,
        max_ongoing_requests=max_ongoing_requests,
        request_router_config=router,
        ray_actor_options=dict(actor_options or {}),
    )
    bound = engines.bind(folder, dict(folder_options or {}), dict(engine_options or {}), dict(server_options or {}))
    most = ServerOptions(**(server_options or {})).max_body_bytes
    return serve.deployment(Ingress, max_ongoing_requests=replicas * max_ongoing_requests).bind(bound, most)
