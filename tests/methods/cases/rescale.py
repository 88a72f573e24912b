"""Cases for the methods of `maxslices_methods.rescale`."""

from __future__ import annotations

from maxslices.checking.case import Case

WHOLE = {"glob_stats": (0.1, 1.0, 0.5, 1)}
MEAN = 1e-12
"""The mean is a sum, whose order depends on the blocks."""

CASES = [
    Case("calculate_stats", (64, 65, 67), tolerance=MEAN),
    Case("calculate_stats", (53, 101, 97), "uint16", tolerance=MEAN),
    Case("calculate_stats", (50, 61, 301), tolerance=MEAN),
    Case("rescale_to_int", (64, 65, 67), parameters=WHOLE),
    Case("rescale_to_int", (53, 101, 97), parameters={"bits": 16, **WHOLE}),
    Case("rescale_to_int", (53, 50, 97), parameters={"bits": 32, **WHOLE}),
    Case(
        "rescale_to_int",
        (50, 61, 301),
        "uint16",
        {"perc_range_min": 10.0, "perc_range_max": 90.0, "glob_stats": [0, 60000]},
    ),
]

GPU_CASES = [
    Case("calculate_stats", (64, 2160, 2560), tolerance=MEAN, slice_dim=0),
    Case("calculate_stats", (67, 2161, 2557), "uint16", tolerance=MEAN, slice_dim=0),
    Case("calculate_stats", (1801, 32, 2560), tolerance=MEAN, slice_dim=1),
    Case("rescale_to_int", (64, 2160, 2560), parameters=WHOLE, slice_dim=0),
    Case("rescale_to_int", (64, 2160, 2560), parameters={"bits": 16, **WHOLE}, slice_dim=0),
    Case("rescale_to_int", (67, 2161, 2557), parameters={"bits": 32, **WHOLE}, slice_dim=0),
    Case("rescale_to_int", (64, 2560, 2560), "uint16", {"glob_stats": [0, 60000]}, slice_dim=0),
    Case("rescale_to_int", (1801, 32, 2560), parameters=WHOLE, slice_dim=1),
]
