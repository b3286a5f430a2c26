"""x86-64: the levels of its System V ABI that code is generated for, and what some CPUs have beyond them."""

from __future__ import annotations

from collections.abc import Iterable

from dhlo.codegen.target.base import DotProduct, MatrixTiles, Target

__all__ = ["EXTRAS", "LEVELS", "TRIPLE", "level_of", "x86"]

TRIPLE = "x86_64-unknown-linux-gnu"

_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "cx16", "sahf", "popcnt", "crc32")
_V3 = (*_V2, "movbe", "lzcnt", "bmi", "bmi2", "xsave", "avx", "avx2", "f16c", "fma")
# Of the fourth level, cd isn't used. Every CPU that has these has prefetches for writing.
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
LEVELS = {"x86-64-v3": _V3, "x86-64-v4": (*_V3, "prfchw", *_AVX512)}
"""LLVM's names of what code for a level may use, the lowest level first."""

EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86-64-v3": {"vnni": ("avxvnni",)},
    "x86-64-v4": {
        "bf16": ("avx512bf16",),
        "vnni": ("avx512vnni",),
        "amx-bf16": ("amx-tile", "amx-bf16"),
        "amx-int8": ("amx-tile", "amx-int8"),
    },
}
"""What a target's name may add to each level, and the features behind it."""

_TUNE = {"x86-64-v3": "haswell", "x86-64-v4": "skylake-avx512"}


# AMX: the extension, the left side's type and the instruction (Intel SDM volume 2, TDPBF16PS and TDPBSSD/TDPBUSD).
_TILE_PRODUCTS = (("amx-bf16", "bf16", "tdpbf16ps"), ("amx-int8", "i8", "tdpbssd"), ("amx-int8", "ui8", "tdpbusd"))


def _tiles(extras: Iterable[str]) -> MatrixTiles | None:
    """Tiles of a target with these extras; those that can't be multiplied are of no use."""
    products = {key: DotProduct(f"llvm.x86.{name}", has) for has, key, name in _TILE_PRODUCTS if has in extras}
    if not products:
        return None
    return MatrixTiles(
        feature="amx-tile",
        configure="llvm.x86.ldtilecfg",
        release="llvm.x86.tilerelease",
        zero="llvm.x86.tilezero",
        load="llvm.x86.tileloadd64",
        load_once="llvm.x86.tileloaddt164",
        store="llvm.x86.tilestored64",
        products=products,
    )


def x86(level: str, extras: Iterable[str] = (), tune: str = "") -> Target:
    """A target of a level in `LEVELS` with some of its `EXTRAS`, scheduled for the CPU `tune`."""
    wide = level == "x86-64-v4"
    names = sorted(extras)
    features = frozenset(f for n in names for f in EXTRAS[level][n])
    dots = {}
    if "bf16" in names:
        dots["bf16"] = DotProduct("llvm.x86.avx512bf16.dpbf16ps.512", "avx512bf16")
    if "vnni" in names:  # LLVM's name of both is that of the AVX-512 form
        dots["ui8"] = DotProduct(f"llvm.x86.avx512.vpdpbusd.{512 if wide else 256}", *EXTRAS[level]["vnni"])
    return Target(
        name="+".join([level, *names]),
        tag=level.removeprefix("x86-64-"),
        triple=TRIPLE,
        features=LEVELS[level],
        tune=tune or _TUNE[level],
        vector_bits=512 if wide else 256,
        registers=32 if wide else 16,
        strides=3,  # base + index * {1, 2, 4, 8}
        mask_registers=wide,
        maxima_choose=True,
        reads_factors=not wide,
        fence="llvm.x86.sse.sfence",
        repeats_memory=wide,
        extras=features,
        dots=dots,
        byte_lookup="llvm.x86.avx512.pshuf.b.512" if wide else "llvm.x86.avx2.pshuf.b",
        lane_lookup="llvm.x86.avx512.permvar.si.512" if wide else "llvm.x86.avx2.permd",
        tiles=_tiles(names),
        pair_products="llvm.x86.avx512.pmaddw.d.512" if wide else "llvm.x86.avx2.pmadd.wd",
    )


def level_of(features: Iterable[str]) -> tuple[str, list[str]] | None:
    """The highest level and the extras that a CPU with these features has; None if it has no level."""
    has = set(features)
    levels = [level for level, needs in LEVELS.items() if has.issuperset(needs)]
    if not levels:
        return None
    level = levels[-1]
    return level, [n for n, needs in EXTRAS[level].items() if has.issuperset(needs)]
