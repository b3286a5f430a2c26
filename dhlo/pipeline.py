"""The whole way from a torch.export program to a model file, in order: the compiler's contents page.

    import            ExportedProgram -> dhlo ops over symbolic shapes; ranges, names and growth asked for are marks of the module
    grow              a growing argument becomes its buffer: concat -> update_slice                 (before the cache is asked)
    join-caches       caches of a fixed size that the program keeps, and that shall be pools, become arguments that a step joins to
    mask-tables       masks that are looked up in constant matrices, of programs whose caches shall be pools, compare positions
    absorb-latents    attention over compressed keys and values, of caches that shall be pools, reads them as they are
    recurrent-states  what is kept of sequences in fixed size: cells of pools, taken on token by token by dhlo.recurrence
    page-caches       a cache becomes a pool of blocks, and the step one of tokens of many sequences: attention -> paged_attention
    add-adapters      products with constants add what an argument says of a token's adapter: adapt
    separate-state    weight -> state, for what the program changes
    cse .. cse-again  rewrites that hold for all sizes; among them expand-adapters: adapt -> low_rank, and what adds it; and
                      narrow-functions: sigmoids whose products are rounded to bf16 or f16 -> sigmoid_short, and
                      keep-sums: what follows narrow convolutions takes their sums before they are rounded
    multiply-bytes    products of activations that the program quantises, with quantised weights: matmul -> rounded_matmul of bytes
    keep-codes        bytes that are dequantised stay bytes where they are pooled, or quantised in the same way again
    update-parts, quantise-caches        what is written in place; caches of attention in fewer bits
    own-results       memory of its own for every result
    narrow-images     images of convolutions are stored in the type that they are rounded to
    narrow-products   products of f16 read both sides as they lie in memory
    matrix-vectors    products with one column, or of one row with rows, are sums: matmul -> mul, reduce
    window-slices     pools and depthwise convolutions of images with channels last: pool of transpose -> max or sum of slices
    paired-transposes arithmetic and products with constants between two transpositions that turn back: transpose of functions of
                      transpose -> functions
    pooled-blocks     averages over windows side by side are sums of blocks, and of all of an image: pool -> reduce
    short-reductions  what combines a few elements along the last dim is written out: reduce -> slices, add
    turned-joins      joins of values that lie across are made as these lie: concat of transpose -> transpose of concat
    late-transposes   slices, pads and reductions of what lies across are made as it lies: slice of transpose -> transpose of slice
    round-activations products of quantised weights round their rows to int8 as they read them: matmul -> rounded_matmul
    round-codes       what is quantised is bounded once, before it is rounded as it is converted: round -> nearest
    fuse              dhlo.group: ops that are computed together
    widen-chains      images that stay in a group, between two convolutions, aren't rounded
    readers-first     order of reads and writes of one memory
    split-counts      nonzero -> count_nonzero, fill_nonzero: a symbol's definition, then what needs it
    check-contract    dhlo.check_type, size, solve, check, assume: what a call checks, and where symbols come from
    stage-inputs      dhlo.stage, update_argument, update_state: copies in and out
    lower-groups      each group's `family` and the bytes of `workspace` that it needs; kernels; tables that products pack are
                      looked up there                                                          (from here on for one target)
    assign-buffers    dhlo.alloc, arrange, arena, plan, and `memory` beside each op
    schedule-launches dhlo.address, launch; `kernels` that a group chooses from at each call: the planned module
    host-program      the planned module's ops, one after the other -> the function dhlo_run
    split-module, llvm-ir, machine-code  kernels and host program -> objects
    link              objects, constants, metadata -> model file

Modules are verified on the way, with DHLO_VERIFY_PASSES=1 after every pass. Each pass can be run on text by `dhlo opt`, and what
stands after each can be dumped (`Options.dump`). What `--emit=planned` prints is what the host program is made of: nothing stands
beside it but the families of groups that choose between kernels at each call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dhlo.codegen.backends.cpu.link import write_model
from dhlo.codegen.backends.cpu.llvm import compile_object, lower_to_llvm_ir
from dhlo.codegen.families.registry import lower_groups
from dhlo.codegen.families.schedule import schedule_launches
from dhlo.codegen.host.operations import emit_host_program
from dhlo.codegen.kernel_ir.split import split_module
from dhlo.errors import CompileError, InternalError
from dhlo.frontend import import_program
from dhlo.ir import mlir
from dhlo.ir.dialect import attr
from dhlo.ir.function import bodies, walk
from dhlo.ir.handles import Module
from dhlo.ir.ops.movement import Weight
from dhlo.ir.types import from_mlir
from dhlo.options import verify_passes
from dhlo.passes.absorb_latents import absorb_latents
from dhlo.passes.add_adapters import add_adapters
from dhlo.passes.assign_buffers import assign_buffers
from dhlo.passes.attention_heads import attention_heads
from dhlo.passes.causal_masks import causal_masks
from dhlo.passes.check_contract import check_contract
from dhlo.passes.cse import cse
from dhlo.passes.expand_adapters import expand_adapters
from dhlo.passes.expand_dequantize import expand_dequantize
from dhlo.passes.find_attention import find_attention
from dhlo.passes.find_dequantize import find_dequantize
from dhlo.passes.fold_weights import fold_weights
from dhlo.passes.fuse.fuse import fuse
from dhlo.passes.grow import grow
from dhlo.passes.hoist_slices import hoist_slices
from dhlo.passes.integer_convolutions import integer_convolutions
from dhlo.passes.join_caches import join_caches
from dhlo.passes.keep_codes import keep_codes
from dhlo.passes.keep_sums import keep_sums
from dhlo.passes.late_transposes import late_transposes
from dhlo.passes.mask_tables import mask_tables
from dhlo.passes.matrix_vectors import matrix_vectors
from dhlo.passes.merge_matmuls import merge_matmuls
from dhlo.passes.multiply_bytes import multiply_bytes
from dhlo.passes.narrow_functions import narrow_functions
from dhlo.passes.narrow_images import narrow_images
from dhlo.passes.narrow_products import narrow_products
from dhlo.passes.own_results import own_results
from dhlo.passes.page_caches import page_caches
from dhlo.passes.paired_transposes import paired_transposes
from dhlo.passes.pooled_blocks import pooled_blocks
from dhlo.passes.quantise_caches import quantise_caches
from dhlo.passes.quantise_weights import quantise_weights
from dhlo.passes.readers_first import readers_first
from dhlo.passes.recurrent_states import recurrent_states
from dhlo.passes.round_activations import round_activations
from dhlo.passes.round_codes import round_codes
from dhlo.passes.separate_state import separate_state
from dhlo.passes.short_reductions import short_reductions
from dhlo.passes.simplify import simplify
from dhlo.passes.split_counts import split_counts
from dhlo.passes.stage_inputs import stage_inputs
from dhlo.passes.turned_joins import turned_joins
from dhlo.passes.update_parts import update_parts
from dhlo.passes.widen_chains import widen_chains
from dhlo.passes.window_slices import window_slices
from dhlo.shape_infer.verify import misused_symbol

__all__ = [
    "BUFFERS",
    "FRONT",
    "LOWER_GROUPS",
    "PASSES",
    "REWRITES",
    "SCHEDULE_LAUNCHES",
    "STAGES",
    "Pass",
    "Stage",
    "Weights",
    "run_passes",
    "verify",
    "with_custom",
]

if TYPE_CHECKING:
    from dhlo.options import CustomPass

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Stage:
    """A step that makes something else of the module, by the function that does it."""

    name: str
    run: Callable[..., Any]

    @property
    def summary(self) -> str:
        return _first_sentence(self.run)


@dataclass(frozen=True)
class Pass:
    """A named rewrite of a module in place. Passes that need constant data take the weights and may add to them. `custom`: one of a
    user's, whose mistakes are the user's."""

    name: str
    run: Callable[[Module, Weights], object]
    custom: bool = False

    @property
    def summary(self) -> str:
        return _first_sentence(self.run)


def _first_sentence(f: Callable[..., Any]) -> str:
    return " ".join(re.split(r"\.\s|\.$|;", f.__doc__ or "")[0].split())


def plain(f: Callable[[Module], None]) -> Callable[[Module, Weights], object]:
    """A pass that needs no weights."""

    def run(module: Module, weights: Weights) -> None:
        f(module)

    run.__doc__ = f.__doc__
    return run


FRONT: tuple[Pass, ...] = (
    Pass("grow", plain(grow)),
    Pass("join-caches", plain(join_caches)),
    Pass("mask-tables", mask_tables),
    Pass("absorb-latents", plain(absorb_latents)),
    Pass("recurrent-states", plain(recurrent_states)),
    Pass("page-caches", plain(page_caches)),
    Pass("add-adapters", plain(add_adapters)),
)
"""What decides about the results that a call gives: it runs before the cache of compiled programs is asked."""

PASSES: tuple[Pass, ...] = (
    *FRONT,
    Pass("separate-state", plain(separate_state)),
    Pass("cse", plain(cse)),
    Pass("simplify", plain(simplify)),
    Pass("find-attention", plain(find_attention)),
    Pass("find-dequantize", find_dequantize),
    Pass("quantise-weights", quantise_weights),
    Pass("narrow-functions", plain(narrow_functions)),
    Pass("keep-sums", plain(keep_sums)),
    Pass("fold-weights", fold_weights),
    Pass("attention-heads", plain(attention_heads)),
    Pass("causal-masks", plain(causal_masks)),
    Pass("hoist-slices", plain(hoist_slices)),
    Pass("merge-matmuls", merge_matmuls),
    Pass("expand-adapters", plain(expand_adapters)),
    Pass("simplify-again", plain(simplify)),
    Pass("cse-again", plain(cse)),
    Pass("integer-convolutions", integer_convolutions),
    Pass("multiply-bytes", multiply_bytes),
    Pass("expand-dequantize", expand_dequantize),
    Pass("keep-codes", plain(keep_codes)),
    Pass("update-parts", plain(update_parts)),
    Pass("quantise-caches", quantise_caches),
    Pass("own-results", plain(own_results)),
    Pass("narrow-images", plain(narrow_images)),
    Pass("narrow-products", plain(narrow_products)),
    Pass("matrix-vectors", plain(matrix_vectors)),
    Pass("window-slices", window_slices),
    Pass("paired-transposes", plain(paired_transposes)),
    Pass("pooled-blocks", plain(pooled_blocks)),
    Pass("short-reductions", plain(short_reductions)),
    Pass("turned-joins", plain(turned_joins)),
    Pass("late-transposes", plain(late_transposes)),
    Pass("round-activations", plain(round_activations)),
    Pass("round-codes", round_codes),
    Pass("fuse", plain(fuse)),
    Pass("widen-chains", plain(widen_chains)),
    Pass("readers-first", plain(readers_first)),
    Pass("split-counts", plain(split_counts)),
    Pass("check-contract", plain(check_contract)),
    Pass("stage-inputs", plain(stage_inputs)),
)
BUFFERS: tuple[Pass, ...] = (Pass("assign-buffers", plain(assign_buffers)),)
"""What follows once families have said how much memory their groups need."""

REWRITES = (*PASSES, *BUFFERS)
"""All that `dhlo opt` can run on text."""

LOWER_GROUPS = Stage("lower-groups", lower_groups)
SCHEDULE_LAUNCHES = Stage("schedule-launches", schedule_launches)
STAGES: tuple[Pass | Stage, ...] = (
    Stage("import", import_program),
    *PASSES,
    LOWER_GROUPS,
    *BUFFERS,
    SCHEDULE_LAUNCHES,
    Stage("host-program", emit_host_program),
    Stage("split-module", split_module),
    Stage("llvm-ir", lower_to_llvm_ir),
    Stage("machine-code", compile_object),
    Stage("link", write_model),
)
"""Everything, in order. `dhlo.compiler` takes the steps."""


def run_passes(
    module: Module,
    weights: Weights,
    passes: tuple[Pass, ...] = PASSES,
    after: Callable[[Pass, Any], None] | None = None,
    *,
    verified: bool = False,
) -> None:
    """Runs passes on a module in its context; `after` sees the module after each pass.

    The module is verified before the first one, unless it is `verified`, and after the last, with DHLO_VERIFY_PASSES after each.
    Raises InternalError if it isn't valid, naming what made it so.
    """
    if not verified:
        verify(module, "the importer made an invalid module")
    each = verify_passes()
    for p in passes:
        try:
            if p.custom:
                _run_custom(p, module, weights)
            else:
                p.run(module, weights)
            if each:
                verify(module, f"pass {p.name} left an invalid module")
        except Exception as e:
            e.add_note(f"in pass {p.name}")
            raise
        if after is not None:
            after(p, module)
    if passes and not each:
        several = f"one of the passes {passes[0].name} to {passes[-1].name}"
        culprit = f"pass {passes[0].name}" if len(passes) == 1 else f"{several} (DHLO_VERIFY_PASSES=1 tells which)"
        verify(module, f"{culprit} left an invalid module")


def with_custom(passes: Sequence[Pass], custom: Sequence[CustomPass]) -> tuple[Pass, ...]:
    """The passes with users' ones among them. Those at one place run in the order given. Raises CompileError for names that are
    taken, and places that there aren't."""
    out = list(passes)
    for c in custom:
        names = [p.name for p in out]
        places = names[len(FRONT) :]
        place = c.before or c.after
        if c.name in names or place not in places:
            what = f"there is a pass '{c.name}' already" if c.name in names else f"pass '{c.name}': no place '{place}'"
            raise CompileError(what, hint=f"passes are {', '.join(places)}")
        at = names.index(place) + (not c.before)
        while c.after and at < len(out) and any(out[at].name == x.name and x.after == c.after for x in custom):
            at += 1
        out.insert(at, Pass(c.name, c.run, custom=True))
    return tuple(out)


