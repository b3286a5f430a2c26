"""Operators that dhlo leaves out on purpose, with the reason."""

from __future__ import annotations

import re

__all__ = ["out_of_scope"]

# What must match an operator's qualified name, and why it has no lowering.
_REASONS: list[tuple[str, str]] = [
    (
        r"linalg_(eig|eigh|eigvals|eigvalsh|householder_product|ldl_factor_ex|ldl_solve|lstsq|lu|lu_solve|matrix_exp|pinv|qr)|"
        r"_linalg_(eigh|svd)|cholesky_inverse|cholesky_solve|geqrf|lu_unpack|ormqr|triangular_solve",
        "matrix decompositions",
    ),
    (
        r"special_(airy_ai|bessel_[jy][01]|(scaled_)?modified_bessel_[ik][01]|(shifted_)?chebyshev_polynomial_[tuvw]|"
        r"hermite_polynomial_he?|laguerre_polynomial_l|legendre_polynomial_p)|bessel_j[01]|spherical_bessel_j0|"
        r"igammac?|polygamma|zeta|ndtri",
        "special functions without a kernel",
    ),
    (r"_?sparse\w*|to_sparse\w*|_to_sparse\w*|_nested\w*|to_mkldnn", "sparse and nested tensors"),
]


def out_of_scope(operator: str) -> str | None:
    """Why an operator ("aten.svd.default") is left out; None if it isn't."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else operator
    return next((reason for pattern, reason in _REASONS if re.fullmatch(pattern, name)), None)
