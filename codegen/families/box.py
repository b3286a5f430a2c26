"""What families' choices need of the machine at hand, in vector multiply-adds of the target: the unit of their cost models."""

from __future__ import annotations

from typing import Final

from dhlo.codegen.kernel_ir.builder import F32, V
from dhlo.codegen.kernel_ir.launch import HostContext

__all__ = [
    "COPY_WORK",
    "PRODUCT_WAKE_SHARE",
    "WAKE_SHARE",
    "copy_cycles",
    "cycles_from_l3",
    "cycles_from_memory",
    "comes_from_afar",
    "even_blocks",
    "grain_by_cycles",
    "grain_of",
    "l3_is_slow",
    "passes_caches",
    "product_wake_cycles",
    "steps_ahead",
    "update_cycles",
    "waiting_cycles",
    "wake_cycles",
]

WAKE_SHARE: Final = 16
"""A thread's part of a launch takes at least so many times what it takes to reach another thread."""
PRODUCT_WAKE_SHARE: Final = 6
"""The same of a product of matrices, and of a convolution made of these. Found on a Granite Rapids: 37 rows by 43 x 1,909 take
20 us on two threads and 35 on one; a network of many small convolutions takes 0.82 of the time."""
COPY_WORK: Final = 1
"""Simple operations, the unit of `grain_of`, that copying a byte takes: memory moves three, as what is written is read first."""

# Multiply-adds of an element in the time of a simple operation on one: kernels that are priced in these load and store what they
# compute with, and wait for the second cache or memory most of the time.
_ADDS_PER_OPERATION = 5
# What is written leaves the second-level cache where it takes so many of it. The third one is slow if it delivers at most one
# part in so many of a vector in the time of a multiply-add: a 15th on a Granite Rapids (an eighth with vectors of 256 bits), a
# fifth to a third on a Zen 4 and 5.
_CACHED_SHARE, _SLOW_SHARE = 2, 6
# Bytes that a step of the loops reads in which distances of prefetches are measured (runtime/src/measure.cpp).
_STEP_BYTES = 128
# Of so many items for each thread, one more or less makes no difference.
_MANY_ITEMS = 16


def _rate(host: HostContext) -> V:
    """Multiply-adds of whole vectors, of one core in a microsecond."""
    return host.machine(f"fma{host.module.target.vector_bits}_per_us")


def wake_cycles(host: HostContext, share: int = WAKE_SHARE) -> V:
    """Work, in multiply-adds of whole vectors, that pays for another thread: `share` times what it takes to reach it."""
    fn = host.fn
    return fn.divu(fn.mul(fn.mul(host.machine("wake_ns"), share), _rate(host)), 1000)


def product_wake_cycles(host: HostContext) -> V:
    """`wake_cycles` of products of matrices: their items hold more arithmetic than data, which has to change caches for another
    thread."""
    return wake_cycles(host, PRODUCT_WAKE_SHARE)


def grain_by_cycles(host: HostContext, cycles: V) -> V:
    """Items that pay for another thread, of so many multiply-adds of whole vectors each: another unit than `grain_of` has."""
    fn = host.fn
    return fn.add(fn.divu(wake_cycles(host), fn.add(cycles, 1)), 1)


def grain_of(host: HostContext, work: V | int) -> V:
    """Items that pay for another thread, at `work` simple operations on elements each (see `element_work`); at least one."""
    fn = host.fn
    pays = fn.divu(fn.mul(wake_cycles(host), host.module.target.lanes(F32)), _ADDS_PER_OPERATION)
    return fn.max(fn.divu(pays, fn.max(fn.i64(work), 1)), 1)


def steps_ahead(host: HostContext, fact: str) -> V:
    """How many steps ahead a loop over k prefetches that reads a line or two in each; `fact` is one of `ahead_*`."""
    return host.fn.divu(host.machine(fact), _STEP_BYTES)


def cycles_from_memory(host: HostContext, nbytes: int) -> V:
    """Multiply-adds of whole vectors in the time in which a core reads so many bytes from memory; at least one."""
    fn = host.fn
    return fn.max(fn.divu(fn.mul(_rate(host), nbytes), host.machine("memory_bytes_per_us")), 1)


