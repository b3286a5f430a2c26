"""ONNX Runtime GenAI: `python -m benchmarks.serving.worker_onnxruntime < trace.json`, with an interpreter that has it.

One stream is a generator. Several are its engine's, which on CPUs makes batches of four, the next when all of one are over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime_genai as genai

from benchmarks.serving.stepping import serve

__all__: list[str] = []


class _Model:
    def __init__(self, given: dict[str, Any]) -> None:
        config = genai.Config(given["onnxruntime"])
        options = {"intra_op_num_threads": given["threads"], "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = genai.Model(config)
        self._engine = genai.Engine(self._model)
        self._events = self._engine.create_event_buffer(256)
        self._keys = dict[Any, int]()
        self._generator: Any = None
        self._alone, self._key, self._left = False, 0, 0

    def begin(self, at_once: int, longest: int) -> None:
        self._alone = at_once == 1

    def submit(self, key: int, prompt: list[int], tokens: int) -> None:
        ids = np.array(prompt, np.int32)
        if self._alone:
            params = genai.GeneratorParams(self._model)
            length = len(prompt) + tokens
            params.set_search_options(do_sample=False, max_length=length, min_length=length)
            self._generator = genai.Generator(self._model, params)
            self._generator.append_tokens(ids)
            self._key, self._left = key, tokens
            return
        request = self._engine.create_request()
        options = genai.TurnOptions(request)
        options.set_do_sample(False)
        options.set_max_generated_tokens(tokens)
        options.set_min_generated_tokens(tokens)
        request.begin_turn(ids, options)
        self._keys[request] = key

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        if self._alone:
            self._generator.generate_next_token()
            self._left -= 1
            return iter([(self._key, [int(self._generator.get_next_tokens()[0])], not self._left)])
        return iter([self._told(event) for event in self._engine.run(self._events)])

    def _told(self, event: Any) -> tuple[int, list[int], bool]:
        flags, kinds = int(event.flags), genai.EngineEventFlags
        if flags & int(kinds.FAILED):
            raise RuntimeError(f"onnxruntime-genai: {event.error_code}")
        key, over = self._keys[event.request], bool(flags & int(kinds.TURN_FINISHED))
        if over:
            del self._keys[event.request]
            event.request.close()
        return key, [event.token] if flags & int(kinds.TOKEN) else [], over


if __name__ == "__main__":
    serve(_Model)
