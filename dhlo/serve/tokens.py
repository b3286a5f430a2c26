"""Text to tokens and back: a folder's tokenizer, the bytes of each token, and text as tokens come."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

from dhlo.errors import ContractError, ModelFileError
from dhlo.serve.types import Event, FinishReason

__all__ = ["TextStream", "Tokenizer"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """The tokenizer of a folder, whose tokens are bytes of text each, whatever stands beside them.

    `vocabulary` holds the bytes of every token, by its number: none of special tokens, which aren't part of the text, and of
    numbers that the model has but the tokenizer doesn't.
    """

    def __init__(self, path: Path, size: int) -> None:
        """`size` is that of the model's vocabulary. Raises ModelFileError, naming what isn't as it should be."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the library raises Exception itself
            raise ModelFileError(f"'{path}' can't be read as a tokenizer: {e}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        words = self._tokenizer.get_vocab(with_added_tokens=True)
        to_bytes = _bytes_of_words(self._tokenizer.decoder, path)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special: dict[int, str] = {n: t.content for n, t in added.items() if t.special and n < size}
        """Special tokens by number, as they are written."""
        table = [b""] * size
        for word, number in words.items():
            if number < size and number not in self.special:  # some tokenizers have more words than their model
                table[number] = to_bytes(word)
        self.vocabulary = tuple(table)

    def show(self, words: Iterable[str]) -> None:
        """Makes special tokens part of a text, as they are written: marks that say what stands behind them."""
        table = list(self.vocabulary)
        for word in words:
            number = self.number_of(word)
            if number in self.special:
                table[number] = word.encode()
        self.vocabulary = tuple(table)

    def empty(self, tokens: Iterable[int]) -> None:
        """Makes none of these part of a text, such as tokens of times."""
        table = list(self.vocabulary)
        for token in tokens:
            table[token] = b""
        self.vocabulary = tuple(table)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; `special`: with those that the tokenizer puts around it. What is written like a special token
        becomes one. Raises ContractError for text that isn't Unicode (half of a surrogate pair), or has words that the model's
        vocabulary doesn't."""
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        except (UnicodeError, TypeError) as e:
            raise ContractError(f"the text can't be encoded: {e}") from None
        if max(ids, default=0) >= len(self.vocabulary):
            word = self._tokenizer.id_to_token(max(ids))
            raise ContractError(f"the text has {word!r}, which the model's vocabulary doesn't have")
        return ids

    def number_of(self, word: str) -> int | None:
        """The number of a token by how it is written; None if there is none."""
        number: int | None = self._tokenizer.token_to_id(word)
        return number

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without special ones; what isn't UTF-8 becomes U+FFFD. Tokens out of range raise IndexError."""
        return b"".join(map(self.vocabulary.__getitem__, tokens)).decode("utf-8", "replace")

    def name_of(self, token: int) -> str:
        """A token by itself, as it is shown: the text of its bytes, or how it is written if it is special."""
        return self.special.get(token) or self.vocabulary[token].decode("utf-8", "replace")


class TextStream:
    """The text of tokens as they come: what is given out is whole characters, and joined it is the text of all tokens.

    `ending` are tokens that end a text and are none of it."""

    def __init__(self, vocabulary: Sequence[bytes], ending: Collection[int] = ()) -> None:
        self._vocabulary, self._ending = vocabulary, ending
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, event: Event, *, with_stop: bool = False) -> str:
        """The text that an event of the choice completes; `with_stop`: with the stop string that ends it."""
        if event.finish is None:
            return self.push(event.tokens)
        ended = event.finish is FinishReason.STOP and event.stop is None and event.tokens and event.tokens[-1] in self._ending
        return self.finish(event.tokens[:-1] if ended else event.tokens, event.stop, with_stop=with_stop)

    def push(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return self._decoder.decode(b"".join(map(self._vocabulary.__getitem__, tokens)))

    def finish(self, tokens: Iterable[int] = (), stop: str | None = None, *, with_stop: bool = False) -> str:
        """The text that ends with these tokens: the last ones, or those among which is the stop string, before which (or behind,
        `with_stop`) the text ends. A character that isn't whole becomes U+FFFD."""
        data = b"".join(map(self._vocabulary.__getitem__, tokens))
        if stop is not None:
            found = data.find(stop.encode())
            if found >= 0:
                data = data[: found + (len(stop.encode()) if with_stop else 0)]
        return self._decoder.decode(data, final=True)


@cache
def _byte_level() -> dict[int, int]:
    """What the characters of byte-level vocabularies (Radford et al. 2019) are in Latin-1, where those of bytes are bytes. Other
    characters below 256 become one that Latin-1 doesn't have."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return dict.fromkeys(others, 0x100 + len(others)) | {256 + n: b for n, b in enumerate(others)}


def _of_byte_level(word: str) -> bytes:
    try:
        return word.translate(_byte_level()).encode("latin-1")
    except UnicodeEncodeError:  # an added token with other characters is text
        return word.encode()


def _bytes_of_words(decoder: Any, path: Path) -> Callable[[str], bytes]:
    """What makes the bytes of a token out of its word, as the tokenizer's decoder says. Raises ModelFileError for decoders for
    which that depends on the tokens beside it."""
    parts = [] if decoder is None else _flat(json.loads(decoder.__getstate__()))
    kinds = [p["type"] for p in parts]
    if kinds == ["ByteLevel"]:
        return _of_byte_level
    replaced = list[tuple[str, str]]()
    for part in parts:
        match part:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replaced.append((old, new))
            case {"type": "Metaspace", "replacement": str(old)}:
                replaced.append((old, " "))
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Strip"} if "Fuse" in kinds[: parts.index(part)]:  # of the whole text, whose beginning is the prompt
                pass
            case _:
                replaced.clear()
                break
    if not replaced:
        what = " and ".join(dict.fromkeys(kinds)) or "none"
        raise ModelFileError(
            f"'{path}' has a decoder (type {what}) that isn't known: ByteLevel, Metaspace, or Replace with ByteFallback are"
        )
    fallback = "ByteFallback" in kinds

    def of(word: str) -> bytes:
        if fallback and (byte := _BYTE.fullmatch(word)):
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            word = word.replace(old, new)
        return word.encode()

    return of


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for inner in decoder["decoders"] for part in _flat(inner)]