def copy_cycles(host: HostContext, nbytes: int) -> V:
    """Multiply-adds of whole vectors in the time in which a core packs so many bytes that come from memory, to its second-level
    cache."""
    fn = host.fn
    cached = fn.max(fn.divu(fn.mul(_rate(host), nbytes), host.machine("l2_bytes_per_us")), 1)
    return fn.add(cycles_from_memory(host, nbytes), cached)


def l3_is_slow(host: HostContext) -> V:
    """Whether the third-level cache is as slow as memory beside the arithmetic: what a core reads there or writes has to be fetched
    ahead, and kept out of products' inner loops."""
    vector = host.module.target.vector_bits // 8
    return host.fn.cmp("le", host.machine("l3_bytes_per_us"), host.fn.mul(_rate(host), vector // _SLOW_SHARE))


def cycles_from_l3(host: HostContext, nbytes: V) -> V:
    """Multiply-adds of whole vectors in the time in which a core reads so many bytes from the third-level cache."""
    fn = host.fn
    return fn.divu(fn.mul(_rate(host), nbytes), host.machine("l3_bytes_per_us"))


def passes_caches(host: HostContext, nbytes: V) -> V:
    """Whether so many bytes are best stored past the caches, without being read first: they leave the second-level cache in any
    case, and the third is as slow as memory, or doesn't hold them."""
    fn = host.fn
    leaves = fn.or_(fn.cmp("gt", nbytes, host.machine("l3_bytes")), l3_is_slow(host))
    return fn.and_(leaves, fn.cmp("gt", nbytes, fn.mul(host.l2_bytes, _CACHED_SHARE)))


def comes_from_afar(host: HostContext, nbytes: V) -> V:
    """Whether so many bytes that are read, and as many that are written, are best asked for ahead where the hardware doesn't expect
    them: they leave the second-level cache."""
    return host.fn.cmp("gt", nbytes, host.fn.mul(host.l2_bytes, _CACHED_SHARE))


def update_cycles(host: HostContext) -> V:
    """Multiply-adds of whole vectors that go by as a vector is read from the second-level cache and written there again: 2, 4 or 8.

    Choices between algorithms that round differently rest on it, so that a measurement mustn't turn them. 4 stands for a read that
    takes 1.8 to 3.5 multiply-adds; in the middle of these, at 2.6, is a cache that delivers 25 bytes a multiply-add of 64. What was
    measured is kept for later processes.
    """
    fn, nbytes = host.fn, host.module.target.vector_bits // 8
    tenths = fn.divu(fn.mul(_rate(host), 10 * nbytes), host.machine("l2_bytes_per_us"))
    return fn.select(fn.cmp("le", tenths, 17), fn.i64(2), fn.select(fn.cmp("le", tenths, 35), fn.i64(4), 8))


def waiting_cycles(host: HostContext) -> V:
    """Multiply-adds of whole vectors that go by as a kernel waits for a vector from the third-level cache: 0 or 9.

    As with `update_cycles`, choices between algorithms rest on it. A vector takes 3 to 6 of them on a Zen 4 and 5, which is hidden
    behind arithmetic, and 15 on a Granite Rapids (8 with vectors of 256 bits); 10 is far from these. Of the 15, 9 is what made
    ResNet-18 and a transposed convolution of small images choose what was faster there.
    """
    fn, nbytes = host.fn, host.module.target.vector_bits // 8
    return fn.select(fn.cmp("le", cycles_from_l3(host, fn.i64(nbytes)), 10), fn.i64(0), 9)


def even_blocks(host: HostContext, blocks: V, cells: V, most: V) -> V:
    """Some more blocks, up to `most`, where the few items that `cells` of each make don't share out among the threads: two threads
    take as long for nine as for ten."""
    f, threads = host.fn, host.num_threads
    even, items = f.mul(f.ceildivu(blocks, threads), threads), f.mul(blocks, cells)
    few = f.cmp("lt", items, f.mul(threads, _MANY_ITEMS))
    uneven = f.and_(f.cmp("ne", f.remu(items, threads), 0), f.and_(few, f.cmp("le", even, most)))
    return f.select(uneven, even, blocks)
