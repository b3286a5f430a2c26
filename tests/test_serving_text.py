"""Tokens, text as it comes, and chat templates, beside the libraries that define them."""

from __future__ import annotations

import functools
import json
import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Plain
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from dhlo.errors import ContractError, ModelFileError
from dhlo.serve.chat import ChatTemplate
from dhlo.serve.grammar import Grammar, Grammars
from dhlo.serve.tokens import TextStream, Tokenizer
from tests.serving import CHATML, WORDS, byte_level, sentence_piece

TEXTS = ["The pass rests on blocks.", " a  b\n\n\tc", "größer 世界 🙂🏽 नमस्ते", "", "<0x41> ▁ Ġ", "\u0000\x7f\u00a0\ufffd"]


@pytest.fixture(scope="module", params=[byte_level, sentence_piece])
def tokenizer(request: Any, tmp_path_factory: Any) -> tuple[Plain, Tokenizer]:
    plain = request.param()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    plain.save(str(path))
    return plain, Tokenizer(path, WORDS)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_are_the_text(tokenizer: tuple[Plain, Tokenizer], text: str) -> None:
    plain, own = tokenizer
    ids = own.encode(text)
    assert ids == plain.encode(text).ids
    # What comes first in a text has a space before it in some vocabularies, which a prompt's continuation keeps.
    assert own.decode(ids) in (plain.decode(ids), " " + plain.decode(ids))


@pytest.mark.parametrize("seed", range(20))
def test_streams_give_whole_characters(tokenizer: tuple[Plain, Tokenizer], seed: int) -> None:
    """Any tokens, in pieces of any lengths: joined, the pieces are the text, and each by itself is the beginning of it."""
    _, own = tokenizer
    rng = random.Random(seed)
    ids = own.encode(rng.choice(TEXTS)) + [rng.randrange(WORDS) for _ in range(rng.randrange(40))]
    whole, stream, text, at = own.decode(ids), TextStream(own.vocabulary), "", 0
    while at < len(ids):
        n = rng.choice((0, 1, 1, 2, 5))
        text += stream.push(ids[at : at + n])
        at += n
        assert whole.startswith(text)
    assert text + stream.finish() == whole


def test_no_half_characters(tokenizer: tuple[Plain, Tokenizer]) -> None:
    _, own = tokenizer
    stream = TextStream(own.vocabulary)
    pieces = [stream.push([t]) for t in own.encode("🙂世")]
    assert len(pieces) > 2 and "\ufffd" not in "".join(pieces)
    assert "".join(pieces).strip() == "🙂世"


@pytest.mark.parametrize(
    ("stop", "with_stop", "want"), [("b", False, "xa"), ("cd", True, "xabcd"), ("z", False, "xabcd"), ("🙂", False, "xabcd")]
)
def test_text_ends_before_the_stop_string(stop: str, with_stop: bool, want: str) -> None:
    stream = TextStream([b"x", b"ab", b"cd"])
    assert stream.push([0]) == "x"
    assert "x" + stream.finish([1, 2], stop, with_stop=with_stop) == want


def test_special_tokens_have_no_bytes(tokenizer: tuple[Plain, Tokenizer]) -> None:
    _, own = tokenizer
    assert own.special and all(own.vocabulary[t] == b"" for t in own.special)
    assert [own.name_of(t) for t in own.special] == list(own.special.values())


def test_words_beyond_the_model(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "t.json"))
    few = Tokenizer(tmp_path / "t.json", 10)
    assert len(few.vocabulary) == 10
    with pytest.raises(ContractError, match="doesn't have"):
        few.encode("zebra")
    more = Tokenizer(tmp_path / "t.json", WORDS + 7)
    assert more.vocabulary[WORDS:] == (b"",) * 7


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.BPEDecoder(), decoders.CTC()])
def test_decoders_that_look_at_neighbours_are_refused(tmp_path: Path, decoder: Any) -> None:
    plain = Plain(models.WordLevel({"a": 0}, unk_token="a"))
    if decoder is not None:
        plain.decoder = decoder
    plain.save(str(tmp_path / "t.json"))
    with pytest.raises(ModelFileError, match=r"t\.json.*decoder"):
        Tokenizer(tmp_path / "t.json", 1)