def _run_custom(p: Pass, module: Module, weights: Weights) -> None:
    """Runs a user's pass between two verifications. Raises CompileError, naming it, for whatever it raises or leaves behind."""
    verify(module, f"the module before pass '{p.name}' is invalid")
    functions, before = _functions(module), dict(weights)
    try:
        p.run(module, weights)
        verify(module, "it left an invalid module")
        if _functions(module) != functions:
            raise InternalError(f"it left other functions, or functions of other types, than {', '.join(functions)}")
        _check_weights(module, weights, before)
    except CompileError:
        raise
    except InternalError as e:
        raise CompileError(f"pass '{p.name}': {e}") from e
    except Exception as e:
        raise CompileError(f"pass '{p.name}' failed: {type(e).__name__}: {e}") from e


def _functions(module: Module) -> dict[str, str]:
    """Types of a module's functions, by name."""
    found = (f.operation.attributes for f in module.body.operations)
    return {str(attributes["sym_name"]): str(attributes["function_type"]) for attributes in found}


def _check_weights(module: Module, weights: Weights, before: Weights) -> None:
    """Raises InternalError where an op reads a weight that isn't there any more, or that has become something else than its type
    says. A module without data has no weights."""
    for op in (op for block in bodies(module) for op in walk(block) if isinstance(op, Weight)):
        name, expected = attr(op, "name_"), from_mlir(op.results[0])
        value = weights.get(name)
        if value is before.get(name) and (value is not None or not before):
            continue
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"
        if value is None or not plain or value.dtype != expected.dtype.torch or tuple(value.shape) != expected.shape:
            got = f"{value.dtype}{list(value.shape)}" if plain and value is not None else type(value).__name__
            raise InternalError(f"weight '{name}' is {expected}, but it left {got.removeprefix('torch.')}")


def verify(module: Module, what: str) -> None:
    """Raises InternalError, which begins with `what` and says what is wrong and where, if a module isn't valid."""
    try:
        module.operation.verify()
    except mlir.ir.MLIRError as e:
        raise InternalError(f"{what}: {e}") from e
    misuse = misused_symbol(module)
    if misuse is not None:
        raise InternalError(f"{what}: {misuse.op.OPERATION_NAME} at {misuse.op.location}: {misuse.text}")
