"""Answers in OpenAI's harmony format (gpt-oss): messages of a header and a body, each on a channel, which are thoughts, calls of
tools, or what is said; https://cookbook.openai.com/articles/openai-harmony."""

from __future__ import annotations

import re
from typing import Final

from dhlo.serve.call_forms import Schemas, call_of
from dhlo.serve.replies import Part, safe_length

__all__ = ["FINAL", "MARKS", "HarmonyReader", "is_harmony"]

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
MARKS: Final = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)
"""Tokens that are to be seen in the text, though tokenizers call them special."""
FINAL: Final = f"{_CHANNEL}final{_MESSAGE}"
"""What begins a message that is said."""
_BEGINS: Final = (_START, _CHANNEL, _MESSAGE)
_FUNCTIONS: Final = "functions."
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_ON: Final = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")


def is_harmony(template: str) -> bool:
    """Whether a chat template writes messages so."""
    return _CHANNEL in template and _MESSAGE in template


class HarmonyReader:
    """The parts of one choice's text, as it comes: what is on the channel `analysis` is thought, what is for a function of
    `schemas`, by name, is a call. A text without any mark is said as it is."""

    def __init__(self, schemas: Schemas | None = None) -> None:
        self._schemas = schemas or {}
        self._text, self._header = "", ""
        self._state = self._between

    def push(self, text: str, *, last: bool = False) -> list[Part]:
        """What this text adds; `last`: none follows."""
        self._text += text
        out = list[Part]()
        before: object = None
        while self._state != before:  # a state that stays waits for more
            before = self._state
            out += self._state(last)
        return [p for p in out if p.text or p.call is not None]

    def _between(self, last: bool) -> list[Part]:
        """Where a header may begin; the prompt has begun the first, up to its role."""
        text = self._text.lstrip()
        if text.startswith((*_BEGINS, "to=")):
            self._text, self._state = text, self._in_header
        elif text and (last or not any(mark.startswith(text) for mark in (*_BEGINS, "to="))):
            self._header, self._state = "", self._said
        elif last:
            self._text = ""
        return []

    def _in_header(self, last: bool) -> list[Part]:
        at = self._text.find(_MESSAGE)
        if at < 0:
            said = self._text if last and not self._text.startswith(_BEGINS) else ""
            self._text = "" if last else self._text  # a header that is cut short says nothing
            return [Part("content", said)]
        self._header, self._text = self._text[:at], self._text[at + len(_MESSAGE) :]
        recipient = _RECIPIENT.search(self._header)
        self._state = self._said if recipient is None or recipient[1] == "all" else self._asked
        return []

    def _said(self, last: bool) -> list[Part]:
        """A body that is given as it comes."""
        channel = _ON.search(self._header)
        end, after = self._end()
        text = self._text[: safe_length(self._text, (*_ENDS, _START)) if end is None and not last else end]
        self._text = self._text[len(text) :] if end is None else self._text[after:]
        if end is not None:
            self._state = self._between
        return [Part("reasoning" if channel is not None and channel[1] == "analysis" else "content", text)]

    def _asked(self, last: bool) -> list[Part]:
        """A body that is a call, if it can be read."""
        end, after = self._end()
        if end is None and not last:
            return []
        body, self._text = self._text[:end], "" if end is None else self._text[after:]
        self._state = self._between
        recipient = _RECIPIENT.search(self._header)
        assert recipient is not None
        name = recipient[1].removeprefix(_FUNCTIONS)
        if name in self._schemas:
            try:
                return [Part("call", call=call_of(name, body.strip() or "{}"))]
            except (ValueError, RecursionError):
                pass
        return [Part("content", self._header + _MESSAGE + body)]

    def _end(self) -> tuple[int | None, int]:
        """Where the body ends, and what follows begins; None: not yet."""
        found = [(at, at + len(mark)) for mark in _ENDS if (at := self._text.find(mark)) >= 0]
        if (at := self._text.find(_START)) >= 0:  # the next header's
            found.append((at, at))
        return min(found, default=(None, 0))
