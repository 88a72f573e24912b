"""Sums that do not depend on the order in which values are added."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray


def exact_terms(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Represent the exact sum of an array as a few floats.

    The first one is the rounded sum, the next one its rounding error, and so on. `sum_of_terms`
    adds the terms of several arrays. Its result does not depend on how the arrays were cut.

    Parameters
    ----------
    values : ndarray of float64
        Any shape.

    Returns
    -------
    tuple of float
        Usually one to three terms, or a single infinity or NaN if the sum is not finite.
    """
    rows = values.reshape(-1, values.shape[-1])
    terms: list[float] = []
    while term := _fsum(chain(chain.from_iterable(row.tolist() for row in rows), terms)):
        if not math.isfinite(term):
            return (term,)
        terms.append(-term)
    return tuple(-term for term in terms)


def sum_of_terms(parts: Iterable[tuple[float, ...]]) -> float:
    """Sum of the terms of several arrays, rounded once."""
    return _fsum(chain.from_iterable(parts))


def _fsum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf
    except ValueError:  # infinities of both signs
        return math.nan
