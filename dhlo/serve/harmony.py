"""Answers in OpenAI's harmony format (gpt-oss): messages of a header and a body, each on a channel, which are thoughts, calls of
tools, or what is said; https://cookbook.openai.com/articles/openai-harmony."""

from __future__ import annotations

import re
from typing import Final

from dhlo.serve.call_forms import Schemas, call_of
from dhlo.serve.replies import Part, Reader, safe_length

__all__ = ["FINAL", "MARKS", "HarmonyReader", "is_harmony"]

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
MARKS: Final = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)
"""Tokens that are to be seen in the text, though tokenizers call them special."""
FINAL: Final = f"{_CHANNEL}final{_MESSAGE}"
"""What begins a message that is said."""
_HEADS: Final = (_START, _CHANNEL)
_TO: Final = "to="
_BEGINS: Final = (*_HEADS, _MESSAGE)
_FUNCTIONS: Final = "functions."
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_ON: Final = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")


def is_harmony(template: str) -> bool:
    """Whether a chat template writes messages so."""
    return _CHANNEL in template and _MESSAGE in template


class HarmonyReader(Reader):
    """The parts of one choice's text, as it comes: what is on the channel `analysis` is thought, what is for a function of
    `schemas`, by name, is a call. A text without any mark is said as it is."""

    def __init__(self, schemas: Schemas | None = None) -> None:
        self._schemas = schemas or {}
        self._header = ""
        self._searched = 0  # so much of the text has no mark
        self._state = self._between

    def _between(self, last: bool) -> list[Part]:
        """Where a header may begin; the prompt has begun the first, up to its role."""
        text = self._text.lstrip()
        if text.startswith((*_BEGINS, _TO)):
            self._text, self._state = text, self._in_header
        elif text and (last or not any(mark.startswith(text) for mark in (*_BEGINS, _TO))):
            self._header, self._state = "", self._said
        elif last:
            self._text = ""
        return []

    def _in_header(self, last: bool) -> list[Part]:
        header = self._until((_MESSAGE,))
        if header is None:
            said = self._text if last and not self._text.startswith(_BEGINS) else ""
            self._text = "" if last else self._text  # a header that is cut short says nothing
            return [Part("content", said)]
        self._text = self._text[len(_MESSAGE) :]
        self._header = header[max(header.rfind(_START), 0) :]  # what is before has no message
        recipient = _RECIPIENT.search(self._header)
        self._state = self._said if recipient is None or recipient[1] == "all" else self._asked
        return []

    def _said(self, last: bool) -> list[Part]:
        """A body that is given as it comes."""
        channel = _ON.search(self._header)
        text = self._until((*_ENDS, *_HEADS))
        if text is not None:
            self._end()
        else:
            text = self._text[: len(self._text) if last else safe_length(self._text, (*_ENDS, *_HEADS))]
            self._text, self._searched = self._text[len(text) :], 0
        return [Part("reasoning" if channel is not None and channel[1] == "analysis" else "content", text)]

    def _asked(self, last: bool) -> list[Part]:
        """A body that is a call, if it can be read."""
        body = self._until((*_ENDS, *_HEADS))
        if body is None and not last:
            return []
        cut = body is None
        if body is None:
            body, self._text = self._text, ""
        self._end()
        recipient = _RECIPIENT.search(self._header)
        assert recipient is not None
        name = recipient[1].removeprefix(_FUNCTIONS)
        if name in self._schemas and (body.strip() or not cut):
            try:
                return [Part("call", call=call_of(name, body.strip() or {}))]
            except (ValueError, RecursionError):
                pass
        return [Part("content", self._header + _MESSAGE + body)]

    def _until(self, marks: tuple[str, ...]) -> str | None:
        """What stands before the first of some marks, which begins the text then; None: there is none yet."""
        found = [at for mark in marks if (at := self._text.find(mark, self._searched)) >= 0]
        if not found:
            self._searched = max(len(self._text) - max(map(len, marks)), 0)
            return None
        before, self._text, self._searched = self._text[: min(found)], self._text[min(found) :], 0
        return before

    def _end(self) -> None:
        """Behind a body: its mark goes, unless it begins the next header."""
        ends = next((mark for mark in _ENDS if self._text.startswith(mark)), "")
        self._text, self._state, self._searched = self._text[len(ends) :], self._between, 0
