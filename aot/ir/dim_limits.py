"""Limits on the size of dim expressions, whatever ops make them.

Owns the limits, which `dims` checks where it multiplies, divides and compares: a few ops of a model
on its shapes make an expression that no memory holds, or that takes minutes to bring to its form.
"""

from __future__ import annotations

from aot.errors import CompileError

MOST_CHARACTERS = 1 << 17  # of an expression's text
MOST_FACTORS = 64  # of a term, as the elements of a tensor are a product of its extents
MOST_NUMBER = 1 << 4096  # of coefficients, and of what an estimate computes
MOST_ARGUMENTS = 64  # of a minimum or maximum, each of which is compared with each
MOST_DEPTH = 96  # of divisions, minima and maxima in one another


class OversizedDimError(CompileError):
    """An expression of extents exceeds the limits."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"an extent would be an expression {what}: give the extents of the model's inputs as "
            "numbers (--input-shape, input_shapes)"
        )


def check_length(characters: int) -> None:
    """Checks the length of an expression's text, or an upper bound of it.

    Raises:
        OversizedDimError: it is longer than one may be.
    """
    if characters > MOST_CHARACTERS:
        raise OversizedDimError(f"of more than {MOST_CHARACTERS} characters")


def check_numbers(*numbers: int) -> None:
    """Checks the size of coefficients, or of a product of two numbers.

    Raises:
        OversizedDimError: one is longer than a number in an expression may be.
    """
    if max(map(abs, numbers)) > MOST_NUMBER:
        raise OversizedDimError(f"with numbers of more than {MOST_NUMBER.bit_length() - 1} bits")
