"""Mutations of texts, arrays and command lines, and worker processes that try them under limits of time and memory."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
from collections.abc import Callable, Sequence

__all__ = ["Mutator", "attempt", "mutated_bytes", "smaller"]

_SECONDS, _BYTES = 30, 6 << 30  # for each case; beyond what the process has when it begins
_TYPE = re.compile(r"tensor<[^<>]*(?:#dhlo\.shape<\[[^\]]*\]>)?>|![a-z]\w*")
_LIST = re.compile(r"(?<==) ?(\[[^\]]*\]|\"[^\"]*\"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|true|false)")
_VALUE = re.compile(r"%[\w#]+")
_NUMBER = re.compile(r"(?<![\w%#])-?\d+")
_STRING = re.compile(r'"[^"\n]*"')
_LINE = re.compile(r'( *)(%\w+) = ("dhlo\.\w+")\(([^()]*)\)((?: \{.*\})?) : \(([^()]*)\) -> (tensor<.*>)$')
_ARGUMENT = re.compile(rf"(%\w+): ({_TYPE.pattern})")
_OP = re.compile(r'"dhlo\.\w+"')
_ODD = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "2147483648",
    "4611686018427387904",
    "9223372036854775807",
    "99999999999999999999",
    "true",
    '"s0"',
    "[]",
    "[0]",
    "[0, 0]",
    '["0"]',
    "1.5",
    "{}",
    "9" * 300,
]
_TEXTS = [
    '""',
    "\"__import__('os').system('true')\"",
    '"n"',
    '"-1"',
    '"9**9**9"',
    '"pow(2, 1000000000)"',
    '"n / 0"',
    '"mod(n, 0)"',
    '"max(n, 2)"',
    '"n < 2"',
    '"nan"',
    '"1e999"',
    '"u0"',
    '"' + "(" * 3000 + '"',
    '"' + "n+" * 5000 + 'n"',
    '"ite(n < 2, 1, n)"',
]


class Mutator:
    """Makes texts of modules from good ones: exchanges, drops and repeats their parts, or changes characters."""

    def __init__(self, texts: Sequence[str], rng: random.Random) -> None:
        self.texts, self.rng = texts, rng
        whole = "\n".join(texts)
        self.parts = {p: sorted(set(p.findall(whole))) for p in (_TYPE, _LIST, _OP, _STRING)}
        self.lines = sorted(set(whole.splitlines()))
        self.ops = sorted({m.groups() for line in self.lines if (m := _LINE.match(line))})
        self.count = 0

    def make(self) -> str:
        text = self.rng.choice(self.texts)
        ways = [Mutator._insert] if self.rng.random() < 0.5 else self._ways  # those keep most texts valid
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 6))):
            text = self.rng.choice(ways)(self, text)
        return text

    def _insert(self, text: str) -> str:
        """An op like one of the texts', of values that there are, with their types; and perhaps a reader of it."""
        lines = text.splitlines()
        places = [i for i, line in enumerate(lines) if _LINE.match(line)]
        if not places:
            return text
        at = self.rng.choice(places)
        values = [m for line in lines[:at] for m in _ARGUMENT.findall(line)]
        values += [(m[2], m[7]) for line in lines[:at] if (m := _LINE.match(line))]
        if not values:
            return text
        _, _, name, operands, attributes, types, result = self.rng.choice(self.ops)
        chosen = []
        for t in _TYPE.findall(types) if operands else []:
            alike = [v for v in values if v[1] == (chosen[0][1] if chosen and self.rng.random() < 0.7 else t)]
            alike = alike or [v for v in values if v[1].count("x") == t.count("x")]
            chosen.append(self.rng.choice(alike if alike and self.rng.random() < 0.9 else values))
        result = self.rng.choice([result, *(t for _, t in chosen), *(t for _, t in chosen)])
        if self.rng.random() < 0.2:
            attributes = self._swap(attributes, _NUMBER, _ODD)
        self.count += 1
        new = f"%new{self.count}"
        names, given = ", ".join(v for v, _ in chosen), ", ".join(t for _, t in chosen)
        lines.insert(at, f"    {new} = {name}({names}){attributes} : ({given}) -> {result}")
        readers = [i for i, line in enumerate(lines) if i > at and (m := _LINE.match(line)) and result in _TYPE.findall(m[6])]
        if readers:
            i = self.rng.choice(readers)
            m = _LINE.match(lines[i])
            inputs = [v.strip() for v in m[4].split(",")]  # type: ignore[index]
            inputs[_TYPE.findall(m[6]).index(result)] = new  # type: ignore[index]
            lines[i] = lines[i][: m.start(4)] + ", ".join(inputs) + lines[i][m.end(4) :]  # type: ignore[union-attr]
        return "\n".join(lines)

    def _swap(self, text: str, pattern: re.Pattern[str], others: Sequence[str]) -> str:
        found = list(pattern.finditer(text))
        if not found or not others:
            return text
        m = self.rng.choice(found)
        return text[: m.start()] + self.rng.choice(others) + text[m.end() :]

    def _type(self, text: str) -> str:
        return self._swap(text, _TYPE, self.parts[_TYPE])

    def _op(self, text: str) -> str:
        return self._swap(text, _OP, self.parts[_OP])

    def _attribute(self, text: str) -> str:
        return self._swap(text, _LIST, self.parts[_LIST] + _ODD + _TEXTS)

    def _value(self, text: str) -> str:
        return self._swap(text, _VALUE, _VALUE.findall(text))

    def _number(self, text: str) -> str:
        return self._swap(text, _NUMBER, _ODD)

    def _string(self, text: str) -> str:
        return self._swap(text, _STRING, self.parts[_STRING] + _TEXTS)

    def _everywhere(self, text: str) -> str:
        """One type for another wherever it is, so that more than one line goes on to make sense."""
        types = _TYPE.findall(text)
        return text.replace(self.rng.choice(types), self.rng.choice(self.parts[_TYPE])) if types else text

    def _size(self, text: str) -> str:
        """One name of a size for another or for a number."""
        names = re.findall(r'(?<=")[a-z]\w*(?=")', text)
        return text.replace(f'"{self.rng.choice(names)}"', self.rng.choice([f'"{n}"' for n in names] + _TEXTS)) if names else text

    def _drop(self, text: str) -> str:
        lines = text.splitlines()
        del lines[self.rng.randrange(len(lines))]
        return "\n".join(lines or [""])

    def _repeat(self, text: str) -> str:
        lines = text.splitlines()
        lines.insert(self.rng.randrange(len(lines)), self.rng.choice(lines))
        return "\n".join(lines)

    def _foreign(self, text: str) -> str:
        lines = text.splitlines()
        lines.insert(self.rng.randrange(len(lines)), self.rng.choice(self.lines))
        return "\n".join(lines)

    def _order(self, text: str) -> str:
        lines = text.splitlines()
        i, j = (self.rng.randrange(len(lines)) for _ in range(2))
        lines[i], lines[j] = lines[j], lines[i]
        return "\n".join(lines)

    def _bytes(self, text: str) -> str:
        return mutated_bytes(text.encode(), self.rng).decode("latin-1")

    _ways = (
        _insert,
        _insert,
        _insert,
        _insert,
        _insert,
        _insert,
        _everywhere,
        _size,
        _type,
        _type,
        _everywhere,
        _size,
        _op,
        _op,
        _attribute,
        _attribute,
        _attribute,
        _value,
        _value,
        _number,
        _number,
        _string,
        _drop,
        _repeat,
        _foreign,
        _order,
        _bytes,
    )


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flips, drops, repeats or cuts off some bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        i = rng.randrange(len(out)) if out else 0
        how = rng.randrange(5)
        if how == 0 and out:
            out[i] ^= 1 << rng.randrange(8)
        elif how == 1 and out:
            out[i] = rng.randrange(256)
        elif how == 2:
            del out[i : i + rng.choice((1, 4, 100))]
        elif how == 3:
            out[i:i] = out[i : i + rng.choice((1, 8, 300))]
        elif rng.random() < 0.3:
            del out[i:]
    return bytes(out)


