"""Every kernel family, one line each."""

from __future__ import annotations

from dhlo.codegen.families.attention.step import AttentionFamily, PagedAttentionFamily
from dhlo.codegen.families.conv.chain import ConvChainFamily
from dhlo.codegen.families.conv.quantised_step import ConvBytesFamily
from dhlo.codegen.families.conv.step import ConvFamily
from dhlo.codegen.families.extern.extern import ExternFamily
from dhlo.codegen.families.factor.step import FactorFamily
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.fft.step import FftFamily
from dhlo.codegen.families.gemm.grouped import GroupedGemmFamily
from dhlo.codegen.families.gemm.low_rank import LowRankFamily
from dhlo.codegen.families.gemm.step import GemmFamily
from dhlo.codegen.families.gemm.tables import look_up_panels
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.loops.step import InterleaveFamily, LoopsFamily
from dhlo.codegen.families.lowering import Lowering, anchor_of
from dhlo.codegen.families.pool.step import PoolFamily
from dhlo.codegen.families.recurrence.step import RecurrenceFamily
from dhlo.codegen.families.recurrent.step import RecurrentFamily
from dhlo.codegen.families.reduce.step import ArgReduceFamily, ReductionFamily
from dhlo.codegen.families.scan.step import ScanFamily
from dhlo.codegen.families.scatter.step import WriteFamily
from dhlo.codegen.families.segments.step import SegmentFamily
from dhlo.codegen.families.sort.step import HistogramFamily, LexSortFamily, SearchSortedFamily, SortFamily, TopKFamily
from dhlo.codegen.families.vision.step import VisionFamily
from dhlo.codegen.kernel_ir.launch import is_kernel
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr, to_attr
from dhlo.ir.function import walk
from dhlo.ir.handles import Block
from dhlo.ir.ops.complexes import Imag, Interleave, Real
from dhlo.ir.ops.control import Group, Yield
from dhlo.ir.types import from_mlir

__all__ = ["FAMILIES", "lower_group", "lower_groups"]


FAMILIES: tuple[type[Family], ...] = (
    ArgReduceFamily,
    AttentionFamily,
    ConvChainFamily,
    ConvBytesFamily,
    ConvFamily,
    ExternFamily,
    FactorFamily,
    FftFamily,
    GemmFamily,
    GroupedGemmFamily,
    HistogramFamily,
    InterleaveFamily,
    LexSortFamily,
    LoopsFamily,
    LowRankFamily,
    PagedAttentionFamily,
    PoolFamily,
    RecurrenceFamily,
    RecurrentFamily,
    ReductionFamily,
    ScanFamily,
    SearchSortedFamily,
    SegmentFamily,
    SortFamily,
    TopKFamily,
    VisionFamily,
    WriteFamily,
)
"""Every family; a group has exactly one."""


def lower_group(low: Lowering, group: Group) -> Family:
    """The family of a fused group, its kernels emitted. Raises CompileError where there is no kernel for it."""
    for op in group.operation.regions[0].blocks[0].operations:
        if isinstance(op, (Real, Imag, Interleave, Yield)):
            continue
        if any(from_mlir(v).dtype.is_complex for v in [*op.operands, *op.results]):
            raise CompileError(f"{op.OPERATION_NAME} of complex numbers has no kernel yet", where=where(op))
    for family in FAMILIES:
        if family.matches(group):
            lowered = family(low, group)
            with low.module.asked() as asked:
                lowered.emit_kernels()
            lowered.kernels = sorted(name for name in asked if is_kernel(low.module, name))
            return lowered
    op = anchor_of(group, Kind(attr(group, "anchor")))
    raise CompileError(f"{op.OPERATION_NAME} has no kernel yet", where=where(op))


def lower_groups(low: Lowering, block: Block) -> list[Family]:
    """The families of a function's groups, all kernels emitted. Groups say their number in the list, what family theirs is, and how
    many bytes of memory their launches need. Tables that products pack are looked up there first of all. Raises CompileError where
    there is no kernel for a group."""
    look_up_panels(low, block)
    families: list[Family] = []
    for op in walk(block):
        if isinstance(op, Group):
            family = lower_group(low, op)
            marks = {"number": len(families), "family": family.name()}
            if family.workspace != 0:
                marks["workspace"] = family.workspace
            for name, value in marks.items():
                op.operation.attributes[name] = to_attr(value)
            families.append(family)
    return families
