"""How well probes answer by peaks alone: on a GPU that is made up and records no allocations.

::

    python docs/scripts/peaks_alone_table.py

No GPU is needed, and time passes only as the methods say. Each row has the peaks of recorded cases,
or of made-up sums, steps, paddings and squares, for budgets of some numbers of slices. In range is
98 to 100 % of the slices that fit.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.estimate.conftest import install_gpu
from tests.estimate.made_up_gpu import INPUT_BYTES, MB, Gpu, needs_of, probed_on
from tests.estimate.measured_teeth import MIB, teeth
from tests.estimate.recorded_sequences import recorded

from maxslices.estimate.peak_model import PeakModel

Take = Callable[[int], dict[str, Any]]
TOTAL = 2160
"""Slices of the scan."""


def made_up() -> Iterator[Take]:
    """The highest of some lines, slices rounded up, and what else methods do."""
    rng = random.Random(1)
    for _ in range(60):
        lines = [(rng.randint(0, 300), rng.randint(1, 16)) for _ in range(rng.randint(1, 4))]
        yield lambda k, lines=lines: {"inside": max(a + b * k for a, b in lines) * 3 * MB}
    for period in (0, 2, 3, 4, 5, 7, 8, 10, 16, 32):
        for fixed in (0, 10, 50):
            for a, b in ((1, 1), (2, 5), (6, 1)):

                def rounded(k: int, period=period, fixed=fixed, a=a, b=b) -> dict[str, Any]:
                    up = -(-k // period) * period if period else 1 << (k - 1).bit_length()
                    return {"inside": (fixed + a * k + b * up) * 9 * MB}

                yield rounded
    yield lambda k: {"inside": int(teeth(k) * MIB) - INPUT_BYTES * k}
    yield lambda k: {"inside": 900 * MB + 10 * MB * k + MB * k * k // 4}
    yield lambda k: {"inside": 40 * MB * k + 300 * MB * min(k, 16)}
    yield lambda k: {"inside": 20 * MB * k, "outside": 90 * MB + 33 * MB * k}
    yield lambda k: {"inside": 20 * MB * k, "outside": 700 * MB}
    yield lambda k: {"inside": 20 * MB * k, "outside": 7 * MB * (-(-k // 16) * 16)}
    yield lambda k: {"inside": 20 * MB * k, "outside": 2.5 * MB * k * (k - 1).bit_length()}


def as_recorded() -> Iterator[Take]:
    """Peaks of the cases recorded on an H200."""
    for case in recorded():
        model = PeakModel.fit([case.observation(n) for n in case.calls])
        yield lambda k, model=model: {"inside": model.bytes(k)}


def row(
    name: str,
    cases: Sequence[Take],
    counts: Sequence[int],
    seconds: Callable[[int], float] = lambda k: 0.005,
    **options: Any,
) -> str:
    """Probe all cases with the memory of so many slices."""
    in_range, above, sure, times = 0, 0, 0, []
    for take in cases:
        needs = needs_of(take)
        for n in counts:
            available = int(needs(n) + MB)
            patch = pytest.MonkeyPatch()
            gpu = install_gpu(patch, Gpu())
            found = probed_on(
                gpu, lambda k, take=take: take(k) | {"seconds": seconds(k)}, available, **options
            )
            patch.undo()
            right = next((k for k in range(TOTAL) if needs(k + 1) > available), TOTAL)
            in_range += 0.98 * right <= found.answer <= right
            above += found.answer > right
            sure += found.answer > right and found.sure
            times.append(gpu.now_s)
    middle = statistics.median(times)
    return f"| {name} | {len(times)} | {in_range} | {above} | {sure} | {middle:.2f} |"


def main() -> None:
    """Print the table."""
    real, other = list(as_recorded()), list(made_up())
    few, most = (9, 40, 100), (9, 17, 40, 61, 100, 237)
    print("| calls | cases | in range | above | of these said to be proven | seconds |")
    print("|---|---|---|---|---|---|")
    print(row("quick, recorded", real, most))
    print(row("quick, made up", other, most))
    long = {"seconds": lambda k: 0.2 + 0.02 * k}
    print(row("0.2 s and 0.02 s a slice, recorded", real, few, **long))
    print(row("0.6 s and 0.05 s a slice, recorded", real, few, lambda k: 0.6 + 0.05 * k))
    print(row("0.2 s and 0.02 s a slice, made up", other, (40, 100), **long))


if __name__ == "__main__":
    main()
