"""`dhlo keygen`, `dhlo sign` and `dhlo verify`: signatures of model files."""

from __future__ import annotations

from pathlib import Path

from dhlo.commands.console import console
from dhlo.model_file import open_sections, verify_files
from dhlo.signing import generate_key, sign_file, verify_file

__all__ = ["make_keys", "sign_model", "verify_model"]


def make_keys(private: Path, public: Path) -> None:
    """Writes a new Ed25519 key pair. Raises DhloError where there is a file already."""
    generate_key(private, public)
    console().print(f"{private}: keep it to yourself\n{public}: for those who load your models")


def sign_model(path: Path, key: Path) -> None:
    """Writes the signature of a model file beside it. Raises ModelFileError where the file is damaged."""
    console().print(f"{sign_file(path, key)}")


def verify_model(path: Path, key: Path | None) -> None:
    """Verifies every byte of a model file and its weights file against their digests and, with a key, its signature. Raises
    ModelFileError."""
    if key is not None:
        digest, what = verify_file(path, key), f"signed with {key}"
    else:
        with open_sections(path) as sections:
            verify_files(path, sections)
            digest, what = sections.file_digest, "whole; its signature wasn't checked (--key)"
    console().print(f"{path}: {what}\nSHA-256: {digest.hex()}")