def attempt(cases: Sequence[object], run: Callable[[object], str | None]) -> list[tuple[int, str]]:
    """Runs every case in a worker process: the numbers of those that failed, and how. `run` gives what is wrong or None; a worker
    that dies or takes too long is a failure of the case that it was at, and another goes on after it."""
    failures: list[tuple[int, str]] = []
    at = 0
    while at < len(cases):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _work(cases, at, writer, run)
        os.close(writer)
        with os.fdopen(reader) as lines:
            for line in lines:
                number, _, problem = line.rstrip("\n").partition(" ")
                at = int(number) + 1
                if problem:
                    failures.append((int(number), problem.replace("\\n", "\n")))
        _, status = os.waitpid(child, 0)
        if status and at < len(cases):
            name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
            failures.append((at, f"ended by {name}"))
            at += 1
    return failures


def _work(cases: Sequence[object], first: int, writer: int, run: Callable[[object], str | None]) -> None:
    """In the worker: tries cases from `first` on and never returns."""
    with open("/proc/self/statm") as file:
        have = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + _BYTES, have + _BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for n in range(first, len(cases)):
        signal.alarm(_SECONDS)
        problem = run(cases[n]) or ""
        os.write(writer, f"{n} {problem[:2000]}".replace("\n", "\\n").encode() + b"\n")
    os._exit(0)


def smaller(text: str, fails: Callable[[str], bool], tries: int = 60) -> str:
    """A text that still fails with as many lines left out as some tries allow."""
    lines, step = text.splitlines(), max(1, len(text.splitlines()) // 2)
    while step and tries:
        i = 0
        while i < len(lines) and tries:
            less = lines[:i] + lines[i + step :]
            tries -= 1
            if fails("\n".join(less)):
                lines = less
            else:
                i += step
        step //= 2
    return "\n".join(lines)
