"""FFT plans that a method asks CuPy for, kept as CuPy keeps those of its own transforms.

CuPy's ``get_fft_plan`` takes a plan from CuPy's cache, but what it makes it does not put there.
So a method that asks for one has it made and freed for each block; and to free what cuFFT holds
for a plan waits for all that the device does, copies of other blocks included.
"""

from __future__ import annotations

import sys
from typing import Any

_MODULE, _MAKER = "cupyx.scipy.fftpack._fft", "_get_cufft_plan_nd"
"""Where ``get_fft_plan`` looks up what makes plans of two and three axes (CuPy 13 and 14)."""
_is_kept = False


def keep(is_wanted: bool) -> None:
    """Have such plans kept from now on, or not; CuPy's cache is emptied as ever.

    Where nobody has imported CuPy's module, or it is another, nothing happens.
    """
    global _is_kept
    _is_kept = is_wanted
    module = sys.modules.get(_MODULE)
    make = getattr(module, _MAKER, None)
    if not is_wanted or make is None or hasattr(make, "makes_for"):
        return

    def make_or_find(*args: Any, to_cache: bool = True, **options: Any) -> Any:
        return make(*args, to_cache=to_cache or _is_kept, **options)

    make_or_find.makes_for = "maxslices"  # type: ignore[attr-defined]
    setattr(module, _MAKER, make_or_find)
