"""Compile options, and the only place that reads environment variables of the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dhlo.errors import CompileError

__all__ = [
    "CustomPass",
    "LoraOptions",
    "Options",
    "Range",
    "c_compiler",
    "cache_dir",
    "default_target",
    "read_options",
    "verify_passes",
]


def default_target() -> str:
    """DHLO_TARGET: the machine to compile for; "native", this one, if unset or empty."""
    return os.environ.get("DHLO_TARGET") or "native"


@dataclass(frozen=True)
class CustomPass:
    """A pass for `Options.passes`: `run(module, weights)` changes a module of the dialect in place, and may add constants.

    It runs directly before or after the pass that `before` or `after` names (`dhlo opt --list` shows them). `version` is any text
    that changes when the pass does: without one, programs that the pass has worked on aren't kept in the cache.
    """

    name: str
    run: Callable[[Any, Any], object]
    before: str = ""
    after: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        if not self.name or bool(self.before) == bool(self.after):
            raise CompileError(f"pass '{self.name}' needs a name, and the pass that it comes before or after")

    def __call__(self, module: Any, weights: Any) -> object:
        return self.run(module, weights)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from others."""
        return self.name, self.before, self.after, self.version


@dataclass(frozen=True)
class Range:
    """Sizes that a dim may have: `min` to `max`, both included; None leaves the program's own bound. `opt` is a usual size: what
    doesn't matter otherwise is chosen for it. Raises CompileError where the three aren't sizes in this order."""

    min: int | None = None
    opt: int | None = None
    max: int | None = None

    def __post_init__(self) -> None:
        given = [n for n in (self.min, self.opt, self.max) if n is not None]
        if any(type(n) is not int or not 0 <= n < 1 << 62 for n in given) or given != sorted(given):
            raise CompileError(f"{self}: ints from 0 to 2^62 - 1 are expected, with min <= opt <= max")


@dataclass(frozen=True)
class LoraOptions:
    """Room for adapters (LoRA) of a step over pools of blocks: `max_adapters` at once, of rank `max_rank` at most, which are added
    to the products with constants of modules that `targets` names by the ends of their names ("q_proj"); none: to all that
    compute each token's row. See docs/caches.md."""

    max_rank: int = 16
    max_adapters: int = 8
    targets: Sequence[str] = ()


@dataclass(frozen=True)
class Options:
    """How to compile.

    name      what the model calls itself
    progress  shows what is being done on the terminal
    dump      called with (pass name, module text) after every pass
    target    the machine to compile for (DHLO_TARGET by default): "native", "x86-64-v3", "x86-64-v4+bf16", "aarch64+dotprod", ...;
              or several of one architecture, separated by commas, of which a machine takes the last that it can run
    cache     folder where compiled programs are kept (DHLO_CACHE_DIR by default; "" for nowhere)
    grow      arguments (names or patterns) that are the filled part of a buffer, and the dim along which it has room: what the
              program joins to their end is written there, and the result is the buffer's filled part again. See docs/caches.md
    pages     arguments (names or patterns) that are caches [batch, heads, past, depth] which a decoder's step joins keys or values
              to, and how many make a block (16, say): the program becomes a step over packed tokens of many sequences, whose keys
              and values lie in blocks of pools; or such buffers [1, heads, slots, depth] that it keeps, whose rows it replaces; or
              states [batch, ...] that a step updates in place, of 1 slot; or keys and values [batch, heads, source, depth] that
              attention reads and nothing is joined to. See docs/caches.md
    lora      room for adapters of products, which sequences of a step with `pages` choose at each call. See docs/caches.md
    shapes    bounds of sizes, and usual ones, by a dim's name as `signature` shows it, or by input and dim ("ids.1"): the contract
              narrows to them, and the compiler makes use of them. See docs/bounds.md
    passes    passes of the user's, each a `dhlo.CustomPass` (see docs/extending.md)
    weights   format in which constants of products are stored: "int4:64", "int8", "f8e4m3fn", "mxfp4", "bf16", ...; or formats by
              names or patterns of weights, "default" for the others, "f32" for as they are. See docs/quantisation.md
    activations
              format to which products of quantised weights round what they multiply these with, as they read it: "int8"; "" for as
              it is. See docs/quantisation.md
    kv_cache  format in which keys and values of sessions and pools are stored: "int8", "bf16" or "f16"; "" for as they are. See
              docs/quantisation.md and docs/caches.md
    winograd  lets convolutions of 2 x 2 and 3 x 3 windows, and of 2 and 3 in one dim, be computed by Winograd's algorithm at sizes
              at which that is faster: errors are then up to 5e-5 of the results' scale, where sums of products in order are off by
              up to 5e-6
    debug_info
              keeps the lines of the user's source that code comes from in what is saved, for debuggers and profilers. See
              docs/seeing.md
    updatable keeps the imported program, compressed, in the model file, so that `dhlo update-weights` can replace its weights
    """

    name: str = "model"
    progress: bool = False
    dump: Callable[[str, str], None] | None = None
    cache: str | None = None
    target: str = field(default_factory=default_target)
    grow: Mapping[str, int] = field(default_factory=dict)
    pages: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Range] = field(default_factory=dict)
    passes: Sequence[CustomPass] = ()
    weights: str | Mapping[str, str | float] = ""
    activations: str = ""
    kv_cache: str = ""
    lora: LoraOptions | None = None
    winograd: bool = True
    debug_info: bool = False
    updatable: bool = True


def read_options(options: Mapping[str, Any]) -> Options:
    """Options by name. Raises CompileError for names that there aren't."""
    known = [f.name for f in fields(Options)]
    strange = ", ".join(f"'{name}'" for name in options if name not in known)
    if strange:
        raise CompileError(f"unknown option: {strange}", hint=f"options are {', '.join(known)}")
    return Options(**options)


def cache_dir() -> str | None:
    """DHLO_CACHE_DIR: where compiled programs are kept; unset or empty means nowhere."""
    return os.environ.get("DHLO_CACHE_DIR") or None


def verify_passes() -> bool:
    """DHLO_VERIFY_PASSES: whether modules are verified after every pass, not only after the last of a row; no if unset or empty."""
    return bool(os.environ.get("DHLO_VERIFY_PASSES"))


def c_compiler(usual: str = "cc") -> str:
    """CC: the command that links model files; `usual` if unset or empty."""
    return os.environ.get("CC") or usual