@pytest.mark.parametrize("content", ["", "{}", "[1", '{"model": 3}'])
def test_no_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"t\.json"):
        Tokenizer(tmp_path / "t.json", 1)


# ------------------------------------------------------------------ chat templates
LLAMA2 = """\
{%- if messages[0].role == 'system' %}{% set system = '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' %}
{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{% for m in messages %}
    {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {% if m.role == 'user' %}{{ bos_token ~ '[INST] ' ~ (system if loop.first else '') ~ m.content.strip() ~ ' [/INST]' }}
    {% else %}{% generation %} {{ m.content }} {{ eos_token }}{% endgeneration %}{% endif %}
{% endfor %}"""
TOOLS = """\
{%- set ns = namespace(tools=0) %}
{% if tools %}
{% for tool in tools %}{% set ns.tools = ns.tools + 1 %}{{ tool | tojson(indent=2) }}
{% endfor %}
{{ ns.tools }} tools, from {{ documents is none }} {{ dict(a=1).a }}
{% endif %}
{% for m in messages %}
{% if m.role == 'skip' %}{% continue %}{% endif %}
{{ m.role }}: {{ m.content if m.content is defined else 'nothing' }}
{% if m.reasoning_content %} ({{ m.reasoning_content }}, {{ m.thinking }}){% endif %}

{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
{% endfor %}
{{ 'think' if enable_thinking else 'answer' }}{{ 'go' if add_generation_prompt }}"""
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"städte": {}}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"of": "<Zürich> & 'b'"}}}
CHATS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "one": ([{"role": "user", "content": " Hi <b>\n"}], None),
    "system": ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}], None),
    "turns": ([{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "世"))], None),
    "tools": (
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"},
            {"role": "tool", "content": "21", "tool_call_id": "1"},
            {"role": "skip", "content": "x"},
        ],
        [TOOL, TOOL],
    ),
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", [CHATML, LLAMA2, TOOLS], ids=["chatml", "llama2", "tools"])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": True}])
def test_templates_render_as_by_transformers(template: str, chat: str, variables: dict[str, Any]) -> None:
    messages, tools = CHATS[chat]
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level_once(), **special)
    ours = ChatTemplate({"default": template}, special)
    for go in (False, True):
        try:
            want = theirs.apply_chat_template(
                messages, tools, chat_template=template, tokenize=False, add_generation_prompt=go, **variables
            )
        except Exception as e:
            with pytest.raises(ContractError, match=str(e)):
                ours.render(messages, tools, add_generation_prompt=go, **variables)
        else:
            assert ours.render(messages, tools, add_generation_prompt=go, **variables) == want


byte_level_once = functools.cache(byte_level)


def test_arguments_of_calls_are_objects_and_their_text() -> None:
    """Templates differ in what they take them for (DeepSeek's add them to text)."""
    template = (
        "{% for c in messages[0].tool_calls %}{% set a = c.function.arguments %}"
        "{{ a | tojson }} {{ a is mapping }} {% for k, v in a | items %}{{ k }}={{ v }}{% endfor %}"
        " {{ 'x' + a + 'y' }} {{ a }}{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": {"z": "ü"}}}
    said = ChatTemplate({"default": template}).render([{"role": "assistant", "tool_calls": [call]}])
    assert said == '{"z": "ü"} True z=ü x{"z": "ü"}y {"z": "ü"}'


def test_harmony_takes_thoughts_and_content_of_calls_together() -> None:
    template = "<|channel|><|message|>{% for m in messages %}[{{ m.thinking }}|{{ m.content }}]{% endfor %}"
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    chat = ChatTemplate({"default": template})
    said = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    marks = "<|channel|><|message|>"
    assert chat.render([said, said | {"tool_calls": [call]}]) == f"{marks}[b|a][b\n\na|]"
    assert chat.render([said], held=True) == f"{marks}[b|a]<|channel|>final<|message|>"
    assert chat.render([said], held=True, add_generation_prompt=False) == f"{marks}[b|a]"


