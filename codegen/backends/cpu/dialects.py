"""What lies between MLIR's LLVM dialect and the LLVM that makes code: a type that targets lack, and older spellings of floats."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from dhlo.errors import InternalError
from dhlo.ir import mlir

__all__ = ["bf16_as_integers", "in_older_spelling"]


# ---------------------------------------------------------------------------------------------------- bf16 as i16
def bf16_as_integers(module: Any) -> None:
    """Gives i16 to all values, memory and constants of type bf16 of a module in the llvm dialect: without hardware for the type,
    LLVM calls functions wherever it occurs, which hosts needn't have. Raises InternalError where the module computes in bf16."""
    types: dict[Any, Any] = {}

    def integer(ty: Any) -> Any:
        """The type with i16 for bf16; None if there is no bf16 in it."""
        if ty not in types:
            text = str(ty)  # nothing but types
            types[ty] = mlir.ir.Type.parse(text.replace("bf16", "i16")) if "bf16" in text else None
        return types[ty]

    def retype(values: Any) -> None:
        for value in values:
            if (new := integer(value.type)) is not None:
                value.set_type(new)

    def visit(op: Any) -> Any:
        retype(op.results)
        for region in op.regions:
            for block in region:
                retype(block.arguments)
        for name in _TYPES:
            if name in op.attributes and (new := integer(op.attributes[name].value)) is not None:
                op.attributes[name] = mlir.ir.TypeAttr.get(new)
        if "value" in op.attributes:
            constant = op.attributes["value"]
            ty = getattr(constant, "type", None)
            if ty is not None and (new := integer(ty)) is not None:
                op.attributes["value"] = _integers(constant, new)
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    try:
        module.operation.verify()
    except mlir.ir.MLIRError as e:
        raise InternalError(f"code for a target without bf16 computes in it: {e}") from None


_TYPES: Final = ("elem_type", "function_type", "global_type", "var_callee_type")
"""Attributes of the llvm dialect's ops that are types."""


def _integers(constant: Any, ty: Any) -> Any:
    """The bits of a constant of bf16, as i16."""
    ir = mlir.ir
    if isinstance(constant, ir.FloatAttr):
        return ir.IntegerAttr.get(ty, _bits(constant.value, "bfloat"))
    i16 = ir.IntegerType.get_signless(16)
    if constant.is_splat:
        return ir.DenseElementsAttr.get_splat(ty, ir.IntegerAttr.get(i16, _bits(constant.get_splat_value().value, "bfloat")))
    # The bindings give no elements of this type: "dense<[1.0, 0x7FC0]> : vector<2xbf16>".
    elements = str(constant).removeprefix("dense<").partition(">")[0].replace("[", "").replace("]", "").split(", ")
    numbers = [ir.Attribute.parse(f"{x} : bf16").value for x in elements]
    return ir.DenseElementsAttr.get([ir.IntegerAttr.get(i16, _bits(x, "bfloat")) for x in numbers], ty)


# ---------------------------------------------------------------------------------------------------- spelling of floats
# MLIR's LLVM writes floats as bits (f0x3F800000), by name (+inf, -qnan, +nan(0x1)) or as decimals that read back as the same
# number of their type; the LLVM that makes code reads bits, with a letter for the type, and decimals that are exact.
_TYPES_OF_FLOATS: Final = {"half": (16, 10), "bfloat": (16, 7), "float": (32, 23), "double": (64, 52)}
"""Bits of a type and of its mantissa, by LLVM's name."""
_MARKS: Final = ("f0x", "e+", "e-", "inf", "nan")
"""Every float has one of them."""
_NO_CODE: Final = ("!", ";", "attributes ", "source_filename ", "declare ", "target ")
"""How lines begin that hold no operands."""


def in_older_spelling(text: str) -> str:
    """LLVM IR text with its floats as the LLVM that makes code reads them. Raises InternalError for bits of another width than the
    type's, and for a float without a type; any other form that isn't known is refused where the text is read."""
    return "\n".join(
        " ".join(_older_words(line))
        if any(mark in line for mark in _MARKS) and not line.startswith(_NO_CODE) and not _is_string(line)
        else line
        for line in text.split("\n")
    )


def _is_string(line: str) -> bool:
    """Whether it defines a constant whose bytes are written as a string."""
    return line[:1] == "@" and ' c"' in line


def _older_words(line: str) -> Iterator[str]:
    """The words of a line; the type of a float is the last one named before it."""
    ty = ""
    for word in line.split(" "):
        core = (word.partition("(")[2] if word[:1] in ("@", "%") else word).lstrip("<([{").rstrip(",>)]}")
        if core in _TYPES_OF_FLOATS:
            ty = core
        elif _is_float(core):
            if not ty:
                raise InternalError(f"LLVM IR has a float without a type: {line}")
            core += ")" if "(" in core else ""  # of +nan(0x1)
            word = word.replace(core, _literal(_read(core, ty), ty))
        yield word


def _is_float(word: str) -> bool:
    if word.startswith("f0x") or word[:1] in ("+", "-"):
        return not word[1:].isdecimal()
    return word[:1].isdecimal() and "." in word


def _read(word: str, ty: str) -> int:
    """The bits of a float of a type of LLVM's."""
    width, mantissa = _TYPES_OF_FLOATS[ty]
    if word.startswith("f0x"):
        if 4 * len(word[3:]) != width:
            raise InternalError(f"LLVM IR has {word} for a {ty}")
        return int(word[3:], 16)
    if "nan" not in word:
        return _bits(float(word), ty)
    payload = int(word.partition("(")[2][:-1] or "0", 16)
    quiet = 0 if "snan" in word else 1 << mantissa - 1
    return (word[0] == "-") << width - 1 | _exponent(ty) | quiet | payload


def _exponent(ty: str) -> int:
    """The bits of a type's infinity."""
    width, mantissa = _TYPES_OF_FLOATS[ty]
    return (1 << width - 1) - (1 << mantissa)


def _bits(x: float, ty: str) -> int:
    """The bits of the number of a type of LLVM's that is nearest to x."""
    if ty == "bfloat":
        bits = int.from_bytes(struct.pack(">f", x), "big")
        return (bits >> 16) + (bits >> 15 & 1 if x == x else 0)
    return int.from_bytes(struct.pack({"half": ">e", "float": ">f", "double": ">d"}[ty], x), "big")


def _literal(bits: int, ty: str) -> str:
    """What the LLVM that makes code reads as these bits; a float is written as the double that is equal to it."""
    if ty in ("half", "bfloat"):
        return f"0x{'H' if ty == 'half' else 'R'}{bits:04X}"
    if ty == "float":
        if bits & _exponent(ty) == _exponent(ty):
            bits = bits >> 31 << 63 | _exponent("double") | (bits & (1 << 23) - 1) << 29
        else:
            (x,) = struct.unpack(">f", bits.to_bytes(4, "big"))
            bits = _bits(x, "double")
    return f"0x{bits:016X}"
