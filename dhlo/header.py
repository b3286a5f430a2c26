"""C and C++ headers for one model: names, dtypes and dims of its arguments and results, and a typed call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dhlo.codegen.kernel_ir.abi import DTYPES
from dhlo.errors import CompileError

__all__ = ["Form", "Language", "check_identifier", "identifier", "language_of", "model_header"]

Form = Literal["so", "obj", "archive"]
Language = Literal["c", "c++"]

# C's type of an element, and the enumerator of dhlo_dtype. Those that C has no type for are given as their bits, complex numbers as
# pairs.
_TYPES: Final = {
    "bool": ("bool", "DHLO_BOOL"), "uint8": ("uint8_t", "DHLO_U8"), "int8": ("int8_t", "DHLO_I8"), "int16": ("int16_t", "DHLO_I16"),
    "int32": ("int32_t", "DHLO_I32"), "int64": ("int64_t", "DHLO_I64"), "uint64": ("uint64_t", "DHLO_U64"),
    "float16": ("uint16_t", "DHLO_F16"), "bfloat16": ("uint16_t", "DHLO_BF16"), "float32": ("float", "DHLO_F32"),
    "float64": ("double", "DHLO_F64"), "complex32": ("uint32_t", "DHLO_C32"), "complex64": ("float", "DHLO_C64"),
    "complex128": ("double", "DHLO_C128"), "float8_e4m3fn": ("uint8_t", "DHLO_F8E4M3FN"), "float8_e5m2": ("uint8_t", "DHLO_F8E5M2"),
}  # fmt: skip
assert _TYPES.keys() == DTYPES.keys()

_KEYWORDS: Final = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await "
    "co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do "
    "double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace "
    "new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict "
    "return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try "
    "typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq".split()
)

# Macros that the headers bring along, or compilers without -std define.
_MACROS: Final = frozenset("EOF NULL errno linux stderr stdin stdout unix".split())
# Words that a model may well be called by, and that C's library has for functions: C++ headers declare these outside of any
# namespace.
_FUNCTIONS: Final = frozenset(
    "abs basename ceil clock clone div exit exp floor gamma index log log2 log10 main malloc nan pow printf rand random remainder "
    "remove rename rewind round select signal significand sin sqrt system tan time trunc".split()
)
# Names of the runtime's, of the C++ library's, and limits of C's integers.
_RESERVED: Final = re.compile(r"(dhlo|DHLO)(_.*)?|std|U?INT\w*_M(AX|IN)")
_TYPE: Final = "_t"  # ends the names of C's types
# Of a member: what macros are called.
_CAPITALS: Final = re.compile("[A-Z][A-Z0-9_]{2,}")
_TAKEN: Final = _KEYWORDS | _MACROS | _FUNCTIONS


def identifier(text: str) -> str:
    """A name in C and C++, outside of any namespace, that resembles `text`: what can't be in one becomes `_`."""
    name = _member(text)
    return f"{name}_" if name in _FUNCTIONS else name


def _member(text: str) -> str:
    """The same for a name in a struct or namespace."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "model"
    if _RESERVED.fullmatch(name):
        return f"m_{name}"
    return f"{name}_" if name in _KEYWORDS | _MACROS or name.endswith(_TYPE) else f"m{name}" if name[0].isdigit() else name


def check_identifier(text: str) -> str:
    """The text, if it is a name that C and C++ leave to programs. Raises CompileError."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text) or "__" in text or text in _TAKEN:
        raise CompileError(f"'{text}' can't be a symbol's name", hint="use letters, digits and single '_', beginning with a letter")
    if _RESERVED.fullmatch(text) or text.endswith(_TYPE):
        raise CompileError(f"'{text}' can't be a symbol's name: such names are the runtime's, or C's and C++'s")
    return text


