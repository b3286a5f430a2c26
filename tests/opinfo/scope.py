"""Operators that dhlo leaves out on purpose, with the reason."""

from __future__ import annotations

import re

__all__ = ["out_of_scope"]

# What must match an operator's qualified name, and why it has no lowering.
_REASONS: list[tuple[str, str]] = [
    (r"linalg_(cholesky|cholesky_ex|eig|eigh|eigvals|eigvalsh|_eigh|_svd|svd|svdvals|qr|lu|lu_factor|lu_factor_ex|lu_solve|ldl\w*|inv|inv_ex|"
     r"solve|solve_ex|_solve_ex|solve_triangular|lstsq|matrix_rank|pinv|det|_det|slogdet|_slogdet|householder_product|cond|matrix_exp|"
     r"tensorinv|tensorsolve|matrix_norm|norm)\b|cholesky\w*|_linalg\w*|geqrf|ormqr|orgqr|triangular_solve|lu_unpack|lu_solve|matrix_exp|"
     r"linalg_\w*|logdet|slogdet|det|inverse|pinverse|svd|qr|_lu_with_info|lobpcg|pca_lowrank",
     "matrix decompositions"),
    (r"special_(airy_ai|bessel_\w+|modified_bessel_\w+|scaled_modified_bessel_\w+|spherical_bessel_j0|chebyshev_\w+|hermite_\w+|"
     r"laguerre_\w+|legendre_\w+|shifted_chebyshev_\w+|zeta|ndtri|log_ndtr|erfcx|i0e|i1|i1e)|polygamma\w*|igamma\w*|i0|"
     r"_standard_gamma|special_\w+",
     "special functions without a kernel"),
    (r"bessel_\w+|chebyshev\w*|zeta|ndtri|erfcx", "special functions without a kernel"),
    (r"_?sparse\w*|to_sparse\w*|_to_sparse\w*|_nested\w*|to_mkldnn", "sparse and nested tensors"),
]


def out_of_scope(operator: str) -> str | None:
    """Why an operator ("aten.svd.default") is left out; None if it isn't."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else operator
    return next((reason for pattern, reason in _REASONS if re.fullmatch(pattern, name)), None)
