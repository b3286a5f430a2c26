"""The dialect: types, size expressions, ops."""