def language_of(path: Path) -> Language:
    """That of a header with this name. Raises CompileError where it ends with neither .h nor .hpp."""
    languages: dict[str, Language] = {".h": "c", ".hpp": "c++"}
    if path.suffix not in languages:
        raise CompileError(f"'{path}': a header's name ends with .h (C) or .hpp (C++)")
    return languages[path.suffix]


def model_header(entries: Sequence[Mapping[str, Any]], prefix: str, form: Form, language: Language) -> str:
    """The header of a model with these entries (their metadata), whose names begin with `prefix`.

    `form` says what its function `load` takes: the path of a model file, constants that belong to an object, or nothing, since
    the static library has them.
    """
    found = _entries(entries, prefix)
    guard = f"{prefix.upper()}_MODEL_{'H' if language == 'c' else 'HPP'}"
    model, producer = _plain(entries[0]["name"]), _plain(entries[0]["producer"])
    title = f"Model '{model}', made by {producer}: its arguments and results, and typed calls."
    linked = [f"extern const dhlo_abi_model {prefix}_descriptor;"]
    if form == "archive":
        linked.append(f"extern const void* const {prefix}_constants;")
    body = _c(found, prefix, form, linked) if language == "c" else _cpp(found, prefix, form, linked)
    return "\n".join([f"/* {title} */", f"#ifndef {guard}", f"#define {guard}", "", *body, "", "#endif", ""])


# ------------------------------------------------------------------ what is described
@dataclass(frozen=True)
class _Value:
    """An argument or a result: its name in C, type, dtype's enumerator, number of dims, and words about it."""

    name: str
    type: str
    dtype: str
    rank: int
    comment: str


@dataclass(frozen=True)
class _Entry:
    """An entry: its name in C ("" for a model's only one), in the model, and what it takes and gives."""

    name: str
    title: str
    comment: list[str]
    inputs: list[_Value]
    outputs: list[_Value]


def _entries(entries: Sequence[Mapping[str, Any]], prefix: str) -> list[_Entry]:
    names = _distinct((_member(e["entry"]) for e in entries), {"load", "descriptor", "constants"})
    return [
        _Entry(
            name if entry["entry"] else "",
            entry["entry"],
            _sizes(entry["symbols"]),
            _values(entry["inputs"], entry["updated"]),
            _values(entry["outputs"], range(len(entry["outputs"])), const=True),
        )
        for name, entry in zip(names, entries, strict=True)
    ]


def _values(values: Sequence[Mapping[str, Any]], written: Iterable[int], const: bool = False) -> list[_Value]:
    """Inputs, of which some are written to; or outputs."""
    taken = {"session", "tensors", "Outputs"}
    spelt = (_member(v["name"]) for v in values)
    names, changed = _distinct((f"{n}_" if _CAPITALS.fullmatch(n) else n for n in spelt), taken), set(written)
    out = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        kind, dtype = _TYPES[value["dtype"]]
        update = number in changed and not const
        note = f"{value['dtype']}[{', '.join(value['dims'])}]" + (", new content is written to it" if update else "")
        if name != value["name"]:
            note = f"{value['name']}: {note}"
        out.append(_Value(name, kind if update else f"const {kind}", dtype, len(value["sizes"]), _plain(note)))
    return out


def _distinct(names: Iterable[str], taken: set[str]) -> list[str]:
    """The names, made different."""
    out = list[str]()
    for base in names:
        name = base
        number = 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        out.append(name)
    return out


def _sizes(symbols: Mapping[str, Sequence[Any]]) -> list[str]:
    return [
        _plain(("" if low is None else f"{low} <= ") + name + ("" if high is None else f" <= {high}"))
        for name, (low, high) in symbols.items()
    ]


def _plain(text: str) -> str:
    """For a comment: printable ASCII, and nothing that ends it or goes on behind its line."""
    return re.sub(r"[^ -~]|\\|(?<=\*)/|(?<=/)\*", "?", text)


