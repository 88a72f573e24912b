"""Cases for the methods of `maxslices_methods.rotation`."""

from __future__ import annotations

from maxslices.checking.case import Case

CASES = [
    Case("find_center_vo", (61, 60, 67)),
    Case("find_center_vo", (60, 50, 128)),
    Case("find_center_vo", (61, 60, 67), "uint16"),
    Case("find_center_vo", (83, 60, 97), parameters={"step": 0.3}),
    Case("find_center_vo", (31, 50, 2053), parameters={"srad": 2.0}),
    Case("find_center_vo", (2003, 50, 37), parameters={"srad": 2.0}),
]

GPU_CASES = [
    Case("find_center_vo", (1801, 1, 2560)),
    Case("find_center_vo", (1801, 32, 2560)),
    Case("find_center_vo", (1801, 32, 2560), "uint16"),
    Case("find_center_vo", (1801, 33, 2557), parameters={"step": 0.3}),
    Case("find_center_vo", (3601, 32, 2048)),
    Case("find_center_vo", (721, 64, 1023)),
]
