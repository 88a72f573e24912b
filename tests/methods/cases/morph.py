"""Cases for the methods of `maxslices_methods.morph`."""

from __future__ import annotations

from maxslices.checking.case import Case

CASES = [
    Case("sino_360_to_180", (64, 60, 67)),
    Case("sino_360_to_180", (101, 53, 97), "uint16", {"overlap": 20}),
    Case("sino_360_to_180", (121, 61, 101), parameters={"overlap": 31.0, "side": "right"}),
    Case("sino_360_to_180", (100, 50, 67), parameters={"overlap": -9}),
    Case("data_resampler", (64, 65, 67), parameters={"newshape": [33, 40]}),
    Case("data_resampler", (53, 101, 97), "uint16", {"newshape": [120, 131]}),
    Case("data_resampler", (61, 64, 97), parameters={"newshape": [31, 300]}),
    Case("data_resampler", (61, 67, 64), "uint16", {"newshape": [80, 37]}),
    Case(
        "data_resampler",
        (53, 101, 97),
        parameters={"newshape": [120, 61], "interpolation": "nearest"},
    ),
]

GPU_CASES = [
    Case("sino_360_to_180", (1801, 64, 2560)),
    Case("sino_360_to_180", (1801, 64, 2560), parameters={"overlap": 200}),
    Case("sino_360_to_180", (1801, 61, 2557), "uint16", {"overlap": 201, "side": "right"}),
    Case("sino_360_to_180", (1800, 64, 2560), parameters={"overlap": -50}),
    Case("data_resampler", (64, 2160, 2560), parameters={"newshape": [1080, 1280]}, slice_dim=0),
    Case("data_resampler", (64, 2160, 2560), "uint16", {"newshape": [1080, 1280]}, slice_dim=0),
    Case("data_resampler", (33, 2161, 2557), parameters={"newshape": [2999, 3001]}, slice_dim=0),
    Case("data_resampler", (1801, 64, 2560), parameters={"newshape": [901, 1280]}, slice_dim=1),
    Case(
        "data_resampler",
        (64, 2160, 2560),
        parameters={"newshape": [1080, 1280], "interpolation": "nearest"},
        slice_dim=0,
    ),
]
