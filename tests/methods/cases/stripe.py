"""Cases for the methods of `maxslices_methods.stripe`."""

from __future__ import annotations

from maxslices.checking.case import Case

CASES = [
    Case("remove_stripe_based_sorting", (64, 60, 72)),
    Case("remove_stripe_based_sorting", (67, 53, 71), "uint16"),
    Case("remove_stripe_based_sorting", (61, 50, 67), parameters={"size": 5, "dim": 2}),
    Case("remove_stripe_based_sorting", (60, 50, 66), "uint16", {"size": 4}),
    Case("remove_stripe_based_sorting", (181, 50, 257), parameters={"size": 3}),
    Case("remove_stripe_based_sorting", (64, 60, 72), parameters={"size": 1}),
    Case("remove_stripe_ti", (64, 60, 72)),
    Case("remove_stripe_ti", (67, 53, 71)),
    Case("remove_stripe_ti", (67, 53, 71), "uint16", {"beta": 0.02}),
    Case("remove_stripe_ti", (181, 101, 257), parameters={"beta": 1.0}),
    Case("remove_stripe_fw", (64, 60, 72)),
    Case("remove_stripe_fw", (67, 53, 71), "uint16"),
    Case("remove_stripe_fw", (67, 53, 71), parameters={"wname": "haar", "sigma": 1.3}),
    Case("remove_stripe_fw", (61, 50, 64), parameters={"wname": "sym16", "level": 2}),
    Case("remove_stripe_fw", (64, 50, 67), parameters={"wname": "bior4.4", "sigma": 10}),
    Case("remove_stripe_fw", (181, 50, 97), parameters={"level": 1}),
]

ROUNDING = 1e-6
"""cuBLAS may sum in another order for another place in a chunk."""

GPU_CASES = [
    Case("remove_stripe_based_sorting", (1801, 64, 2560)),
    Case("remove_stripe_based_sorting", (1801, 64, 2560), "uint16"),
    Case("remove_stripe_based_sorting", (1801, 64, 2560), parameters={"size": 21}),
    Case("remove_stripe_based_sorting", (1801, 32, 2557), parameters={"size": 5, "dim": 2}),
    Case("remove_stripe_based_sorting", (721, 151, 1019)),
    Case("remove_stripe_ti", (1801, 64, 2560)),
    Case("remove_stripe_ti", (1801, 64, 2560), "uint16"),
    Case("remove_stripe_ti", (1801, 61, 2557), parameters={"beta": 0.02}),
    Case("remove_stripe_ti", (721, 151, 1019)),
    Case("remove_stripe_fw", (1801, 64, 2560), tolerance=ROUNDING),
    Case("remove_stripe_fw", (1801, 64, 2560), "uint16", tolerance=ROUNDING),
    Case(
        "remove_stripe_fw",
        (1801, 61, 2557),
        parameters={"wname": "sym16", "sigma": 5.5},
        tolerance=ROUNDING,
    ),
    Case("remove_stripe_fw", (1801, 64, 2560), parameters={"level": 4}, tolerance=ROUNDING),
    Case("remove_stripe_fw", (721, 151, 1019), tolerance=ROUNDING),
]
