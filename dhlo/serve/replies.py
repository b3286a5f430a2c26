"""What the text of a chat's answer is made of, as it comes: what is said, what was thought before, and calls of tools."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from dhlo.serve.call_forms import CallForm, Schemas, ToolCall

__all__ = ["Part", "Reader", "ReplyReader", "safe_length", "thinking_of"]


@dataclass(frozen=True)
class Part:
    """New text of one kind, or a call."""

    kind: Literal["content", "reasoning", "call"]
    text: str = ""
    call: ToolCall | None = None


_THINKING: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
)


def thinking_of(template: str) -> tuple[str, str] | None:
    """What stands around thoughts by a chat template, if it knows any."""
    return next((marks for marks in _THINKING if marks[1] in template), None)


class Reader(ABC):
    """Takes one choice's text apart, as it comes. `_state` takes what it can of `_text`, knowing whether no more follows, and may
    give way to another."""

    _text = ""
    _state: Callable[[bool], list[Part]]

    def push(self, text: str, *, last: bool = False) -> list[Part]:
        """What this text adds; `last`: none follows."""
        self._text += text
        out = list[Part]()
        before: object = None
        while self._state != before:  # a state that stays waits for more
            before = self._state
            out += self._state(last)
        return [p for p in out if p.text or p.call is not None]


class ReplyReader(Reader):
    """The parts of one choice's text, as it comes. Joined they are the text, without marks, but for what stands before and behind
    these: empty lines."""

    def __init__(
        self,
        form: CallForm | None = None,
        thinking: tuple[str, str] | None = None,
        *,
        inside: bool = False,
        schemas: Schemas | None = None,
    ) -> None:
        """`inside`: the prompt has begun the thoughts. `schemas`: of tools' arguments, by their names."""
        self._form, self._thinking, self._schemas = form, thinking, schemas or {}
        self._gap, self._opened = "", ""
        self._thought = self._called = False
        self._state = self._thoughts if inside and thinking is not None else self._start

    def _start(self, last: bool) -> list[Part]:
        text = self._text.lstrip()
        marks = [] if self._thinking is None else [self._thinking[0]]
        opens = [] if self._form is None or self._form.anywhere else list(self._form.opens)
        for mark in (*marks, *opens):
            if text.startswith(mark):
                self._text = text
                if mark in marks:
                    self._take(len(mark))
                    self._state = self._thoughts
                else:
                    self._open(mark)
                return []
        if last or not (marks or opens) or (text and not any(mark.startswith(text) for mark in (*marks, *opens))):
            self._state = self._plain
        return []

    def _thoughts(self, last: bool) -> list[Part]:
        assert self._thinking is not None
        mark = self._thinking[1]
        if not self._thought:
            self._text = self._text.lstrip()
        at = self._text.find(mark)
        end = at if at >= 0 else len(self._text) if last else safe_length(self._text, (mark,))
        thought = self._take(len(self._text[:end].rstrip()))
        self._thought = self._thought or bool(thought)
        if at >= 0:
            self._text = self._text.lstrip()[len(mark) :]
            self._thinking, self._state = None, self._after
        return [Part("reasoning", thought)]

    def _after(self, last: bool) -> list[Part]:
        """Behind thoughts and calls: empty lines are none of the answer."""
        self._text = self._text.lstrip()
        if self._text or last:
            self._state = self._plain if self._called else self._start
        return []

    def _plain(self, last: bool) -> list[Part]:
        form = self._form
        opens = form.opens if form is not None and form.anywhere else ()
        found = [(at, mark) for mark in opens if (at := self._text.find(mark)) >= 0]
        if not found:  # empty lines before a call are none of the answer
            end = len(self._text) if last else len(self._text[: safe_length(self._text, opens)].rstrip() if opens else self._text)
            return [Part("content", self._take(end))]
        at, mark = min(found)
        said = Part("content", self._take(len(self._text[:at].rstrip())))
        self._gap = self._take(self._text.find(mark))
        self._open(mark)
        return [said]

    def _open(self, mark: str) -> None:
        assert self._form is not None
        self._opened = "" if self._form.keeps else self._take(len(mark))
        self._state = self._call

    def _call(self, last: bool) -> list[Part]:
        form = self._form
        assert form is not None
        at = self._text.find(form.close) if form.close is not None else -1
        if at < 0 and not last:
            return []
        inner = self._take(at if at >= 0 else len(self._text))
        closed = self._take(len(form.close or "")) if at >= 0 else ""
        try:
            out = [Part("call", call=call) for call in form.read(inner.strip(), self._schemas)]
            self._called, self._state = True, self._after
        except (ValueError, RecursionError):  # no call: text like any other
            out = [Part("content", self._gap + self._opened + inner + closed)]
            self._state = self._plain
        return out

    def _take(self, count: int) -> str:
        taken, self._text = self._text[:count], self._text[count:]
        return taken


def safe_length(text: str, marks: Iterable[str]) -> int:
    """How much of a text is certainly before any mark: all but an end that may begin one."""
    longest = (k for mark in marks for k in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:k]))
    return len(text) - max(longest, default=0)
