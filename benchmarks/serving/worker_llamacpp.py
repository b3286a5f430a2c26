"""llama.cpp: `python -m benchmarks.serving.worker_llamacpp < trace.json`, with an interpreter that has llama-cpp-python.

Steps are made as llama.cpp's server makes them: a token of each sequence that decodes, then prompts in the order in which they
came, as far as there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.llamacpp import LlamaCpp, Token
from benchmarks.serving.stepping import serve

__all__: list[str] = []


@dataclass
class _Sequence:
    key: int
    ids: list[int]  # the prompt, then what was answered
    left: int
    done: int = 0  # of the ids


class _Slots:
    def __init__(self, given: dict[str, Any]) -> None:
        self._model = LlamaCpp(given["llamacpp"], given["threads"], given["max_step_tokens"])
        self._cache = given["precision"]
        self._free, self._running = list[int](), dict[int, _Sequence]()

    def begin(self, at_once: int, longest: int) -> None:
        self._model.open(at_once, longest, self._cache)
        self._free = list(range(at_once))

    def submit(self, key: int, prompt: list[int], tokens: int) -> None:
        self._running[self._free.pop()] = _Sequence(key, list(prompt), tokens)

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        batch, ends = list[Token](), list[int]()
        for slot, s in sorted(self._running.items(), key=lambda item: (len(item[1].ids) - item[1].done > 1, item[1].key)):
            most = min(len(s.ids), s.done + self._model.most - len(batch))
            batch += [(s.ids[i], i, slot, i + 1 == len(s.ids)) for i in range(s.done, most)]
            if most > s.done and most == len(s.ids):
                ends.append(slot)
            s.done = most
        return iter([self._next(slot, int(row.argmax())) for slot, row in zip(ends, self._model.decode(batch), strict=True)])

    def _next(self, slot: int, token: int) -> tuple[int, list[int], bool]:
        s = self._running[slot]
        s.ids.append(token)
        s.left -= 1
        if not s.left:
            self._model.forget(slot)
            del self._running[slot]
            self._free.append(slot)
        return s.key, [token], not s.left


if __name__ == "__main__":
    serve(_Slots)
