"""The text form of size expressions: a grammar of numbers, names, calls and operators, read by descent. Nothing is evaluated."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import sympy
from torch.utils._sympy.functions import FloorDiv

__all__ = ["Function", "Reader"]

_NUMBER, _NAME, _MARK = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", r"[A-Za-z_]\w*", r"\*\*|//|<=|>=|[-+*/<>(),]"
_TOKEN = re.compile(rf"\s*(?:({_NUMBER})|({_NAME})|({_MARK}))", re.ASCII)
_BLANK = re.compile(r"\s*", re.ASCII)
_COMPARE: dict[str, Any] = {"<": sympy.StrictLessThan, "<=": sympy.LessThan, ">": sympy.StrictGreaterThan, ">=": sympy.GreaterThan}

_TERMS: dict[str, Any] = {"*": operator.mul, "/": operator.truediv, "//": FloorDiv}

# Far beyond what programs hold, and small enough that no text takes long or much memory to read.
_LENGTH, _TOKENS, _DEPTH = 1 << 16, 4096, 100
_ARGUMENTS = 64
_EXPONENT = 64  # of a power whose exponent is a number
_BITS = 256  # of an integer


@dataclass(frozen=True)
class Function:
    """A function of the grammar: what makes its expression, and how many arguments it takes (`most` None: any number).
    `grows`: the second argument says how much longer the result is than the first; `truth`: the arguments are conditions (of `ite`,
    the first)."""

    make: Callable[..., Any]
    least: int
    most: int | None
    grows: bool = False
    truth: bool = False


class Reader:
    """Reads texts of one grammar: `functions` by name, `constants` by name, and `symbol` for every other name."""

    def __init__(
        self, functions: Mapping[str, Function], constants: Mapping[str, sympy.Basic], symbol: Callable[[str], Any]
    ) -> None:
        self.functions, self.constants, self.symbol = functions, constants, symbol

    def read(self, text: str) -> Any:
        """The expression. Raises ValueError, which names the position, for what isn't in the grammar or beyond its limits."""
        if len(text) > _LENGTH:
            raise ValueError(f"not a size expression: {text[:40]!r}... has {len(text)} characters, at most {_LENGTH} are read")
        return _Descent(self, text).whole()


