"""Random numbers that a step draws on the host, from generators set to low or to high numbers.

In a model that drops layers by ``torch.rand(1) < p``, the numbers drawn decide the memory. Replays
with low, high and other numbers run the shortest and the longest path of such a step, if all its
decisions are of the same kind.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np
import torch

PATHS = ("low", "high", "seed 1", "seed 2")
"""Draws with which a step is replayed if its path may depend on them."""
_N_WORDS = 624
"""Words in the state of a Mersenne twister. All three generators are of this kind."""
_N_EXTREME = _N_WORDS // 2
"""Words that are set to an extreme. The rest is random, since some distributions draw until they
accept a number."""
_HIGHEST = 0x12DD9BB3
"""State word for which a Mersenne twister returns 0xFFFFFFFF."""
_TORCH = os.path.dirname(torch.__file__) + os.sep
_KINDS = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)
_WORDS_AT = 24
"""Offset of the words in the state of torch's generator. Each has 8 bytes."""


class HostGenerators:
    """Generators on the host that a replay may draw from.

    These are the global generators, and generators that the code of a model refers to: attributes
    of its modules, global variables of the files that define them, and variables of closures.

    Parameters
    ----------
    draws : str
        One of `PATHS`, or "" to leave the states of the generators unchanged.
    """

    def __init__(self, draws: str) -> None:
        self._words = _words(draws) if draws else None
        self._watched: list[_Watched] = []
        self._tables: set[int] = set()
        for name, generator in (
            ("torch", torch.default_generator),
            ("random", random._inst),
            ("numpy.random", np.random.mtrand._rand),
        ):
            self._add(name, generator)

    def _add(self, name: str, generator: Any) -> None:
        if any(watched.generator is generator for watched in self._watched):
            return
        watched = _Watched(name, generator)
        if self._words is not None:
            watched.set(self._words)
        self._watched.append(watched)

    def add_those_of(self, code: Any, path: str = "") -> None:
        """Watch the generators that a module, its submodules, or a function refers to."""
        if isinstance(code, torch.nn.Module):
            for name, module in code.named_modules():
                where = ".".join(filter(None, (path, name)))
                self._add_table(vars(module), f"{where}." if where else "")
                self._add_function(type(module).forward)
                for attribute in vars(module).values():
                    self._add_function(attribute)
        else:
            self._add_function(code)

    def _add_function(self, function: Any) -> None:
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename.startswith(_TORCH):
            return
        self._add_table(function.__globals__, "")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a variable without a value
                value = cell.cell_contents
                if type(value) in _KINDS:
                    self._add(name, value)
                elif isinstance(value, FunctionType) and id(value) not in self._tables:
                    self._tables.add(id(value))
                    self._add_function(value)

    def _add_table(self, table: dict[str, Any], prefix: str) -> None:
        if id(table) in self._tables:
            return
        self._tables.add(id(table))
        for name, value in list(table.items()):
            if type(value) in _KINDS:
                self._add(prefix + name, value)

    def drawn_from(self) -> tuple[str, ...]:
        """Names of the generators that have drawn numbers."""
        return tuple(watched.name for watched in self._watched if watched.has_drawn())

    def restore(self) -> None:
        """Restore the states of all generators."""
        for watched in self._watched:
            watched.restore()


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


class _Watched:
    """Generator with its state before a replay."""

    def __init__(self, name: str, generator: Any) -> None:
        self.name, self.generator = name, generator
        self._state = self._first_state = _state_of(generator)
        self._stream = getattr(generator, "bit_generator", None)

    def set(self, words: Any) -> None:
        """Make the generator draw from these words first."""
        generator, state = self.generator, self._state
        if isinstance(generator, torch.Generator):
            raw = state.numpy().copy()
            raw[8:16].view(np.int32)[:] = _N_WORDS, 1  # words that are left, and "seeded"
            raw[16:24].view(np.uint64)[0] = 0
            end = _WORDS_AT + 8 * _N_WORDS
            raw[_WORDS_AT:end].view(np.uint64)[:] = words
            raw[end:] = 0  # no cached second number of a normal pair
            state = torch.from_numpy(raw)
        elif isinstance(generator, random.Random):
            state = 3, (*map(int, words), 0), None
        elif isinstance(generator, np.random.RandomState):
            state = "MT19937", words, 0, 0, 0.0
        else:  # of any kind: reinitialized in place with a Mersenne twister
            generator.__init__(np.random.MT19937(0))
            state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 0}}
        _set_state(generator, state)
        self._first_state = _state_of(generator)

    def has_drawn(self) -> bool:
        """True if the generator has drawn numbers since it was set."""
        return bool(_comparable(_state_of(self.generator)) != _comparable(self._first_state))

    def restore(self) -> None:
        """Restore the state of the generator."""
        if self._stream is not None:
            self.generator.__init__(self._stream)
        _set_state(self.generator, self._state)


def _comparable(state: Any) -> Any:
    """State of a generator in a form that can be compared."""
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else repr(state)


def _words(draws: str) -> Any:
    seed = int(draws.removeprefix("seed ")) if draws.startswith("seed") else 0
    words = np.random.RandomState(seed).randint(0, 2**32, _N_WORDS, dtype=np.uint32)
    if draws in ("low", "high"):
        words[:_N_EXTREME] = 0 if draws == "low" else _HIGHEST
    return words