# ------------------------------------------------------------------ C
def _c(entries: Sequence[_Entry], prefix: str, form: Form, linked: Sequence[str]) -> list[str]:
    lines = ["#include <stdbool.h>", "#include <string.h>", "", '#include "dhlo/runtime.h"', ""]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    loads = {
        "so": ("const char* path, ", "dhlo_model_load_file(path, options, out)"),
        "obj": (
            "const void* constants, size_t constants_bytes, ",
            f"dhlo_model_from_descriptor(&{prefix}_descriptor, constants, constants_bytes, NULL, NULL, options, out)",
        ),
        "archive": (
            "",
            f"dhlo_model_from_descriptor(&{prefix}_descriptor, {prefix}_constants,\n"
            f"                                    (size_t){prefix}_descriptor.constants_bytes, NULL, NULL, options, out)",
        ),
    }
    takes, call = loads[form]
    lines += [] if form == "so" else [*linked, ""]
    about = {
        "so": "Loads the model file.",
        "obj": "The model that is linked, with the content of its file of constants, 64-byte aligned, which is borrowed.",
        "archive": "The model that is linked.",
    }
    lines += [
        f"/* {about[form]} `options` may be NULL. Errors are in dhlo_last_error(). */",
        f"static inline dhlo_status {prefix}_load({takes}const dhlo_model_options* options, dhlo_model** out) {{",
        f"  return {call};",
        "}",
    ]
    for entry in entries:
        lines += ["", *_c_entry(entry, f"{prefix}_{entry.name}" if entry.name else prefix)]
    return [*lines, "", "#ifdef __cplusplus", "}", "#endif"]


def _c_entry(entry: _Entry, name: str) -> list[str]:
    lines = _about(entry)
    lines += ["/* Strides are in elements; NULL means dense row-major. */", f"typedef struct {name}_inputs {{"]
    for v in entry.inputs:
        sizes = f" int64_t sizes[{v.rank}]; const int64_t* strides;" if v.rank else ""
        lines.append(f"  struct {{ {v.type}* data;{sizes} }} {v.name}; /* {v.comment} */")
    lines += ["  char none;"] if not entry.inputs else []
    lines += [f"}} {name}_inputs;", "", "/* Dense row-major. Data is valid until the session's next run. */"]
    lines += [f"typedef struct {name}_outputs {{"]
    for v in entry.outputs:
        sizes = f" int64_t sizes[{v.rank}];" if v.rank else ""
        lines.append(f"  struct {{ {v.type}* data;{sizes} }} {v.name}; /* {v.comment} */")
    lines += ["  char none;"] if not entry.outputs else []
    lines += [
        f"}} {name}_outputs;",
        "",
        f"/* Runs a session of {_whose(entry)}. `outputs` may be NULL. Errors are in dhlo_session_error(session);",
        " * DHLO_INVALID_ARGUMENT also where the session is of a model with other results. */",
        f"static inline dhlo_status {name}_run(dhlo_session* session, const {name}_inputs* inputs, {name}_outputs* outputs) {{",
        f"  dhlo_tensor tensors[{max(len(entry.inputs), 1)}];",
        "  dhlo_tensor result;",
        "  dhlo_status status;",
        "  memset(tensors, 0, sizeof tensors);",
    ]
    for n, v in enumerate(entry.inputs):
        at = f"tensors[{n}]"
        lines += [f"  {at}.data = (void*)inputs->{v.name}.data;", f"  {at}.dtype = {v.dtype};", f"  {at}.rank = {v.rank};"]
        if v.rank:
            lines += [f"  {at}.sizes = inputs->{v.name}.sizes;", f"  {at}.strides = inputs->{v.name}.strides;"]
    lines += [] if entry.inputs else ["  (void)inputs;"]
    lines += [
        f"  status = dhlo_session_run(session, tensors, {len(entry.inputs)});",
        "  if (status != DHLO_OK || outputs == NULL) return status;",
    ]
    for n, v in enumerate(entry.outputs):
        data = f"outputs->{v.name}"
        lines += [
            f"  status = dhlo_session_output(session, {n}, &result);",
            "  if (status != DHLO_OK) return status;",
            f"  if (result.dtype != {v.dtype} || result.rank != {v.rank}) return DHLO_INVALID_ARGUMENT;",
            f"  {data}.data = ({v.type}*)result.data;",
        ]
        lines += [f"  memcpy({data}.sizes, result.sizes, sizeof {data}.sizes);"] if v.rank else []
    lines += [] if entry.outputs else ["  (void)result;"]
    return [*lines, "  return DHLO_OK;", "}"]


