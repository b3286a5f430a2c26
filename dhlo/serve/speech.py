"""Recordings to text by a model of Whisper's kind: what its folder says, and which tokens may come when (Radford et al. 2022)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from dhlo.errors import CompileError, ContractError, ModelFileError
from dhlo.serve.log_mel import LogMel
from dhlo.serve.tokens import Tokenizer

__all__ = ["Rules", "Segment", "Speech", "SpeechTask"]

SpeechTask = Literal["transcribe", "translate"]

_TICK: Final = 0.02  # seconds between tokens of times
_FIRST_TICKS: Final = 50  # a first segment begins in the first second
_LANGUAGE: Final = re.compile(r"<\|([a-z]{2,3})\|>")
_MULTILINGUAL: Final = 51865  # tokens that multilingual vocabularies have at least

_Bits = NDArray[np.uint32]


@dataclass(frozen=True)
class Segment:
    """What is said from `start` to `end`, in seconds of the recording."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    avg_logprob: float | None = None
    """Of the tokens of the piece that it is in, times and end included, if that was asked for."""


@dataclass(frozen=True)
class Speech:
    """How a model is asked for the text of a piece of a recording. Fields but `features` and `size` are numbers of tokens."""

    features: LogMel
    size: int
    """Of the vocabulary."""
    begin: int
    end: int
    plain: int
    """Says that no times are wanted; those of times come behind it."""
    earlier: int | None
    """What is behind it was said before."""
    languages: Mapping[str, int]
    """By code; empty: of models for one language."""
    tasks: Mapping[SpeechTask, int]
    never: tuple[int, ...]
    """That no text has: special ones among them."""
    not_first: tuple[int, ...]
    """That no text begins with."""
    positions: int
    """Tokens of prompt and text together."""

    @staticmethod
    def of(
        said: Mapping[str, Any], path: Path, config: Mapping[str, Any], generation: Mapping[str, Any], tokenizer: Tokenizer
    ) -> Speech:
        """Of what preprocessor_config.json (`path`), config.json, generation_config.json and the tokenizer say. Raises CompileError
        and ModelFileError, which name what is missing."""
        if config.get("model_type") != "whisper":
            raise CompileError(f"'{path.parent}' holds a model of type {config.get('model_type')!r}; of speech, whisper is known")

        def number(word: str) -> int:
            found = tokenizer.number_of(word)
            if found is None or found >= len(tokenizer.vocabulary):
                raise ModelFileError(f"'{path.parent}': the tokenizer has no token {word}")
            return found

        size = len(tokenizer.vocabulary)
        multilingual = generation.get("is_multilingual", size >= _MULTILINGUAL)
        languages, tasks = dict[str, int](), dict[SpeechTask, int]()
        if multilingual:
            tasks = {"transcribe": number("<|transcribe|>"), "translate": number("<|translate|>")}
            between = range(number("<|startoftranscript|>") + 1, min(tasks.values()))
            languages = {m[1]: n for n in between if (m := _LANGUAGE.fullmatch(tokenizer.special.get(n, "")))}
            if not languages:
                raise ModelFileError(f"'{path.parent}': the tokenizer has no tokens of languages, such as <|en|>")
        return Speech(
            features=LogMel.of(said, path),
            size=size,
            begin=number("<|startoftranscript|>"),
            end=number("<|endoftext|>"),
            plain=number("<|notimestamps|>"),
            earlier=tokenizer.number_of("<|startofprev|>"),
            languages=languages,
            tasks=tasks,
            never=tuple({*_tokens(generation, config, "suppress_tokens", size), *tokenizer.special} - {number("<|endoftext|>")}),
            not_first=_tokens(generation, config, "begin_suppress_tokens", size),
            positions=int(config["max_target_positions"]),
        )

    def language_of(self, name: str | None) -> str | None:
        """A language's code; None, where the model is to find it out, or has one alone. Raises ContractError for one that it
        doesn't know."""
        if name is None or (not self.languages and name.lower() == "en"):
            return None
        if name.lower() not in self.languages:
            known = ", ".join(sorted(self.languages)) or "en"
            raise ContractError(f"language: the model doesn't know {name[:40]!r}; it knows {known}")
        return name.lower()

    def prompt(self, language: str | None, task: SpeechTask, times: bool, earlier: Sequence[int]) -> list[int]:
        """What a text begins with: what was said before, and as much of what `Rules` would have it say as is known. Raises
        ContractError for a translation by a model of one language."""
        if task == "translate" and not self.tasks:
            raise ContractError("the model knows one language, and translates nothing")
        before: list[int] = []
        if earlier and self.earlier is not None:
            before = [self.earlier, *earlier[-(self.positions // 2 - 1) :]]
        head = [self.begin]
        if not self.languages or language is not None:
            head += [] if language is None else [self.languages[language], self.tasks[task]]
            head += [] if times else [self.plain]
        return before + head

    def rules(self, language: str | None, task: SpeechTask, times: bool) -> Rules:
        """Of a text behind such a prompt."""
        forced: list[Sequence[int]] = []
        if self.languages and language is None:
            forced = [tuple(self.languages.values()), (self.tasks[task],), *([] if times else [(self.plain,)])]
        return Rules(self, forced, times)

    def language_in(self, tokens: Sequence[int]) -> str | None:
        """That a text says it is of, if it does."""
        return next((code for code, n in self.languages.items() if list(tokens[:1]) == [n]), None)

    @property
    def times(self) -> range:
        """Tokens of times, which are no part of a text."""
        return range(self.plain + 1, self.size)

    def is_time(self, token: int) -> bool:
        return token > self.plain

    def segments(self, tokens: Iterable[int], tokenizer: Tokenizer, offset: float, seconds: float) -> list[Segment]:
        """What a text with times says, of a piece of so many `seconds` that begins at `offset`."""
        out, start, mine = list[Segment](), 0.0, list[int]()

        def close(end: float) -> None:
            nonlocal start
            if text := tokenizer.decode(mine):
                out.append(Segment(offset + min(start, seconds), offset + min(max(start, end), seconds), text, tuple(mine)))
            mine.clear()
            start = end

        for token in tokens:
            if self.is_time(token):
                close(_TICK * (token - self.plain - 1))
            elif tokenizer.vocabulary[token]:
                mine.append(token)
        close(seconds)
        return out


def _tokens(generation: Mapping[str, Any], config: Mapping[str, Any], name: str, size: int) -> tuple[int, ...]:
    given = generation.get(name, config.get(name)) or []
    if not isinstance(given, list) or not all(type(t) is int and -1 <= t < size for t in given):
        raise ModelFileError(f"{name} is no list of tokens, of {size}")
    return tuple(t for t in given if t >= 0)


class Rules:
    """Which tokens may come next (`SamplingParams.constrain`): first those that say language, task and whether times are wanted, as
    far as the prompt doesn't; then those of a text. Times come in pairs, the end of a segment and the start of the next, and don't
    decrease. That a time comes where all of them together are likelier than any word, as in Whisper's own decoding, isn't asked:
    probabilities aren't known here."""

    def __init__(self, speech: Speech, forced: Sequence[Sequence[int]], times: bool) -> None:
        self._speech, self._times = speech, times
        self._forced = [_bits(_only(speech.size, tokens)) for tokens in forced]
        text = np.ones(speech.size, bool)
        text[list(speech.never)] = False
        if not times:
            text[speech.plain + 1 :] = False
        first = text.copy()
        first[list(speech.not_first)] = False
        text[speech.end] = True
        self._text, self._first = text, first

    def __call__(self, choice: int, tokens: Sequence[int], allowed: memoryview) -> None:
        """Clears the bits of tokens that may not follow `tokens` in `allowed`, 32 in each number."""
        bits = np.frombuffer(allowed, np.uint32)
        if len(tokens) < len(self._forced):
            mine = self._forced[len(tokens)]
        else:
            mine = _bits(self._next(tokens[len(self._forced) :]))
        bits[: len(mine)] &= mine
        bits[len(mine) :] = 0

    def _next(self, said: Sequence[int]) -> NDArray[np.bool_]:
        if not self._times:
            return self._text if said else self._first
        speech = self._speech
        can, start = self._text.copy(), speech.plain + 1
        if not said:
            can[:start] = False
            can[start + _FIRST_TICKS + 1 :] = False
            return can
        ended = speech.is_time(said[-1])
        opened = ended and (len(said) == 1 or speech.is_time(said[-2]))
        if opened:  # a segment has begun: words
            can[start:] = False
        elif ended:  # one has ended: the next one's start, or the end of all
            can[:start] = False
            can[speech.end] = True
        last = next((t for t in reversed(said) if speech.is_time(t)), speech.plain)
        can[start : last if ended and not opened else last + 1] = False
        return can


def _only(size: int, tokens: Sequence[int]) -> NDArray[np.bool_]:
    out = np.zeros(size, bool)
    out[list(tokens)] = True
    return out


def _bits(can: NDArray[np.bool_]) -> _Bits:
    """A bit a token, from the lowest of each number on."""
    packed = np.packbits(can, bitorder="little")
    out = np.zeros(-(-len(packed) // 4) * 4, np.uint8)
    out[: len(packed)] = packed
    return out.view(np.uint32)
