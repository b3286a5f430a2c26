"""Errors that users meet: whose fault, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CancelledError",
    "CompileError",
    "ContractError",
    "DeadlineError",
    "DhloError",
    "InternalError",
    "ModelFileError",
    "SessionError",
    "SignatureError",
    "TorchVersionError",
    "UnsupportedError",
    "translate",
]


class DhloError(Exception):
    """Base of all errors raised by dhlo."""

    status: str | None = None  # the name of the runtime's status, where an exception carries one


class CompileError(DhloError, ValueError):
    """The program or the options can't be compiled as given. `where` is the user's source line, `hint` what to do."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        text = what + (f"\n  at {where}" if where else "") + (f"\n  hint: {hint}" if hint else "")
        super().__init__(text)
        self.what, self.where, self.hint = what, where, hint


class UnsupportedError(CompileError):
    """The program holds operators that dhlo doesn't know; all of them are listed, each with its source line."""

    def __init__(self, problems: Sequence[tuple[str, str | None]]) -> None:
        lines = [f"{what}\n  at {where}" if where else what for what, where in problems]
        what = "\n".join([f"{len(problems)} operator use(s) can't be compiled:", *lines])
        super().__init__(what, hint="write the computation with other operators, or register a lowering for them.")
        self.problems = list(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)  # pools of processes hand exceptions over


class ContractError(DhloError, ValueError):
    """A call breaks the contract of the compiled model: names the argument, what was expected and what came."""


class ModelFileError(DhloError, RuntimeError):
    """A model file is truncated, damaged, foreign, made for another version of dhlo, or needs another CPU."""


class SignatureError(ModelFileError):
    """A model file isn't signed with the key that was asked for."""


class SessionError(DhloError, RuntimeError):
    """A session can't be used so: it is in use by another call, its state belongs to another thread, or a snapshot doesn't fit."""


class CancelledError(DhloError, RuntimeError):
    """A run was cancelled. The session is free for the next one; its state is as after any run that fails."""


class DeadlineError(DhloError, TimeoutError):
    """A run took longer than its timeout. The session is free for the next one; its state is as after any run that fails."""


class TorchVersionError(DhloError, ImportError):
    """The installed PyTorch isn't one that dhlo works with."""


class InternalError(DhloError, AssertionError):
    """A bug in dhlo. Please report it with the program."""


def translate(error: Exception) -> Exception:
    """The runtime's exception as users know it: ContractError for a ValueError or TypeError, SessionError where the session is in
    use."""
    if isinstance(error, DhloError):
        return error
    if isinstance(error, (TypeError, ValueError)):
        return ContractError(str(error))
    kind = _ERRORS.get(getattr(error, "status", None) or "")
    return error if kind is None else kind(str(error))


_ERRORS: dict[str, type[DhloError]] = {"busy": SessionError, "cancelled": CancelledError, "deadline": DeadlineError}
