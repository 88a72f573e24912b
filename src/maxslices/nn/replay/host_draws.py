"""Random numbers of Python's and NumPy's own generators, such as those that choose layers to drop.

torch keeps the state of its generators around what it computes again, and not of these.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class HostDraws:
    """State of the generators now, to which they can be set again."""

    def __init__(self) -> None:
        self._python: Any = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = None if numpy is None else numpy.random.get_state()

    def drop_unchanged(self) -> None:
        """Forget the state of generators that have drawn nothing since."""
        now = HostDraws()
        if now._python == self._python:
            self._python = None
        if self._numpy is None or all(
            a is b or bool((a == b).all() if hasattr(a, "all") else a == b)
            for a, b in zip(now._numpy, self._numpy, strict=True)
        ):
            self._numpy = None

    def set(self) -> None:
        """Set the generators to this state."""
        if self._python is not None:
            random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw from here inside, and go on afterwards as if nothing had been drawn."""
        if self._python is None and self._numpy is None:
            yield
            return
        now = HostDraws()
        self.set()
        try:
            yield
        finally:
            now.set()


@contextmanager
def seeded_host_draws(seed: int) -> Iterator[None]:
    """Draw the numbers of a seed inside, and go on afterwards as if nothing had been drawn."""
    before = HostDraws()
    random.seed(seed)
    if before._numpy is not None:
        sys.modules["numpy"].random.seed(seed)
    try:
        yield
    finally:
        before.set()
