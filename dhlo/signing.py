"""Detached Ed25519 signatures of model files, made and checked by the package `cryptography`."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dhlo.container import write_bytes
from dhlo.errors import DhloError, SignatureError
from dhlo.model_file import open_sections, verify_files
from dhlo.schema import read_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["check_signature", "describe_signature", "generate_key", "sign_file", "signature_path", "verify_file"]

_CONTEXT: Final = b"dhlo model file\0"  # what is signed is this and the file's digest: no signature means anything elsewhere
_SCHEMA: Final = {"format": int, "algorithm": str, "digest": str, "key": str, "signature": str}
_LARGEST: Final = 1 << 16


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise DhloError("signatures need the package cryptography (pip install 'dhlo[sign]')") from None
    return serialization


def signature_path(path: str | Path) -> Path:
    """Where the signature of a model file is."""
    return Path(f"{path}.sig")


def _read_small(path: Path) -> bytes:
    """A key or a signature, or the beginning of a larger file. Raises OSError, also for what is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Is not a regular file", str(path))
        return file.read(_LARGEST)


def generate_key(private: Path, public: Path) -> None:
    """Writes a new key pair as PEM; the private key is for its owner alone. Raises DhloError where a file is there already."""
    serialization = _library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    made: list[Path] = []
    try:
        for path, data, mode in ((private, secret, 0o600), (public, shown, 0o666)):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            made.append(path)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
    except OSError as e:
        for path in made:  # half a pair is of no use
            path.unlink(missing_ok=True)
        if isinstance(e, FileExistsError):
            raise DhloError(f"'{e.filename}' is there already; a key isn't overwritten") from None
        raise


def sign_file(path: Path, private_key: Path) -> Path:
    """Verifies a model file and writes its signature beside it; returns the signature's path.

    Raises ModelFileError where the file is damaged, DhloError where the key isn't an Ed25519 private key.
    """
    serialization = _library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(_read_small(private_key), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:  # TypeError: it is encrypted
        raise DhloError(f"'{private_key}' isn't an unencrypted private key in PEM: {e}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise DhloError(f"'{private_key}' isn't an Ed25519 key")
    with open_sections(path) as sections:
        verify_files(path, sections)
        digest = sections.file_digest
    text = json.dumps({
        "format": 1, "algorithm": "ed25519", "digest": digest.hex(), "key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(_CONTEXT + digest).hex()}, indent=1) + "\n"  # fmt: skip
    to = signature_path(path)
    write_bytes(to, text.encode())
    return to


def _read_key(key: str | os.PathLike[str] | bytes) -> Ed25519PublicKey:
    serialization = _library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    name = "the key" if isinstance(key, bytes) else f"'{key}'"
    data = key if isinstance(key, bytes) else _read_small(Path(key))
    try:
        found = Ed25519PublicKey.from_public_bytes(data) if len(data) == 32 else serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise DhloError(f"{name} isn't a public key in PEM: {e}") from None
    if not isinstance(found, Ed25519PublicKey):
        raise DhloError(f"{name} isn't an Ed25519 key")
    return found


def _read_signature(path: str | Path) -> dict[str, Any]:
    place = signature_path(path)
    try:
        data = _read_small(place)
    except OSError as e:
        raise SignatureError(f"model file '{path}' isn't signed: '{place}': {e.strerror}") from None
    try:
        found: dict[str, Any] = read_json(data, _SCHEMA)
        for field in ("digest", "key", "signature"):
            found[field] = bytes.fromhex(found[field])
    except ValueError as e:
        raise SignatureError(f"'{place}' isn't a signature: {e}") from None
    if found["format"] != 1 or found["algorithm"] != "ed25519":
        raise SignatureError(f"'{place}' is of a kind that this dhlo doesn't know")
    return found


def check_signature(path: str | Path, key: str | os.PathLike[str] | bytes) -> Callable[[bytes], bool]:
    """A function of a file's digest that returns true if the signature beside `path` is the key's for it, and raises
    SignatureError, which says what is wrong, if not. `key` is a PEM file's path, PEM bytes, or the key's 32 bytes.

    Raises SignatureError where there is no signature, DhloError and OSError where there is no such key.
    """
    public = _read_key(key)
    signature = _read_signature(path)
    from cryptography.exceptions import InvalidSignature

    def check(digest: bytes) -> bool:
        if signature["key"] != public.public_bytes_raw():
            raise SignatureError(f"model file '{path}': signed with another key")
        if signature["digest"] != digest:
            raise SignatureError(f"model file '{path}': '{signature_path(path)}' is the signature of another file")
        try:
            public.verify(signature["signature"], _CONTEXT + digest)
        except InvalidSignature:
            raise SignatureError(f"model file '{path}': its signature is forged or damaged") from None
        return True

    return check


def verify_file(path: Path, key: str | os.PathLike[str] | bytes) -> bytes:
    """Verifies every byte of a model file and its signature; returns the file's digest. Raises like `check_signature`, and
    ModelFileError."""
    check = check_signature(path, key)
    with open_sections(path) as sections:
        check(sections.file_digest)
        verify_files(path, sections)
        return sections.file_digest


def describe_signature(path: Path, digest: bytes) -> str:
    """Whether there is a signature beside the file, and whose; says nothing of whether it is right, for which a key is needed."""
    if not signature_path(path).exists():
        return "none"
    try:
        found = _read_signature(path)
    except SignatureError as e:
        return str(e)
    if found["digest"] != digest:
        return "of another file"
    return f"by the Ed25519 key {found['key'].hex()}, not checked (dhlo verify)"
