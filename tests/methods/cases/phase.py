"""Cases for the methods of `maxslices_methods.phase`."""

from __future__ import annotations

from maxslices.checking.case import Case

_FAST = {"calculate_padding_value_method": "next_fast_length"}
_MARGINS = {"calculate_padding_value_method": "use_pad_x_y", "pad_x_y": [5, 12]}

_ROUNDING = 1e-6
"""SciPy's FFT takes several rows at a time where a CPU's registers hold as many, and rounds
the rest otherwise: the last bits of a frame may depend on those beside it."""

CASES = [
    Case("paganin_filter", (64, 60, 72), tolerance=_ROUNDING),
    Case("paganin_filter", (64, 60, 72), "uint16", tolerance=_ROUNDING),
    Case("paganin_filter", (67, 61, 73), parameters=_FAST, tolerance=_ROUNDING),
    Case("paganin_filter", (67, 61, 73), "uint16", _FAST, tolerance=_ROUNDING),
    Case("paganin_filter", (51, 47, 53), parameters=_MARGINS, tolerance=_ROUNDING),
    Case("paganin_filter", (50, 47, 52), "uint16", _MARGINS, tolerance=_ROUNDING),
    Case(
        "paganin_filter",
        (50, 37, 65),
        parameters={"ratio_delta_beta": 1000.0, "energy": 20.0},
        tolerance=_ROUNDING,
    ),
    Case("paganin_filter", (50, 301, 17), tolerance=_ROUNDING),
    Case("paganin_filter", (53, 2, 301), parameters=_FAST, tolerance=_ROUNDING),
]

# cuFFT's frames do not depend on each other, and every chunk has the same number of them.
GPU_CASES = [
    Case("paganin_filter", (64, 2160, 2560)),
    Case("paganin_filter", (64, 2160, 2560), "uint16"),
    Case("paganin_filter", (64, 2160, 2560), parameters=_FAST),
    Case("paganin_filter", (61, 2161, 2557), parameters=_FAST),
    Case("paganin_filter", (61, 2161, 2557), "uint16"),
    Case(
        "paganin_filter",
        (64, 2160, 2560),
        parameters={"calculate_padding_value_method": "use_pad_x_y", "pad_x_y": [100, 100]},
    ),
    Case(
        "paganin_filter",
        (61, 1801, 2557),
        parameters={"calculate_padding_value_method": "use_pad_x_y", "pad_x_y": [101, 53]},
    ),
    Case("paganin_filter", (200, 509, 499)),
]
