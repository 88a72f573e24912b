"""Cases for the methods of `maxslices_methods.corr`."""

from __future__ import annotations

from maxslices.checking.case import Case

CASES = [
    Case("median_filter", (64, 65, 67), "uint16"),
    Case("median_filter", (53, 50, 61)),
    Case("median_filter", (50, 57, 128), "uint8"),
    Case("median_filter", (50, 50, 23), "uint16", {"kernel_size": 5}),
    Case("median_filter", (50, 50, 19), parameters={"kernel_size": 5}),
    Case("remove_outlier", (64, 65, 67), "uint16"),
    Case("remove_outlier", (53, 50, 61), parameters={"dif": 0.2}),
    Case("remove_outlier", (50, 50, 128), "uint16", {"dif": 20000}),
    Case("remove_outlier", (50, 50, 19), parameters={"dif": 0.2, "kernel_size": 5}),
]

GPU_CASES = [
    Case("median_filter", (64, 2160, 2560), "uint16", slice_dim=0),
    Case("median_filter", (64, 2160, 2560), slice_dim=0),
    Case("median_filter", (67, 2161, 2557), "uint8", slice_dim=0),
    Case("median_filter", (1801, 32, 2560), slice_dim=1),
    Case("median_filter", (32, 2160, 2560), "uint16", {"kernel_size": 5}, slice_dim=0),
    Case("median_filter", (32, 2160, 2560), parameters={"kernel_size": 7}, slice_dim=0),
    Case("remove_outlier", (64, 2160, 2560), "uint16", slice_dim=0),
    Case("remove_outlier", (64, 2160, 2560), parameters={"dif": 0.2}, slice_dim=0),
    Case("remove_outlier", (67, 2161, 2557), parameters={"dif": 0.2}, slice_dim=0),
    Case("remove_outlier", (1801, 32, 2560), "uint16", slice_dim=1),
]