def _whose(entry: _Entry) -> str:
    return f"the model's entry '{entry.title}'" if entry.title else "the model"


def _about(entry: _Entry) -> list[str]:
    title = f"Entry '{entry.title}'. " if entry.title else ""
    sizes = f"Sizes: {', '.join(entry.comment)}. " if entry.comment else ""
    return [f"/* {(title + sizes).strip()} */"] if title or sizes else []


# ------------------------------------------------------------------ C++
def _cpp(entries: Sequence[_Entry], prefix: str, form: Form, linked: Sequence[str]) -> list[str]:
    options = "const dhlo_model_options* options = nullptr"
    loads = {
        "so": (f"const std::string& path, {options}", "dhlo::Model::load(path, options)", "Loads the model file."),
        "obj": (
            f"const void* constants, std::size_t constants_bytes, {options}",
            f"dhlo::Model::from({prefix}_descriptor, constants, constants_bytes, options)",
            "The model that is linked, with the content of its file of constants, 64-byte aligned, which is borrowed.",
        ),
        "archive": (
            options,
            f"dhlo::Model::from({prefix}_descriptor, {prefix}_constants,\n"
            f"                           static_cast<std::size_t>({prefix}_descriptor.constants_bytes), options)",
            "The model that is linked.",
        ),
    }
    takes, call, about = loads[form]
    lines = ["#include <cstddef>", "#include <cstdint>", "#include <string>", "", '#include "dhlo/runtime.hpp"', ""]
    lines += [] if form == "so" else ['extern "C" {', *linked, "}", ""]
    lines += [f"namespace {prefix} {{", "", f"// {about} Throws dhlo::RuntimeError.", f"inline dhlo::Model load({takes}) {{"]
    lines += [f"  return {call};", "}"]
    for entry in entries:
        lines += ["", *([f"namespace {entry.name} {{", ""] if entry.name else []), *_cpp_entry(entry)]
        lines += ["", f"}}  // namespace {entry.name}"] if entry.name else []
    return [*lines, "", f"}}  // namespace {prefix}"]


def _cpp_entry(entry: _Entry) -> list[str]:
    lines = [line.replace("/*", "//").replace(" */", "") for line in _about(entry)]
    lines += ["// Dense row-major. Data is valid until the session's next run.", "struct Outputs {"]
    lines += [f"  dhlo::View<{v.type}, {v.rank}> {v.name};  // {v.comment}" for v in entry.outputs]
    lines += ["};", "", f"// Runs a session of {_whose(entry)}. Throws dhlo::RuntimeError."]
    lines += [f"//   {v.name}: {v.comment}" for v in entry.inputs]
    parameters = ["dhlo::Session& session", *(f"const dhlo::View<{v.type}, {v.rank}>& {v.name}" for v in entry.inputs)]
    lines += [f"inline Outputs run({', '.join(parameters)}) {{"]
    if entry.inputs:
        tensors = ", ".join(f"{v.name}.tensor({v.dtype})" for v in entry.inputs)
        lines += [f"  const dhlo_tensor tensors[] = {{{tensors}}};", f"  session.run(tensors, {len(entry.inputs)});"]
    else:
        lines += ["  session.run(nullptr, 0);"]
    results = ", ".join(f"dhlo::View<{v.type}, {v.rank}>::of(session.output({n}), {v.dtype})" for n, v in enumerate(entry.outputs))
    return [*lines, f"  return {{{results}}};", "}"]
