"""Cases for the methods of `maxslices_methods.denoise`."""

from __future__ import annotations

from maxslices.checking.case import Case

_ROF = {"iterations": 3, "regularisation_parameter": 0.1, "time_marching_parameter": 0.05}
_PD = {"iterations": 3, "regularisation_parameter": 0.1}

CASES = [
    Case("total_variation_rof", (60, 60, 41), parameters=_ROF),
    Case("total_variation_rof", (53, 61, 37), "uint16", _ROF),
    Case("total_variation_rof", (53, 61, 37), parameters=_ROF | {"iterations": 1}),
    Case("total_variation_pd", (60, 60, 41), parameters=_PD),
    Case("total_variation_pd", (53, 61, 37), "uint16", _PD),
    Case("total_variation_pd", (53, 61, 37), parameters=_PD | {"isotropic": False}),
    Case("total_variation_pd", (53, 61, 37), parameters=_PD | {"nonnegativity": True}),
]

GPU_CASES = [
    Case("total_variation_rof", (64, 2160, 2560), parameters=_ROF, slice_dim=0),
    Case("total_variation_rof", (1801, 32, 2560), parameters=_ROF, slice_dim=1),
    Case("total_variation_rof", (61, 2161, 2557), "uint16", _ROF, slice_dim=0),
    Case("total_variation_rof", (61, 1009, 1013), parameters=_ROF | {"iterations": 1}),
    Case("total_variation_pd", (64, 2160, 2560), parameters=_PD, slice_dim=0),
    Case("total_variation_pd", (1801, 32, 2560), parameters=_PD, slice_dim=1),
    Case("total_variation_pd", (61, 2161, 2557), "uint16", _PD, slice_dim=0),
    Case(
        "total_variation_pd",
        (61, 1009, 1013),
        parameters=_PD | {"isotropic": False, "nonnegativity": True},
    ),
]
