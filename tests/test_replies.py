"""What texts of chats are made of: thoughts, calls of tools, and what is said."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dhlo.serve.call_forms import FORCED, CallForm, call_form_of
from dhlo.serve.doors import ServerOptions
from dhlo.serve.replies import Part, Reader, ReplyReader, thinking_of
from dhlo.serve.server import make_app
from dhlo.serve.tokens import Tokenizer
from tests.serving import CHATML, WORDS, RuleEngine, byte_level, rule_served
from tests.test_server import TOOL, events, is_error

THINK = ("<think>", "</think>")
FORMS = {
    "tags": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "llama": "<|python_tag|>",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "kimi": "<|tool_calls_section_begin|>",
    "gemma": "<|tool_call>call:",
    "python": "<|tool_call_start|>",
    "phi": "<|/tool_call|>",
    "granite": "<|tool_call|>",
    "nemotron": "<TOOLCALL>",
    "seed": "<seed:tool_call>",
    "minimax": "<minimax:tool_call>",
}
CALL = '{"name": "f", "arguments": {"x": 1}}'
Said = list[tuple[str, Any]]


def form_of(name: str) -> CallForm:
    form = call_form_of(f"... {FORMS[name]} ...")
    assert form is not None
    return form


def read(reader: Reader, texts: Sequence[str]) -> Said:
    """The parts, those of a kind that stand behind each other as one."""
    out: Said = []
    parts = [p for t in texts for p in reader.push(t)] + reader.push("", last=True)
    for p in parts:
        what: Any = p.text if p.call is None else (p.call.name, json.loads(p.call.arguments))
        if p.kind != "call" and out and out[-1][0] == p.kind:
            out[-1] = (p.kind, out[-1][1] + what)
        else:
            out.append((p.kind, what))
    return out


F1, G2 = ("call", ("f", {"x": 1})), ("call", ("g", {"y": "2"}))
READ: dict[str, tuple[str | None, str, Said]] = {
    "no form": (None, f"<tool_call>{CALL}</tool_call>", [("content", f"<tool_call>{CALL}</tool_call>")]),
    "hermes": ("tags", f"\n<tool_call>\n{CALL}\n</tool_call>\n", [F1]),
    "behind text": ("tags", f"I look.\n\n<tool_call>\n{CALL}\n</tool_call>", [("content", "I look."), F1]),
    "two": ("tags", f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "g", "arguments": {{"y": "2"}}}}</tool_call>', [F1, G2]),
    "text behind": ("tags", f"<tool_call>{CALL}</tool_call>\nSo.", [F1, ("content", "So.")]),
    "cut short": ("tags", f"<tool_call>{CALL}", [F1]),
    "no call": ("tags", "<tool_call>{x</tool_call> y", [("content", "<tool_call>{x</tool_call> y")]),
    "cut in a call": ("tags", 'a <tool_call>{"name": "f", "argu', [("content", 'a <tool_call>{"name": "f", "argu')]),
    "arguments as text": ("tags", r'<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}</tool_call>', [F1]),
    "no arguments": ("tags", '<tool_call>{"name": "f"}</tool_call>', [("call", ("f", {}))]),
    "arguments that are none": (
        "tags",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [("content", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>')],
    ),
    "a coder's": (
        "tags",
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\n12\n</parameter>\n<parameter=t>\na\nb\n</parameter>\n"
        "</function>\n</tool_call>",
        [("call", ("f", {"x": 1, "s": "12", "t": "a\nb"}))],
    ),
    "GLM's": (
        "tags",
        "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
        [("call", ("f", {"x": 1, "s": "7"}))],
    ),
    "mistral's list": ("mistral", f"[TOOL_CALLS][{CALL}]", [F1]),
    "mistral's names": ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]a1[ARGS]{"y": "2"}', [F1, G2]),
    "mistral's text": ("mistral", "[TOOL_CALLS]and so on", [("content", "[TOOL_CALLS]and so on")]),
    "llama's": ("llama", '{"name": "f", "parameters": {"x": 1}}', [F1]),
    "llama's two": (
        "llama",
        '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {"y": "2"}}',
        [F1, G2],
    ),
    "llama's text": ("llama", 'It is {"name": 1}.', [("content", 'It is {"name": 1}.')]),
    "JSON that is no call": ("llama", '{"a": 1}', [("content", '{"a": 1}')]),
    "deep": ("tags", "<tool_call>" + "[" * 9999 + "</tool_call>", [("content", "<tool_call>" + "[" * 9999 + "</tool_call>")]),
}
READ |= {
    what: ("tags", f"<tool_call>{call}</tool_call>", [("content", f"<tool_call>{call}</tool_call>")])
    for what, call in {
        "half a surrogate pair": r'{"name": "f", "arguments": {"x": "\ud83d"}}',
        "half a pair as a name": r'{"name": "\ud83d", "arguments": {}}',
        "numbers that JSON doesn't have": '{"name": "f", "arguments": {"x": NaN}}',
        "numbers that are too large": '{"name": "f", "arguments": {"x": 1e999}}',
    }.items()
}
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
OLD = f'{BEGIN}function{SEP}f\n```json\n{{"x": 1}}\n```{END}'
NEW = f'{BEGIN}f{SEP}{{"x": 1}}{END}'
G = f'{BEGIN}g{SEP}{{"y": "2"}}{END}'
KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
ASKED = '<|tool_call_begin|>{}<|tool_call_argument_begin|>{{"x": 1}}<|tool_call_end|>'
READ |= {
    "deepseek's": ("deepseek", f"So.\n<｜tool▁calls▁begin｜>{OLD}<｜tool▁calls▁end｜>", [("content", "So."), F1]),
    "deepseek's later": ("deepseek", f"<｜tool▁calls▁begin｜>{NEW}{G}<｜tool▁calls▁end｜>", [F1, G2]),
    "deepseek's, cut short": ("deepseek", f"<｜tool▁calls▁begin｜>{NEW}", [F1]),
    "deepseek's, without a name": (
        "deepseek",
        f"<｜tool▁calls▁begin｜>{BEGIN}f{END}<｜tool▁calls▁end｜>",
        [("content", f"<｜tool▁calls▁begin｜>{BEGIN}f{END}<｜tool▁calls▁end｜>")],
    ),
    "deepseek's and no arguments": (
        "deepseek",
        f"<｜tool▁calls▁begin｜>{BEGIN}f{SEP}{END}<｜tool▁calls▁end｜>",
        [("call", ("f", {}))],
    ),
    "kimi's": ("kimi", KIMI.format(ASKED.format("functions.f:0")), [F1]),
    "kimi's, without what is around names": ("kimi", KIMI.format(ASKED.format("f") + ASKED.format("f:12")), [F1, F1]),
    "kimi's, without one": ("kimi", KIMI.format(""), [("content", KIMI.format(""))]),
}
PYTHON = "<|tool_call_start|>{}<|tool_call_end|>"
GEMMA = "<|tool_call>{}<tool_call|>"
GEMMAS = (
    'call:f{a:<|"|>it\'s "x", {y}<|"|>,b:[1,-2.5e1,true],c:{d:null, <|"|>e f<|"|>:<|"|><|"|>},g:"\\n"}',
    {"a": 'it\'s "x", {y}', "b": [1, -25.0, True], "c": {"d": None, "e f": ""}, "g": "\n"},
)
READ |= {
    "gemma's": ("gemma", "So." + GEMMA.format(GEMMAS[0]), [("content", "So."), ("call", ("f", GEMMAS[1]))]),
    "gemma's without arguments": ("gemma", GEMMA.format("call:f{}"), [("call", ("f", {}))]),
    "gemma's two": ("gemma", GEMMA.format("call:f{x:1}") + GEMMA.format('call:g{y:<|"|>2<|"|>}'), [F1, G2]),
    "python's": ("python", PYTHON.format("[f(x=1), g(y='2')]"), [F1, G2]),
    "python's, of deep literals": (
        "python",
        PYTHON.format("[f(x={'a': [1, None, -2.5]})]"),
        [("call", ("f", {"x": {"a": [1, None, -2.5]}}))],
    ),
    "python's of a module": ("python", PYTHON.format("a.b.f(x=1)"), [("call", ("a.b.f", {"x": 1}))]),
    "python's in JSON": ("python", PYTHON.format(f"[{CALL}]"), [F1]),
    "phi's": ("phi", f"<|tool_call|>{CALL}<|/tool_call|>", [F1]),
    "granite's": ("granite", f"So. <|tool_call|>[{CALL}]", [("content", "So."), F1]),
    "nemotron's": ("nemotron", f"<TOOLCALL>[{CALL}]</TOOLCALL>", [F1]),
    "seed's": ("seed", "<seed:tool_call>\n<function=f>\n<parameter=x>1</parameter>\n</function>\n</seed:tool_call>", [F1]),
    "minimax's": (
        "minimax",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">1</parameter>\n<parameter name="s">7</parameter>\n</invoke>\n'
        '<invoke name="g"></invoke>\n</minimax:tool_call>',
        [("call", ("f", {"x": 1, "s": "7"})), ("call", ("g", {}))],
    ),
}
GEMMAS_NONE = (
    *("call:f", "f{x:1}", "call:f{x}", "call:f{x:}", "call:f{x:1", "call:f{x:1}2", "call:f{x:1 y:2}", 'call:f{x:<|"|>a}'),
    "call:f" + "{a:" * 9999,
)
PYTHONS_NONE = (
    *("", "f", "f(1)", "f(**x)", "f(x=y)", "f(x={1, 2})", "f(x={[]: 1})", "f(x=1j)", "f(x='", "[f(x=1), 2]", "f(x=b'a')"),
    *("(" * 9999, "f(x=" + "-" * 9999 + "1)", "a" + ".b" * 9999 + "(1)", "f()()"),
)
NO_CALLS = {
    "gemma": GEMMAS_NONE,
    "python": PYTHONS_NONE,
    "phi": ("", "[]", "{"),
    "minimax": ("", '<invoke name="f">', "<invoke>"),
}
READ |= {
    f"{name}: no call {k}": (name, mark + text + close, [("content", mark + text + close)])
    for name, mark, close in (
        ("gemma", "<|tool_call>", "<tool_call|>"),
        ("python", "<|tool_call_start|>", "<|tool_call_end|>"),
        ("phi", "<|tool_call|>", "<|/tool_call|>"),
        ("minimax", "<minimax:tool_call>", "</minimax:tool_call>"),
    )
    for k, text in enumerate(NO_CALLS[name])
}
READ |= {
    "an open parameter": ("tags", "<tool_call><function=f><parameter=x>1</tool_call>", [("call", ("f", {}))]),
    "an open key": ("tags", "<tool_call>f<arg_key>x</tool_call>", [("call", ("f", {}))]),
}
SCHEMAS = {"f": {"properties": {"x": {"type": "integer"}, "s": {"type": "string"}}}}


@pytest.mark.parametrize("what", READ)
def test_calls(what: str) -> None:
    """As a whole, and in parts of any length."""
    name, text, wanted = READ[what]
    r = random.Random(0)
    for k in range(20):
        parts, at = list[str](), 0
        while at < len(text):
            step = len(text) if k == 0 else 1 if k == 1 else r.randrange(1, 12)
            parts.append(text[at : at + step])
            at += step
        reader = ReplyReader(None if name is None else form_of(name), THINK, schemas=SCHEMAS)
        assert read(reader, parts) == wanted
        thinking = ReplyReader(None if name is None else form_of(name), THINK, schemas=SCHEMAS)
        assert read(thinking, ["<think>\nwell", " \n", "</think>\n\n", *parts]) == [("reasoning", "well"), *wanted]


@pytest.mark.parametrize(
    "inside, text, wanted",
    [
        (False, "plain", [("content", "plain")]),
        (False, "  plain\n", [("content", "  plain\n")]),
        (False, "", []),
        (False, " <think> a <b </think> c", [("reasoning", "a <b"), ("content", "c")]),
        (False, "<think></think>c", [("content", "c")]),
        (False, "<think>never done", [("reasoning", "never done")]),
        (False, "c <think>d</think>", [("content", "c <think>d</think>")]),
        (False, "<thin", [("content", "<thin")]),
        (True, "a</think>c</think>", [("reasoning", "a"), ("content", "c</think>")]),
        (True, "a", [("reasoning", "a")]),
    ],
)
def test_thoughts(inside: bool, text: str, wanted: Said) -> None:
    for step in (1, 3, 100):
        parts = [text[at : at + step] for at in range(0, len(text), step)]
        assert read(ReplyReader(None, THINK, inside=inside), parts) == wanted


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([None, *FORMS, "forced"]),
    st.booleans(),
    st.lists(
        st.sampled_from([*FORMS.values(), *THINK, "</tool_call>", CALL, "[ARGS]", "{", "}", " ", "\n", "a", "<", "[TOOL"]),
        max_size=12,
    ),
    st.integers(0, 99),
)
def test_parts_are_those_of_the_whole(name: str | None, inside: bool, pieces: list[str], seed: int) -> None:
    text, r = "".join(pieces), random.Random(seed)
    form = FORCED if name == "forced" else None if name is None else form_of(name)
    whole = read(ReplyReader(form, THINK, inside=inside), [text])
    parts, at = list[str](), 0
    while at < len(text):
        step = r.randrange(1, 9)
        parts.append(text[at : at + step])
        at += step
    assert read(ReplyReader(form, THINK, inside=inside), parts) == whole
    if name is None and not inside and not text.lstrip().startswith(THINK[0]):
        assert whole == ([("content", text)] if text else [])


@pytest.mark.parametrize(
    "inner",
    [
        "<function=f>" + "\n" * 400_000 + "x",
        "<function=f><parameter=x>" + " " * 400_000,
        "<function=f>" + "<parameter=x>" * 40_000,
        "f" + "<arg_key>" * 40_000,
        CALL + ";" * 400_000 + "x",
    ],
)
def test_long_calls_take_a_time_that_grows_with_them_alone(inner: str) -> None:
    """What grew with the square of these would take minutes."""
    assert read(ReplyReader(form_of("tags")), [f"<tool_call>{inner}</tool_call>"])


def test_what_isnt_a_mark_is_given_at_once() -> None:
    reader = ReplyReader(form_of("tags"), THINK)
    assert reader.push("Hello") == [Part("content", "Hello")]
    assert reader.push(" <") == []
    assert reader.push("b") == [Part("content", " <b")]


def test_forms_of_templates() -> None:
    assert call_form_of("{{ messages }}") is None and thinking_of("{{ messages }}") is None
    assert thinking_of("{{ m.content.split('</think>') }}") == THINK
    assert thinking_of("[THINK][/THINK]") == ("[THINK]", "[/THINK]")
    for marks in (("<seed:think>", "</seed:think>"), ("<|channel>thought", "<channel|>")):
        assert thinking_of(" ".join(marks)) == marks
        assert read(ReplyReader(None, marks), [f"{marks[0]}\nso", f"\n{marks[1]}b"]) == [("reasoning", "so"), ("content", "b")]


def test_ids_that_models_give_calls() -> None:
    (part,) = ReplyReader(form_of("kimi")).push(KIMI.format(ASKED.format("functions.f:3")), last=True)
    assert part.call is not None and part.call.id == "functions.f:3"


# ------------------------------------------------------------------ over HTTP
@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    byte_level().save(str(path))
    return Tokenizer(path, WORDS)


PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"  # the engine says its prompt again


def client_of(words: Tokenizer, template: str) -> TestClient:
    app = make_app(RuleEngine(words.vocabulary), rule_served(words, template), ServerOptions(max_positions=512))
    return TestClient(app, raise_server_exceptions=False)


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": [TOOL], **more}


TEXT = f"<think>\nhmm\n</think>\n\nI look.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>"


def test_calls_over_http(words: Tokenizer) -> None:
    client = client_of(words, PLAIN + "{# <tool_call> </think> #}")
    (choice,) = client.post("/v1/chat/completions", json=asked(TEXT)).json()["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"], message["reasoning_content"]) == ("tool_calls", "I look.", "hmm")
    calls = message["tool_calls"]
    assert [(c["type"], c["function"]) for c in calls] == [("function", {"name": "f", "arguments": '{"x": 1}'})] * 2
    assert calls[0]["id"] != calls[1]["id"] and calls[0]["id"].startswith("call_")
    chunks = events(client.post("/v1/chat/completions", json=asked(TEXT, stream=True)).text)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert "".join(d.get("content", "") for d in deltas) == "I look."
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "hmm"
    told = [c for d in deltas for c in d.get("tool_calls", [])]
    assert [(c["index"], c["function"]["name"]) for c in told] == [(0, "f"), (1, "f")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    # Of calls side by side, where there are to be none, the first.
    one = asked(TEXT, parallel_tool_calls=False)
    (choice,) = client.post("/v1/chat/completions", json=one).json()["choices"]
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["f"] and choice["finish_reason"] == "tool_calls"
    chunks = events(client.post("/v1/chat/completions", json=one | {"stream": True}).text)
    assert [c["index"] for e in chunks for c in e["choices"][0]["delta"].get("tool_calls", [])] == [0]
    # Without tools, or where none is to be called, it is text.
    for body in (asked(TEXT, tool_choice="none"), {k: v for k, v in asked(TEXT).items() if k != "tools"}):
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert choice["finish_reason"] == "stop" and "<tool_call>" in choice["message"]["content"]
        assert "tool_calls" not in choice["message"]


def test_calls_alone_have_no_content(words: Tokenizer) -> None:
    client = client_of(words, PLAIN + "{# [TOOL_CALLS] #}")
    (choice,) = client.post("/v1/chat/completions", json=asked(f"[TOOL_CALLS][{CALL}]")).json()["choices"]
    assert choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"][0]["id"]) == 9


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}], ids=["required", "named"])
def test_answers_that_must_be_calls(words: Tokenizer, choice: Any) -> None:
    """The engine's rule takes the lowest tokens that a grammar allows."""
    client = client_of(words, CHATML + "{# <tool_call> </think> #}")
    x = {"$ref": "#/$defs/one"}
    parameters = {"type": "object", "properties": {"x": x}, "required": ["x"], "$defs": {"one": {"const": 7}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("f", "g")]
    body = asked("go", tools=tools, tool_choice=choice, max_tokens=200)
    (said,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    (call,) = said["message"]["tool_calls"]
    assert call["function"]["name"] in ("f", "g")[: 2 if choice == "required" else 1]
    assert json.loads(call["function"]["arguments"])["x"] == 7
    assert said["finish_reason"] == "tool_calls" and said["message"]["content"] is None
    is_error(client.post("/v1/chat/completions", json=body | {"ignore_eos": True}), 400, "ignore_eos")
    odd = {"type": "function", "function": {"name": "f", "parameters": {"$defs": [1]}}}
    is_error(client.post("/v1/chat/completions", json=body | {"tools": [odd]}), 400, r"\$defs of 'f' is an object")
    other = {"type": "function", "function": {"name": "h", "parameters": {"$defs": {"one": {"const": 8}}}}}
    answer = client.post("/v1/chat/completions", json=body | {"tools": [*tools, other], "tool_choice": "required"})
    is_error(answer, 400, "two of them define 'one'")
