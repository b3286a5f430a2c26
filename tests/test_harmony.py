"""Answers in the harmony format: what is thought, said, and called, as it comes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dhlo.serve.harmony import MARKS, HarmonyReader, is_harmony
from dhlo.serve.replies import Part
from dhlo.serve.tokens import Tokenizer
from tests.serving import WORDS, byte_level
from tests.test_replies import PLAIN, Said, asked, client_of, read
from tests.test_server import events

SCHEMAS = {"f": {"properties": {"x": {"type": "integer"}}}}
THOUGHT = "<|channel|>analysis<|message|>Let me see.<|end|>"
F1 = ("call", ("f", {"x": 1}))
READ: dict[str, tuple[str, Said]] = {
    "thought and said": (
        f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        [("reasoning", "Let me see."), ("content", "It is 4.")],
    ),
    "said, whose end is none of the text": ("<|channel|>final<|message|> a <b |> \n", [("content", " a <b |> \n")]),
    "a call": (
        f'{THOUGHT}<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"x": 1}}<|call|>',
        [("reasoning", "Let me see."), F1],
    ),
    "a call to the role": ('<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>', [F1]),
    "a call at once": (' to=functions.f<|channel|>commentary<|message|>{"x": 1}', [F1]),
    "a call in thoughts": ('<|channel|>analysis to=functions.f<|message|>{"x": 1}<|call|>', [F1]),
    "no arguments": ("<|channel|>commentary to=functions.f<|message|><|call|>", [("call", ("f", {}))]),
    "two calls behind a preamble": (
        '<|channel|>commentary<|message|>I do two.<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{"x": 1}'
        '<|call|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{"x": 2}<|call|>',
        [("content", "I do two."), F1, ("call", ("f", {"x": 2}))],
    ),
    "an end that is missing": (
        "<|channel|>analysis<|message|>so<|start|>assistant<|channel|>final<|message|>b",
        [("reasoning", "so"), ("content", "b")],
    ),
    "to all": ("<|start|>assistant to=all<|channel|>final<|message|>b", [("content", "b")]),
    "no such tool": (
        "<|channel|>commentary to=functions.g<|message|>{}<|call|>",
        [("content", "<|channel|>commentary to=functions.g<|message|>{}")],
    ),
    "no JSON": (
        "<|channel|>commentary to=functions.f<|message|>{x<|call|>",
        [("content", "<|channel|>commentary to=functions.f<|message|>{x")],
    ),
    "half a surrogate pair": (
        r'<|channel|>commentary to=functions.f<|message|>{"x": "\ud83d"}<|call|>',
        [("content", r'<|channel|>commentary to=functions.f<|message|>{"x": "\ud83d"}')],
    ),
    "a header without a message": (
        "<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>b<|channel|>analysis<|message|>c",
        [("content", "b"), ("reasoning", "c")],
    ),
    "plain before a header": ("a <|channel|>final<|message|>b", [("content", "a b")]),
    "a call that is cut short": (
        "<|channel|>commentary to=functions.f<|message|>",
        [("content", "<|channel|>commentary to=functions.f<|message|>")],
    ),
    "plain": ("  plain\n", [("content", "  plain\n")]),
    "plain that begins like a recipient": ("to=b or not", [("content", "to=b or not")]),
    "a header that is cut short": ("<|channel|>ana", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize("what", READ)
def test_messages(what: str) -> None:
    """As a whole, and in parts of any length."""
    text, wanted = READ[what]
    for step in (1, 2, 3, 7, len(text) + 1):
        parts = [text[at : at + step] for at in range(0, len(text), step)]
        assert read(HarmonyReader(SCHEMAS), parts) == wanted


def test_what_isnt_a_mark_is_given_at_once() -> None:
    reader = HarmonyReader()
    assert reader.push("<|channel|>final<|message|>Hello") == [Part("content", "Hello")]
    assert reader.push(" <|e") == [Part("content", " ")]
    assert reader.push("g") == [Part("content", "<|eg")]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*MARKS, "analysis", "final", "assistant", " to=functions.f", "to=", '{"x": 1}', " ", "\n", "a", "<", "<|"]
        ),
        max_size=14,
    ),
    st.integers(0, 99),
)
def test_parts_are_those_of_the_whole(pieces: list[str], seed: int) -> None:
    text, r = "".join(pieces), random.Random(seed)
    whole = read(HarmonyReader(SCHEMAS), [text])
    parts, at = list[str](), 0
    while at < len(text):
        step = r.randrange(1, 9)
        parts.append(text[at : at + step])
        at += step
    assert read(HarmonyReader(SCHEMAS), parts) == whole


@pytest.mark.parametrize("text", ["<|channel|>commentary to=functions.f<|message|>" + "a" * 300_000, "to=" + "<|en" * 80_000])
def test_long_messages_take_a_time_that_grows_with_them_alone(text: str) -> None:
    """What grew with the square of these would take minutes."""
    parts = [text[at : at + 4] for at in range(0, len(text), 4)]
    assert read(HarmonyReader(SCHEMAS), parts) == [("content", text)]


# ------------------------------------------------------------------ over HTTP
@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    byte_level().save(str(path))
    return Tokenizer(path, WORDS)


def test_over_http(words: Tokenizer) -> None:
    template = PLAIN + "{# <|channel|> <|message|> #}"
    assert is_harmony(template) and not is_harmony(PLAIN)
    client = client_of(words, template)
    call = f'{THOUGHT}<|start|>assistant<|channel|>commentary to=functions.f<|message|>{{"x": 1}}<|call|>'
    (choice,) = client.post("/v1/chat/completions", json=asked(call)).json()["choices"]
    message: dict[str, Any] = choice["message"]
    assert (choice["finish_reason"], message["content"], message["reasoning_content"]) == ("tool_calls", None, "Let me see.")
    (made,) = message["tool_calls"]
    assert made["function"]["name"] == "f" and json.loads(made["function"]["arguments"]) == {"x": 1}
    said = f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>It is 4."
    chunks = events(client.post("/v1/chat/completions", json=asked(said, stream=True)).text)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert "".join(d.get("content", "") for d in deltas) == "It is 4."
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Let me see."
    (choice,) = client.post("/v1/chat/completions", json=asked(call, tool_choice="none")).json()["choices"]
    assert choice["finish_reason"] == "stop" and "to=functions.f" in choice["message"]["content"]


def test_held_answers_begin_as_what_is_said(words: Tokenizer) -> None:
    """The prompt has the header that a grammar doesn't let the model write."""
    client = client_of(words, PLAIN + "{# <|channel|> <|message|> #}")
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 20}
    plain = client.post("/v1/chat/completions", json=body).json()
    held = client.post("/v1/chat/completions", json=body | {"response_format": {"type": "regex", "regex": "ab"}}).json()
    assert held["choices"][0]["message"]["content"] == "ab"
    header = len(words.encode("<|channel|>final<|message|>", special=False))
    assert held["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + header
