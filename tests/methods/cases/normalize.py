"""Cases for the methods of `maxslices_methods.normalize`."""

from __future__ import annotations

from maxslices.checking.case import Case

CASES = [
    Case("dark_flat_field_correction", (64, 65, 67), "uint16"),
    Case("dark_flat_field_correction", (53, 101, 97)),
    Case("dark_flat_field_correction", (61, 40, 128), "uint16", {"upper_bound": 1.2}),
    Case(
        "dark_flat_field_correction",
        (50, 41, 43),
        "uint8",
        {"flats_multiplier": 1.1, "darks_multiplier": 0.9, "lower_bound": 0.0},
    ),
    Case("minus_log", (64, 65, 67)),
    Case("minus_log", (53, 50, 97), "uint16"),
    Case("minus_log", (50, 61, 128)),
]

GPU_CASES = [
    Case("dark_flat_field_correction", (64, 2160, 2560), "uint16"),
    Case("dark_flat_field_correction", (64, 2160, 2560), "uint16", {"upper_bound": 1.2}),
    Case("dark_flat_field_correction", (64, 2160, 2560)),
    Case("dark_flat_field_correction", (67, 2161, 2557), "uint16"),
    Case("dark_flat_field_correction", (101, 1009, 1013)),
    Case("minus_log", (64, 2160, 2560)),
    Case("minus_log", (64, 2160, 2560), "uint16", slice_dim=0),
    Case("minus_log", (1801, 32, 2560), slice_dim=1),
    Case("minus_log", (67, 2161, 2557), slice_dim=0),
]
