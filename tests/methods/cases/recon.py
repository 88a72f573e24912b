"""Cases for the methods of `maxslices_methods.recon`."""

from __future__ import annotations

from maxslices.checking.case import Case

# FINUFFT's threads have work arrays of their own, so few slices are dominated by them.
CASES = [
    Case("fbp", (61, 64, 64)),
    Case("fbp", (61, 60, 67)),
    Case("fbp", (180, 60, 53)),
    Case("fbp", (37, 64, 101)),
    Case("fbp", (61, 60, 64), "uint16"),
    Case("fbp", (61, 60, 64), parameters={"recon_size": 41}),
    Case("fbp", (61, 60, 64), parameters={"recon_size": 97}),
    Case("fbp", (61, 60, 64), parameters={"detector_pad": True}),
    Case("fbp", (61, 60, 64), parameters={"detector_pad": 13}),
    Case("fbp", (61, 60, 64), parameters={"recon_mask_radius": None}),
    Case("fbp", (61, 60, 64), parameters={"center": 35.25, "filter_type": "hann"}),
]

GPU_CASES = [
    Case("fbp", (1801, 64, 2560)),
    Case("fbp", (1801, 61, 2557)),
    Case("fbp", (1801, 32, 2560), "uint16"),
    Case("fbp", (1801, 32, 2560), parameters={"recon_size": 2048}),
    Case("fbp", (1801, 32, 2560), parameters={"recon_mask_radius": None}),
    Case("fbp", (1801, 32, 2560), parameters={"detector_pad": True}),
    Case("fbp", (1801, 33, 2560), parameters={"detector_pad": 101}),
    Case("fbp", (361, 200, 509)),
    Case("fbp", (181, 101, 128)),
]
