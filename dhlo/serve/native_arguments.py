"""What `_runtime.Engine` takes, of what Python says: checked, and in its order."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, SupportsFloat, SupportsIndex

from dhlo import _runtime
from dhlo.errors import ContractError, translate
from dhlo.serve.types import QueueFullError, SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["native_of", "number_of", "own_copy", "pack_arrays", "pack_params", "size_or_zero", "token_array", "translated"]

_INTEGERS: Final = ("priority", "max_tokens", "top_k", "n", "seed", "logprobs", "beam_width")
_NUMBERS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "timeout",
    "length_penalty",
)
_OPTIONAL: Final = ("seed", "logprobs", "timeout")
_FORMATS: Final = {"?": 0, "B": 1, "b": 2, "h": 3, "i": 4, "l": 5, "q": 5, "e": 6, "f": 8, "d": 9}  # of buffers: dhlo_dtype


def native_of(model: object, what: str) -> _runtime.Model:
    """The native part of a compiled model. Raises ContractError, which begins with `what`, for anything else."""
    native = getattr(model, "native", model)
    if not isinstance(native, _runtime.Model):
        raise ContractError(f"{what}, got {model!r}")
    return native


def number_of(name: str, names: tuple[str, ...], what: str) -> int:
    """Of a value of an enum of serve.h, whose names are in order. Raises ContractError, which begins with `what`."""
    if name not in names:
        raise ContractError(f"{what} is {' or '.join(map(repr, names))}, got {name!r}")
    return names.index(name)


def _early_stopping(value: object) -> int:
    """A dhlo_early_stopping of serve.h."""
    if not isinstance(value, bool) and value != "never":
        raise ContractError(f"early_stopping is True, False or 'never', got {value!r}")
    return 2 if value == "never" else int(value)


def size_or_zero(value: int | None, name: str) -> int:
    """As the native engine takes it: 0 for what it is to choose. Raises ContractError for less than 1."""
    if value is None:
        return 0
    if value < 1:
        raise ContractError(f"{name} is at least 1, got {value}")
    return value


def _typed(params: SamplingParams, name: str, kind: type, what: str) -> None:
    value = getattr(params, name)
    if not isinstance(value, kind) and not (value is None and name in _OPTIONAL):
        raise ContractError(f"{name} is {what}, got {value!r}")


def token_array(tokens: Iterable[int], name: str) -> array[int]:
    """Raises ContractError for what no vocabulary has."""
    try:
        return array("i", list(tokens))  # not bytes as they lie in memory
    except (TypeError, OverflowError) as e:
        raise ContractError(f"{name}: tokens are integers of the vocabulary: {e}") from None


def _biases(values: Iterable[float]) -> array[float]:
    try:
        return array("f", list(values))
    except TypeError as e:
        raise ContractError(f"logit_bias: values are numbers: {e}") from None


def pack_arrays(inputs: Mapping[str, Buffer]) -> tuple[object, ...]:
    """Of each its name, dhlo_dtype, sizes and memory. Raises ContractError for what isn't dense memory of a dtype."""
    packed = list[object]()
    for name, given in inputs.items():
        try:
            view = memoryview(given)
        except TypeError:
            raise ContractError(f"inputs: '{name}' is an array in memory, got a {type(given).__name__}") from None
        if view.format not in _FORMATS:
            raise ContractError(f"inputs: '{name}' has elements of the format '{view.format}', which no input has")
        if not view.c_contiguous:
            raise ContractError(f"inputs: the elements of '{name}' lie in a row (numpy.ascontiguousarray)")
        packed.append((name, _FORMATS[view.format], tuple(view.shape or ()), view))
    return tuple(packed)


def _string_tuple(strings: Iterable[str], name: str) -> tuple[str, ...]:
    try:
        if isinstance(strings, str):
            raise TypeError("a single string isn't a sequence of them")
        return tuple(strings)
    except TypeError as e:
        raise ContractError(f"{name}: strings that UTF-8 has: {e}") from None


def _strings(strings: Iterable[str], name: str) -> tuple[bytes, ...]:
    try:
        return tuple(str.encode(s) for s in _string_tuple(strings, name))
    except (TypeError, UnicodeError) as e:
        raise ContractError(f"{name}: strings that UTF-8 has: {e}") from None


def own_copy(params: SamplingParams) -> SamplingParams:
    """The same, without what the caller could change, or use up, before the request's end: events name stop strings by number.
    Raises ContractError."""
    return params if isinstance(params.stop, tuple) else replace(params, stop=_string_tuple(params.stop, "stop"))


def pack_params(params: SamplingParams) -> tuple[object, ...]:
    """In the order of `_runtime.Engine.submit`. Raises ContractError for types and numbers that no request has."""
    for name in _INTEGERS:
        _typed(params, name, SupportsIndex, "an integer")
    for name in _NUMBERS:
        _typed(params, name, SupportsFloat, "a number")
    if params.constrain is not None and not callable(params.constrain):
        raise ContractError(f"constrain is a function, got {params.constrain!r}")
    if params.timeout is not None and not params.timeout >= 0:
        raise ContractError(f"timeout is at least 0, got {params.timeout}")
    if params.logprobs is not None and params.logprobs < 0:
        raise ContractError(f"logprobs is at least 0, got {params.logprobs}")
    return (
        params.priority,
        params.max_tokens,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        (token_array(params.logit_bias, "logit_bias"), _biases(params.logit_bias.values())),
        params.seed,
        params.n,
        -1 if params.logprobs is None else params.logprobs,
        params.ignore_eos,
        _strings(params.stop, "stop"),
        -1.0 if params.timeout is None else float(params.timeout),
        _strings([params.cache_salt], "cache_salt")[0],
        params.speculate,
        (token_array(params.stop_tokens, "stop_tokens"),),
        params.constrain,
        params.adapter or None,
        params.beam_width,
        params.length_penalty,
        _early_stopping(params.early_stopping),
    )


def translated(error: Exception) -> Exception:
    """What an error of `_runtime.Engine` is to whoever calls."""
    if getattr(error, "status", None) == "busy":
        return QueueFullError(str(error))
    return ContractError(str(error)) if isinstance(error, OverflowError) else translate(error)
