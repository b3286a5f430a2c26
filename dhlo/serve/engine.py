"""The serving engine: takes requests at any time, and runs a compiled step over parts of many of them at once.

Requests are scheduled, computed and sampled by threads of the native engine (`runtime/serve/`). A thread of `requests.py` waits
for what they say, without Python's lock, and hands it on to whoever waits for a request, in threads or on event loops.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, SupportsIndex

from dhlo import _runtime
from dhlo.errors import ContractError
from dhlo.serve.adapters import Adapter, read_adapter
from dhlo.serve.native_arguments import (
    native_of,
    number_of,
    own_copy,
    pack_arrays,
    pack_params,
    size_or_zero,
    token_array,
    translated,
)
from dhlo.serve.requests import FINISHES, Request, Requests
from dhlo.serve.shards import communicator_of, peer_timeout
from dhlo.serve.stores import Store, WatchedStore
from dhlo.serve.types import EngineOptions, EngineStats, Output, SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from dhlo.model import CompiledModel

__all__ = ["Engine", "Request"]

_OPTIONS, _PARAMS = EngineOptions(), SamplingParams()  # the defaults


def _close(native: _runtime.Engine, dispatcher: threading.Thread) -> None:
    native.close()
    if dispatcher is not threading.current_thread():  # which may drop the last reference to an engine
        dispatcher.join()


def _digest(model: CompiledModel | _runtime.Model, options: EngineOptions) -> bytes:
    """What stands for the model and its encoder in their folder or store of blocks. Raises ContractError, and what
    `CompiledModel.digest` raises."""
    if options.cache_folder is None and options.cache_store is None:
        return b""
    if options.model_digest:
        if len(options.model_digest) != 32:
            raise ContractError(f"model_digest has 32 bytes, got {len(options.model_digest)}")
        return options.model_digest
    encoder = options.encoder
    if isinstance(model, _runtime.Model) or isinstance(encoder, _runtime.Model):
        kind = "cache_folder" if options.cache_folder is not None else "cache_store"
        raise ContractError(f"{kind} needs model_digest: blocks are of one model alone, which this one doesn't name")
    step = model.digest()
    if encoder is None or (other := encoder.digest()) == step:  # an entry of the same binary
        return step
    return hashlib.sha256(step + other).digest()


class Engine:
    """Serves a compiled step whose caches are pools of blocks (`dhlo.compile(step_program(model), pages=...)`).

    It is closed when it is no longer referenced, by `with`, or as Python exits. All methods may be called by any thread, but in the
    child of a fork, where they raise ContractError."""

    def __init__(self, model: CompiledModel | _runtime.Model, options: EngineOptions = _OPTIONS) -> None:
        """Raises ContractError for a model that is no such step, and for options out of range; MemoryError."""
        native = native_of(model, "an engine serves a compiled model")
        vocabulary, store = options.vocabulary, options.cache_store
        if store is not None and not isinstance(store, Store):
            raise ContractError(f"cache_store has methods put, get and remove, got {store!r}")
        if not isinstance(threads := options.cache_store_threads, SupportsIndex) or not 1 <= threads.__index__() <= 64:
            raise ContractError(f"cache_store_threads is from 1 to 64, got {threads!r}")
        try:
            offsets = array("q", accumulate(map(len, vocabulary), initial=0)) if vocabulary else array("q")
            self._native = _runtime.Engine(
                native,
                size_or_zero(options.cache_bytes, "cache_bytes"),
                options.max_step_tokens,
                size_or_zero(options.max_sequences, "max_sequences"),
                options.max_waiting,
                size_or_zero(options.max_positions, "max_positions"),
                token_array(options.eos_tokens, "eos_tokens"),
                b"".join(vocabulary),
                offsets,
                options.prefix_cache,
                options.prompt_lookup,
                options.cache_folder,
                options.cache_folder_bytes,
                _digest(model, options),
                None if options.draft_model is None else native_of(options.draft_model, "draft_model is a compiled model or None"),
                options.draft_tokens,
                options.draft_branches,
                size_or_zero(options.draft_cache_bytes, "draft_cache_bytes"),
                size_or_zero(options.draft_max_positions, "draft_max_positions"),
                None if store is None else WatchedStore(store),
                options.cache_store_threads,
                number_of(options.preemption, ("recompute", "swap"), "preemption"),
                size_or_zero(options.swap_bytes, "swap_bytes"),
                communicator_of(model, options.communicator),
                peer_timeout(options.peer_timeout),
                size_or_zero(options.evict_to, "evict_to"),
                options.evict_sinks,
                options.evict_recent,
                number_of(options.evict_by, ("recent", "norms"), "evict_by"),
                None if options.encoder is None else native_of(options.encoder, "encoder is a compiled model or None"),
                size_or_zero(options.max_source_positions, "max_source_positions"),
            )
        except (TypeError, ValueError, OverflowError, RuntimeError) as e:
            raise translated(e) from None
        self.options = options
        self._process = os.getpid()
        self._requests = Requests()
        dispatcher = threading.Thread(target=self._requests.dispatch, args=(self._native,), name="dhlo-engine", daemon=True)
        dispatcher.start()
        self._closer = weakref.finalize(self, _close, self._native, dispatcher)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams = _PARAMS, inputs: Mapping[str, Buffer] | None = None
    ) -> Request:
        """Takes a request, at once. `inputs`: what `EngineOptions.encoder` takes of it, by name: arrays in memory (numpy's, or
        whatever has a buffer), which are copied. Raises ContractError for what is out of range, and for a prompt that leaves no
        room for another token; QueueFullError if as many wait as may, and for an engine that is drained or closed."""
        self._need_this_process()
        try:
            tokens = token_array(prompt, "prompt")
            params = own_copy(params)
            request = Request(self, params, len(tokens))
            packed = (*pack_params(params), pack_arrays(inputs or {}))
            with self._requests.changed:  # so that there is no event before the request is known
                request.id = self._native.submit(tokens, *packed)
                self._requests.by_id[request.id] = request
        except (TypeError, ValueError, OverflowError, RuntimeError) as e:
            raise translated(e) from None
        return request

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] = _PARAMS,
        inputs: Sequence[Mapping[str, Buffer]] | None = None,
    ) -> list[Output]:
        """Submits all and waits for them; `params` for all or for each, `inputs` of each. Raises what `submit` raises, after the
        others are cancelled."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if len(each) != len(prompts):
            raise ContractError(f"params: one for each of {len(prompts)} prompts is needed, got {len(each)}")
        given = [None] * len(prompts) if inputs is None else inputs
        if len(given) != len(prompts):
            raise ContractError(f"inputs: those of each of {len(prompts)} prompts are needed, got {len(given)}")
        requests = list[Request]()
        try:
            for prompt, its, about in zip(prompts, each, given, strict=True):
                requests.append(self.submit(prompt, its, about))
            return [r.result() for r in requests]
        except BaseException:
            for r in requests:
                r.cancel()
            raise

    def load_adapter(self, name: str, adapter: Adapter | str | os.PathLike[str]) -> None:
        """Gives a step that was compiled with `lora` an adapter, or that of a folder as PEFT writes it, by a name that none has;
        requests may go on meanwhile.

        Raises what `read_adapter` does; ContractError for what the step wasn't compiled for: modules, sizes, ranks; QueueFullError
        if there are as many as it has room for.
        """
        self._need_this_process()
        given = adapter if isinstance(adapter, Adapter) else read_adapter(Path(adapter))
        try:
            self._native.load_adapter(name, tuple(tuple(getattr(p, f.name) for f in fields(p)) for p in given.pairs))
        except (TypeError, ValueError, OverflowError, RuntimeError) as e:
            raise translated(e) from None

    def unload_adapter(self, name: str) -> None:
        """No more requests can have it. Those that do end as they would, and its room is free then. Raises ContractError if there
        is none of that name."""
        self._need_this_process()
        try:
            self._native.unload_adapter(name)
        except (TypeError, ValueError) as e:
            raise translated(e) from None

    def stats(self) -> EngineStats:
        """What it has done and holds, as of the last step."""
        self._need_this_process()
        stats = self._native.stats()
        finished = {f.value: n for f, n in zip(FINISHES, stats["finished"], strict=True) if f is not None}
        given_tiers = {"folder": self.options.cache_folder, "store": self.options.cache_store}
        tiers = {name: stats[name] for name, tier in given_tiers.items() if tier is not None}
        given = {f.name: stats[f.name] for f in fields(EngineStats) if f.name in stats}
        failure = stats["failure"] or self._requests.failure
        return EngineStats(**given | {"finished": finished, "tiers": tiers, "failure": failure})

    def drain(self, timeout: float | None = None) -> bool:
        """Takes no more requests, and waits, at most `timeout` seconds, until those in work have ended; whether they have."""
        self._need_this_process()
        begin = time.monotonic()
        try:
            ended = self._native.drain(-1.0 if timeout is None else max(timeout, 0.0))
        except (TypeError, ValueError) as e:  # or a grammar calls it
            raise translated(e) from None
        if not ended:
            return False
        rest = None if timeout is None else max(begin + timeout - time.monotonic(), 0.0)
        requests = self._requests
        with requests.changed:  # until they know it
            return requests.changed.wait_for(lambda: not requests.by_id, rest)

    def close(self) -> None:
        """Cancels what is left, ends the engine's threads, and writes what is kept to the folder or store of blocks, if there is
        one, for 5 seconds at most. Raises ContractError if a grammar calls it, which these threads run."""
        try:
            self._native.close()
        except ValueError as e:
            raise translated(e) from None
        self._closer()

    def _need_this_process(self) -> None:
        if os.getpid() != self._process:  # locks may be as another thread held them then
            raise ContractError("the engine belongs to the process that forked this one: make another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