class _Descent:
    """One text being read: its tokens, and where in them the reader is."""

    def __init__(self, reader: Reader, text: str) -> None:
        self.reader, self.text = reader, text
        self.tokens: list[tuple[str, str, int]] = []  # kind (number, name or the operator itself), text, position
        at = 0
        while (end := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            m = _TOKEN.match(text, at)
            if m is None or len(self.tokens) >= _TOKENS:
                self.fail("too long" if m else f"unexpected {text[end]!r}", end)
            number, name, mark = m.groups()
            self.tokens.append(("number" if number else "name" if name else mark, number or name or mark, end))
            at = m.end()
        self.tokens.append(("end", "the end", len(text)))
        self.i, self.depth = 0, 0

    def fail(self, what: str, at: int) -> NoReturn:
        shown = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        raise ValueError(f"not a size expression: {shown!r} ({what} at character {at + 1})")

    def expect(self, kind: str) -> None:
        got, text, at = self.tokens[self.i]
        if got != kind:
            self.fail(f"expected {'the end' if kind == 'end' else repr(kind)}, got {text if got == 'end' else repr(text)}", at)
        self.i += 1

    def whole(self) -> Any:
        e = self.relation()
        self.expect("end")
        return e

    def relation(self) -> Any:
        """A sum, or one comparison of two."""
        self.depth += 1
        if self.depth > _DEPTH:
            self.fail("nested too deeply", self.tokens[self.i][2])
        e = self.sum()
        kind, _, at = self.tokens[self.i]
        if kind in _COMPARE:
            self.i += 1
            e = self.made(_COMPARE[kind], (self.number_like(e, at), self.number_like(self.sum(), at)), at)
        self.depth -= 1
        return e

    def sum(self) -> Any:
        terms = [self.term()]
        start = self.tokens[self.i][2]
        while (kind := self.tokens[self.i][0]) in ("+", "-"):
            at = self.tokens[self.i][2]
            self.i += 1
            term = self.number_like(self.term(), at)
            terms.append(-term if kind == "-" else term)
        return terms[0] if len(terms) == 1 else self.made(sympy.Add, (self.number_like(terms[0], start), *terms[1:]), start)

    def term(self) -> Any:
        e = self.factor()
        while (kind := self.tokens[self.i][0]) in ("*", "/", "//"):
            at = self.tokens[self.i][2]
            self.i += 1
            a, b = self.number_like(e, at), self.number_like(self.factor(), at)
            if kind != "*" and b == 0:
                self.fail("division by zero", at)
            e = self.made(_TERMS[kind], (a, b), at)
        return e

    def factor(self) -> Any:
        """A signed power; a sign binds more loosely than `**`."""
        negative = False
        while (kind := self.tokens[self.i][0]) in ("-", "+"):
            negative ^= kind == "-"
            self.i += 1
        at = self.tokens[self.i][2]
        e = self.atom()
        if self.tokens[self.i][0] == "**":
            self.i += 1
            sign = self.tokens[self.i][0] == "-"
            self.i += sign
            power = self.number_like(self.atom(), at)
            e = self.power(operator.pow, (self.number_like(e, at), -power if sign else power), at)
        return -self.number_like(e, at) if negative else e

    def atom(self) -> Any:
        kind, text, at = self.tokens[self.i]
        self.i += 1
        if kind == "number":
            if len(text) * 3 > _BITS:
                self.fail("a number that is too long", at)
            return sympy.Integer(int(text)) if text.isdecimal() else self.made(sympy.Float, (float(text),), at)
        if kind == "(":
            e = self.relation()
            self.expect(")")
            return e
        if kind != "name":
            self.fail(f"unexpected {text if kind == 'end' else repr(text)}", at)
        if self.tokens[self.i][0] == "(":
            return self.call(text, at)
        return self.reader.constants[text] if text in self.reader.constants else self.reader.symbol(text)

    def call(self, name: str, at: int) -> Any:
        function = self.reader.functions.get(name)
        if function is None:
            self.fail(f"there is no function {name!r}", at)
        self.i += 1
        args = [self.relation()]
        while self.tokens[self.i][0] == ",":
            self.i += 1
            args.append(self.relation())
        self.expect(")")
        if not function.least <= len(args) <= (function.most or _ARGUMENTS):
            self.fail(f"{name!r} doesn't take {len(args)} arguments", at)
        for k, a in enumerate(args):
            if function.truth and (k == 0 or name != "ite"):
                if not isinstance(a, sympy.logic.boolalg.Boolean) or a.is_Symbol:
                    self.fail(f"{name!r} wants a condition", at)
            elif name not in ("Eq", "Ne"):
                self.number_like(a, at)
        return (self.power if function.grows else self.made)(function.make, args, at)

    def number_like(self, e: Any, at: int) -> Any:
        """The expression, which mustn't be a condition."""
        if not isinstance(e, sympy.Expr):
            self.fail("a condition where a number is wanted", at)
        return e

    def power(self, make: Callable[..., Any], args: Sequence[Any], at: int) -> Any:
        """A power or a shift: only small numbers as exponents."""
        if args[1].is_number and not (args[1].is_finite and abs(args[1]) <= _EXPONENT):
            self.fail(f"an exponent beyond {_EXPONENT}", at)
        return self.made(make, args, at)

    def made(self, make: Callable[..., Any], args: Sequence[Any], at: int) -> Any:
        """An expression of its parts, if they fit together and make a number of no absurd length."""
        try:
            e = make(*args)
        except (ArithmeticError, AssertionError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
            self.fail(f"{error or type(error).__name__}", at)
        for n in (e, *e.args):
            if n.is_Rational and max(abs(n.p), n.q).bit_length() > _BITS or n.is_Float and float(n) and not 1e-300 < abs(n) < 1e300:
                self.fail("a number beyond all sizes", at)
            if n is sympy.nan or n is sympy.zoo or n.is_number and not n.is_extended_real:
                self.fail("not a real number", at)
        return e