def test_templates_of_folders(tmp_path: Path) -> None:
    assert ChatTemplate.of_folder(tmp_path, {}) is None
    named = {"chat_template": [{"name": "default", "template": "d{{ bos_token }}"}, {"name": "tool_use", "template": "t"}]}
    chat = ChatTemplate.of_folder(tmp_path, named | {"bos_token": {"content": "<s>"}})
    assert chat is not None
    assert (chat.render([]), chat.render([], [TOOL])) == ("d<s>", "t")
    (tmp_path / "chat_template.jinja").write_text("file")
    chat = ChatTemplate.of_folder(tmp_path, {"chat_template": "x"})
    assert chat is not None and chat.render([]) == "file"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set n = namespace(__init__=1) %}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('no') }}",
        "{{ range(10**9) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_templates_stay_in_their_sandbox(template: str) -> None:
    """An error, or nothing: never a Python object."""
    try:
        text = ChatTemplate({"default": template}).render([{"role": "user", "content": "x"}])
    except ContractError as e:
        assert "chat template" in str(e)
    else:
        assert text == ""


def test_what_isnt_a_template(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="can't be read"):
        ChatTemplate({"default": "{% if %}"})
    for config in ({"chat_template": [1]}, {"chat_template": [{"name": "x", "template": "y"}]}):
        with pytest.raises(ModelFileError):
            ChatTemplate.of_folder(tmp_path, json.loads(json.dumps(config)))


# ------------------------------------------------------------------ grammars
@pytest.mark.parametrize("size", [WORDS, WORDS + 16, WORDS + 17])
def test_masks_are_as_long_as_the_vocabulary(tmp_path: Path, size: int) -> None:
    """Tokens that don't fit are cleared, and so are those that no text has; what goes back is followed, too."""
    byte_level().save(str(tmp_path / "t.json"))
    words = Tokenizer(tmp_path / "t.json", size)
    constraint = Grammars(words, [2]).compile(Grammar("regex", "(ab|é)c"))

    def allowed(tokens: list[int], choice: int = 0) -> set[str]:
        mask = array("I", [0xFFFFFFFF] * ((size + 31) // 32))
        constraint(choice, tokens, memoryview(mask))
        found = [t for t in range(32 * len(mask)) if mask[t // 32] >> t % 32 & 1]
        assert max(found) < size
        return {words.special.get(t) or words.vocabulary[t].decode("latin-1") for t in found}

    one = {words.name_of(t): t for t in range(WORDS)}
    assert allowed([]) <= {"a", "ab", "abc", "\xc3", "\xc3\xa9", "\xc3\xa9c"} and "a" in allowed([])
    assert "b" in allowed([one["a"]]) and allowed([one["a"], one["b"]], 1) == {"c"}
    assert allowed([one["a"], one["b"], one["c"]]) == {"<|im_end|>"}
    assert "b" in allowed([one["a"]])
    with pytest.raises(ContractError, match="structured output"):
        allowed([one["c"]])


def test_grammars_need_an_end(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "t.json"))
    with pytest.raises(ContractError, match="no token that ends a text"):
        Grammars(Tokenizer(tmp_path / "t.json", WORDS), []).compile(Grammar("regex", "a"))


def test_grammars_that_are_deep_or_take_for_ever(tmp_path: Path) -> None:
    """What would overflow a stack or make an automaton without end is compiled or refused."""
    byte_level().save(str(tmp_path / "t.json"))
    grammars = Grammars(Tokenizer(tmp_path / "t.json", WORDS), [2])
    chain = "".join(f"r{i}: r{i + 1}\n" for i in range(15_000))
    constraint = grammars.compile(Grammar("lark", f'start: r0\n{chain}r15000: "a"'))
    constraint(0, [], memoryview(array("I", [0xFFFFFFFF] * ((WORDS + 31) // 32))))
    with pytest.raises(ContractError, match="too deeply nested"):
        grammars.compile(Grammar("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000))
    grammars.compile(Grammar("json", '{"type": "number", "multipleOf": 0.01}'))
    for schema in (
        '{"type": "integer", "multipleOf": 1000003}',
        '{"type": "number", "multipleOf": 1.000003}',
        '{"type": "integer", "multipleOf": 1000003e400}',
        '{"allOf": [{"multipleOf": 997}, {"multiple\\u004ff": 1009}]}',
    ):
        with pytest.raises(ContractError, match="multipleOf"):
            grammars.compile(Grammar("json", schema))
