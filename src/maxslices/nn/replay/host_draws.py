"""Random numbers that a step draws on the host, from generators set to low or to high numbers.

A model that drops layers by ``torch.rand(1) < p`` allocates what it draws. Replayed from low, from
high and from other numbers, such a step takes its shortest and its longest path where its decisions
go one way.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

PATHS = ("low", "high", "seed 1", "seed 2")
"""Draws that a step is replayed with if its path may depend on them."""
_N_WORDS = 624
"""Words of the state of a Mersenne twister, which all three generators are."""
_N_EXTREME = _N_WORDS // 2
"""Words that are set to an extreme. Others follow, since some distributions draw until a number
suits them."""
_HIGHEST = 0x12DD9BB3
"""Word that a Mersenne twister returns as 0xFFFFFFFF."""
_WORDS_AT = 24
"""Place of the words in the state of a generator of torch, 8 bytes each."""


def _state_of(generator: Any) -> Any:
    """State of a generator, to be compared."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state())
    return repr(generator.bit_generator.state)


def _set(generator: Any, words: Any) -> None:
    """Set a generator so that it draws from these words first; others stay as they are."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state().numpy().copy()
        state[8:16].view(np.int32)[:] = _N_WORDS, 1  # words that are left, and "seeded"
        state[16:24].view(np.uint64)[0] = 0
        end = _WORDS_AT + 8 * _N_WORDS
        state[_WORDS_AT:end].view(np.uint64)[:] = words
        state[end:] = 0  # no half of a pair of normal numbers
        generator.set_state(torch.from_numpy(state))
    elif isinstance(generator, random.Random):
        generator.setstate((3, (*map(int, words), 0), None))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(("MT19937", words, 0, 0, 0.0))


def _words(draws: str) -> Any:
    seed = int(draws.removeprefix("seed ")) if draws.startswith("seed") else 0
    words = np.random.RandomState(seed).randint(0, 2**32, _N_WORDS, dtype=np.uint32)
    if draws in ("low", "high"):
        words[:_N_EXTREME] = 0 if draws == "low" else _HIGHEST
    return words


class HostGenerators:
    """Generators on the host that a replay may draw from.

    Parameters
    ----------
    draws : str
        One of `PATHS`, or "": the generators go on from where they are.
    """

    def __init__(self, draws: str) -> None:
        self._words = _words(draws) if draws else None
        self._before: dict[str, tuple[Any, Any]] = {}
        self.add("torch", torch.default_generator)
        self.add("random", random._inst)
        self.add("numpy.random", np.random.mtrand._rand)

    def add(self, name: str, generator: Any) -> None:
        """Watch one more generator."""
        if self._words is not None:
            _set(generator, self._words)
        self._before[name] = generator, _state_of(generator)

    def add_those_of(self, model: torch.nn.Module) -> None:
        """Watch the generators that the modules of a copy have of their own."""
        kinds = torch.Generator, random.Random, np.random.RandomState, np.random.Generator
        for path, module in model.named_modules():
            for name, held in vars(module).items():
                if isinstance(held, kinds):
                    self.add(f"{path}.{name}" if path else name, held)

    def drawn_from(self) -> tuple[str, ...]:
        """Names of the generators that have drawn something."""
        return tuple(
            name
            for name, (generator, state) in self._before.items()
            if _state_of(generator) != state
        )
