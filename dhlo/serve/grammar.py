"""Structured output: JSON by a schema, regular expressions and grammars as masks of the tokens that may come next (llguidance)."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from dhlo.errors import ContractError
from dhlo.serve.tokens import Tokenizer

__all__ = ["Constraint", "Grammar", "Grammars"]

_LONGEST: Final = 1 << 18
# llguidance follows rules that lead to rules by recursion, some kilobytes each: as many as a text has room for.
_STACK: Final = 512 << 20
# It makes automata with a state a remainder, which its own limits don't see.
_MOST_REMAINDERS: Final = 100_000
_MULTIPLE: Final = re.compile(r'"multipleOf"\s*:\s*([-+.\deE]*)')
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
# Bound what compiling and a step take, in llguidance's own counts: some tens of milliseconds each.
_LIMITS: Final = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_grammar_size": 100_000,
}


@dataclass(frozen=True)
class Grammar:
    """What a text may be: `text` is a JSON schema, a regular expression, or a grammar in llguidance's form of Lark."""

    kind: Literal["json", "regex", "lark"]
    text: str

    @staticmethod
    def of_choices(choices: Sequence[str]) -> Grammar:
        """One of some texts."""
        return Grammar("lark", "start: " + " | ".join(json.dumps(c) for c in choices))


class Grammars:
    """Compiles grammars for the tokens of one model."""

    def __init__(self, tokenizer: Tokenizer, eos: Sequence[int]) -> None:
        self._tokenizer, self._eos = tokenizer, list(eos)
        self._lock, self._stack_lock = threading.Lock(), threading.Lock()
        self._compiled: Any = None

    def compile(self, grammar: Grammar) -> Constraint:
        """Raises ContractError for what is no grammar, or too large a one."""
        if not self._eos:
            raise ContractError("the model has no token that ends a text, by which structured output would end")
        try:
            import llguidance
        except ImportError as e:
            raise ContractError(f"structured output needs the library llguidance, which this server lacks: {e}") from None
        if len(grammar.text) > _LONGEST:
            raise ContractError(f"a grammar has at most {_LONGEST} characters")
        _check_multiples(grammar.text)
        with self._stack_lock:
            before = threading.stack_size(_STACK)
            try:
                deep = ThreadPoolExecutor(1, "dhlo-grammar")
                made = deep.submit(self._compile, llguidance, grammar)
            finally:
                threading.stack_size(before)
        with deep:
            return made.result()

    def _compile(self, llguidance: Any, grammar: Grammar) -> Constraint:
        matcher = llguidance.LLMatcher
        try:
            match grammar.kind:
                case "json":
                    text = matcher.grammar_from_json_schema(grammar.text)
                case "regex":
                    text = matcher.grammar_from_regex(grammar.text)
                case _:
                    text = matcher.grammar_from_lark(grammar.text)
            made = matcher(
                self._vocabulary(llguidance), text, log_level=0, limits=llguidance.LLParserLimits(verbose_errors=False, **_LIMITS)
            )
        except ValueError as e:
            raise ContractError(f"the grammar can't be compiled: {e}") from None
        if made.is_error():
            raise ContractError(f"the grammar can't be compiled: {made.get_error()[:500]}")
        return Constraint(made)

    def _vocabulary(self, llguidance: Any) -> Any:
        """The tokens as llguidance takes them; made when it is first needed, as large vocabularies take a while."""
        with self._lock:
            if self._compiled is None:
                words = llguidance.TokenizerWrapper(_Words(self._tokenizer, self._eos[0]))
                self._compiled = llguidance.LLTokenizer(words, n_vocab=len(self._tokenizer.vocabulary), eos_token=self._eos)
            return self._compiled


def _remainders(number: str) -> int:
    """Of an automaton that reads multiples of it digit by digit, at most."""
    try:
        sign, digits, exponent = Decimal(number).normalize().as_tuple()
    except InvalidOperation:
        return 1  # what is no number is refused as such
    if not isinstance(exponent, int) or exponent > 9:
        return _MOST_REMAINDERS + 1
    coefficient = int("".join(map(str, digits)))
    return max(coefficient * int(10 ** max(exponent, 0)), 1)


def _check_multiples(text: str) -> None:
    plain = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), text)
    if math.lcm(*map(_remainders, _MULTIPLE.findall(plain))) > _MOST_REMAINDERS:
        raise ContractError(f"multipleOf: numbers whose digits have a common multiple up to {_MOST_REMAINDERS} are taken")


class Constraint:
    """Which tokens may come next in each choice of a request, by what the choice has so far."""

    def __init__(self, matcher: Any) -> None:
        self._start = matcher
        self._choices: dict[int, tuple[Any, list[int]]] = {}

    def __call__(self, choice: int, tokens: Sequence[int], allowed: memoryview) -> None:
        """Clears the bits of tokens that may not follow `tokens`, those of the choice so far, in `allowed`: a bit a token, from
        the lowest bit of the first 32-bit number on. Raises ContractError where the grammar has become too complex."""
        matcher, seen = self._choices.setdefault(choice, (self._start.deep_copy(), []))
        common = min(len(seen), len(tokens))
        if seen[:common] != list(tokens[:common]):
            common = next(k for k in range(common) if seen[k] != tokens[k])
        if len(seen) > common:
            matcher.rollback(len(seen) - common)
        matcher.consume_tokens(list(tokens[common:]))
        seen[common:] = tokens[common:]
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise ContractError(f"structured output: {matcher.get_error()[:500]}")
        allowed.cast("B")[:] = mask[: allowed.nbytes].ljust(allowed.nbytes, b"\0")  # llguidance's may be a number longer


class _Words:
    """A vocabulary as `llguidance.TokenizerWrapper` takes it."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = eos, None
        special = tokenizer.special
        self.tokens = [special[k].encode() if k in special else b for k, b in enumerate(tokenizer.vocabulary)]
        self.special_token_ids = list(special)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)
