"""Test cases of the pack's methods, one per line.

`test_pack` runs each case along every axis that its method's pattern allows, unless the case names
an axis. `CASES` run on any machine, and `GPU_CASES`, of real sizes, on a GPU. A method needs a case
for each dtype and each parameter that changes its memory. `test_pack` also draws random sizes, and
compares estimates for a GPU with recorded peaks.
"""

from __future__ import annotations

from typing import Any

from maxslices.testing import Case

PACKAGE = "maxslices_methods"

FFT = 1e-6
"""SciPy's FFT transforms as many rows together as fit a CPU's registers, and rounds the remaining
rows differently. The last bits of a frame may therefore depend on its neighbours, but not with
cuFFT."""
BLAS = 1e-6
"""The order of cuBLAS's sums may depend on the position in a chunk."""
SUM = 1e-12
"""The mean is a sum of doubles, whose order depends on the blocks."""

WEIGHTS = "tests/methods/data/unet.safetensors"
"""Random weights of the smallest network of three levels, relative to the repository."""

UNET = {"weights": WEIGHTS}
NLM = {"strength": 0.3, "search_size": 5, "patch_size": 3}
ROF = {"iterations": 3, "regularisation_parameter": 0.1, "time_marching_parameter": 0.05}
PD = {"iterations": 3, "regularisation_parameter": 0.1}
FISTA = {"iterations": 1, "subsets_number": 3, "regularisation_iterations": 2}
LENS = {"xcenter": 31.0, "ycenter": 28.5, "list_fact": [1.0, 1e-3, -1e-6]}
NEAREST = {"interpolation": "nearest"}
HALVED = {"newshape": [1080, 1280]}
GAINS = {"flats_multiplier": 1.1, "darks_multiplier": 0.9, "lower_bound": 0.0}
SMOOTH = {"ratio_delta_beta": 1000.0, "energy": 20.0}
FAST = {"calculate_padding_value_method": "next_fast_length"}
STATS = {"glob_stats": (0.1, 1.0, 0.5, 1)}
PERCENTILES = {"perc_range_min": 10.0, "perc_range_max": 90.0, "glob_stats": [0, 60000]}
SYM16 = {"wname": "sym16", "sigma": 5.5}


def padded(x: int, y: int) -> dict[str, Any]:
    """Parameters of `paganin_filter` for margins of so many pixels."""
    return {"calculate_padding_value_method": "use_pad_x_y", "pad_x_y": [x, y]}


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
    Case("total_variation_rof", (60, 60, 41), parameters=ROF),
    Case("total_variation_rof", (53, 61, 37), "uint16", ROF),
    Case("total_variation_rof", (53, 61, 37), parameters=ROF | {"iterations": 1}),
    Case("total_variation_pd", (60, 60, 41), parameters=PD),
    Case("total_variation_pd", (53, 61, 37), "uint16", PD),
    Case("total_variation_pd", (53, 61, 37), parameters=PD | {"isotropic": False}),
    Case("total_variation_pd", (53, 61, 37), parameters=PD | {"nonnegativity": True}),
    Case("total_variation_PD", (53, 61, 37), "uint16", PD),
    Case("total_variation_ROF", (53, 61, 37), "uint16", ROF),
    Case("nonlocal_means", (60, 60, 41), parameters=NLM),
    Case("nonlocal_means", (53, 61, 37), "uint16", NLM | {"strength": 9000.0, "noise": 3000.0}),
    Case("nonlocal_means", (53, 61, 37), parameters=NLM | {"patch_size": 1}),
    Case("denoise_unet", (53, 50, 31), parameters=UNET),
    Case("denoise_unet", (51, 37, 41), "uint16", UNET | {"tile": 32}, slice_dim=0),
    Case("sino_360_to_180", (64, 60, 67)),
    Case("sino_360_to_180", (101, 53, 97), "uint16", {"overlap": 20}),
    Case("sino_360_to_180", (121, 61, 101), parameters={"overlap": 31.0, "side": "right"}),
    Case("sino_360_to_180", (100, 50, 67), parameters={"overlap": -9}),
    Case("data_resampler", (64, 65, 67), parameters={"newshape": [33, 40]}),
    Case("data_resampler", (53, 101, 97), "uint16", {"newshape": [120, 131]}),
    Case("data_resampler", (61, 64, 97), parameters={"newshape": [31, 300]}),
    Case("data_resampler", (61, 67, 64), "uint16", {"newshape": [80, 37]}),
    Case("data_resampler", (53, 101, 97), parameters=NEAREST | {"newshape": [120, 61]}),
    Case("dark_flat_field_correction", (64, 65, 67), "uint16"),
    Case("dark_flat_field_correction", (53, 101, 97)),
    Case("dark_flat_field_correction", (61, 40, 128), "uint16", {"upper_bound": 1.2}),
    Case("dark_flat_field_correction", (50, 41, 43), "uint8", GAINS),
    Case("minus_log", (64, 65, 67)),
    Case("minus_log", (53, 50, 97), "uint16"),
    Case("per_length", (64, 65, 67)),
    Case("per_length", (53, 50, 97), "uint16"),
    Case("paganin_filter", (64, 60, 72), tolerance=FFT),
    Case("paganin_filter", (64, 60, 72), "uint16", tolerance=FFT),
    Case("paganin_filter", (67, 61, 73), parameters=FAST, tolerance=FFT),
    Case("paganin_filter", (67, 61, 73), "uint16", FAST, tolerance=FFT),
    Case("paganin_filter", (51, 47, 53), parameters=padded(5, 12), tolerance=FFT),
    Case("paganin_filter", (50, 47, 52), "uint16", padded(5, 12), tolerance=FFT),
    Case("paganin_filter", (50, 37, 65), parameters=SMOOTH, tolerance=FFT),
    # FINUFFT's threads have work arrays of their own, so few slices are dominated by them.
    Case("fbp", (61, 64, 64)),
    Case("fbp", (61, 60, 64), "uint16"),
    Case("fbp", (61, 60, 64), parameters={"recon_size": 41}),
    Case("fbp", (61, 60, 64), parameters={"recon_size": 97}),
    Case("fbp", (61, 60, 64), parameters={"detector_pad": True}),
    Case("fbp", (61, 60, 64), parameters={"detector_pad": 13}),
    Case("fbp", (61, 60, 64), parameters={"recon_mask_radius": None}),
    Case("fbp", (61, 60, 64), parameters={"center": 35.25, "filter_type": "hann"}),
    Case("FBP3d_tomobar", (61, 60, 64)),
    Case("FBP3d_tomobar", (61, 60, 64), "uint16", {"recon_size": 41}),
    Case("FBP2d_astra", (61, 60, 64)),
    Case("FBP2d_astra", (61, 60, 64), "uint16", {"filter_type": "parzen", "filter_d": 0.5}),
    Case("LPRec3d_tomobar", (61, 60, 64)),
    Case("LPRec3d_tomobar", (61, 60, 67), parameters={"detector_pad": 13, "center": 35.25}),
    Case("SIRT3d_tomobar", (61, 60, 64), parameters={"iterations": 2}),
    Case("SIRT3d_tomobar", (37, 60, 53), "uint16", {"iterations": 1, "recon_size": 41}),
    Case("CGLS3d_tomobar", (61, 60, 64), parameters={"iterations": 2}),
    Case("CGLS3d_tomobar", (37, 60, 53), "uint16", {"iterations": 1, "detector_pad": 11}),
    Case("FISTA3d_tomobar", (61, 60, 64), parameters=FISTA),
    Case("FISTA3d_tomobar", (37, 60, 53), "uint16", FISTA | {"regularisation_parameter": 0.0}),
    Case("FISTA3d_tomobar", (37, 50, 53), parameters=FISTA | {"recon_mask_radius": None}),
    Case("calculate_stats", (64, 65, 67), tolerance=SUM),
    Case("calculate_stats", (53, 101, 97), "uint16", tolerance=SUM),
    Case("rescale_to_int", (64, 65, 67), parameters=STATS),
    Case("rescale_to_int", (53, 101, 97), parameters={"bits": 16, **STATS}),
    Case("rescale_to_int", (53, 50, 97), parameters={"bits": 32, **STATS}),
    Case("rescale_to_int", (50, 61, 301), "uint16", PERCENTILES),
    Case("find_center_vo", (60, 50, 128)),
    Case("find_center_vo", (61, 60, 67), "uint16"),
    Case("find_center_vo", (83, 60, 97), parameters={"step": 0.3}),
    Case("find_center_vo", (31, 50, 2053), parameters={"srad": 2.0}),
    Case("find_center_360", (181, 60, 257)),
    Case("find_center_360", (180, 50, 256), "uint16", {"side": "left", "denoise": False}),
    Case("find_center_360", (181, 50, 257), parameters={"norm": True, "use_overlap": True}),
    Case("find_center_pc", (64, 60, 67)),
    Case("find_center_pc", (50, 101, 97), "uint16", {"rotc_guess": 50.0, "tol": 1.0}),
    Case("average_projection_frames", (64, 60, 67)),
    Case("sort_by_angle", (64, 60, 72)),
    Case("sort_by_angle", (67, 50, 71), "uint16"),
    Case("average_projection_frames", (67, 50, 71), "uint16", {"projection_averaging_factor": 5}),
    Case("distortion_correction_proj_discorpy", (64, 60, 67), parameters=LENS),
    Case("distortion_correction_proj_discorpy", (50, 61, 53), "uint16", LENS | {"order": 1}),
    Case("save_to_images", (64, 60, 67)),
    Case("save_to_images", (53, 50, 71), "uint16", {"bit_depth": 8, "file_format": "png"}),
    Case("remove_all_stripe", (64, 60, 72)),
    Case("remove_all_stripe", (67, 53, 71), "uint16", {"normalize": True}),
    Case("remove_all_stripe", (61, 50, 67), parameters={"dim": 2, "sm_size": 5, "la_size": 11}),
    Case("remove_stripe_based_sorting", (64, 60, 72)),
    Case("remove_stripe_based_sorting", (67, 53, 71), "uint16"),
    Case("remove_stripe_based_sorting", (61, 50, 67), parameters={"size": 5, "dim": 2}),
    Case("remove_stripe_based_sorting", (60, 50, 66), "uint16", {"size": 4}),
    Case("remove_stripe_based_sorting", (181, 50, 257), parameters={"size": 3}),
    Case("remove_stripe_based_sorting", (64, 60, 72), parameters={"size": 1}),
    Case("remove_stripe_ti", (64, 60, 72)),
    Case("remove_stripe_ti", (67, 53, 71), "uint16", {"beta": 0.02}),
    Case("remove_stripe_ti", (181, 101, 257), parameters={"beta": 1.0}),
    Case("dynamic_flat_field_correction", (60, 61, 67)),
    Case("dynamic_flat_field_correction", (60, 61, 67), "uint16", {"components": 1}),
    Case("fbp", (61, 50, 64), parameters={"interpolation": "linear"}),
    Case("fbp", (61, 50, 64), parameters={"interpolation": "sinc"}),
    Case("remove_stripe_fw", (64, 60, 72)),
    Case("remove_stripe_fw", (67, 53, 71), "uint16"),
    Case("remove_stripe_fw", (67, 53, 71), parameters={"wname": "haar", "sigma": 1.3}),
    Case("remove_stripe_fw", (61, 50, 64), parameters={"wname": "sym16", "level": 2}),
    Case("remove_stripe_fw", (64, 50, 67), parameters={"wname": "bior4.4", "sigma": 10}),
    Case("remove_stripe_fw", (181, 50, 97), parameters={"level": 1}),
    Case("remove_stripe_fw", (181, 50, 97), parameters={"level": 4, "pad": True}),
]

GPU_CASES = [
    Case("median_filter", (64, 2160, 2560), "uint16", slice_dim=0),
    Case("median_filter", (67, 2161, 2557), "uint8", slice_dim=0),
    Case("median_filter", (1801, 32, 2560), slice_dim=1),
    Case("remove_outlier", (64, 2160, 2560), "uint16", slice_dim=0),
    Case("remove_outlier", (67, 2161, 2557), parameters={"dif": 0.2}, slice_dim=0),
    Case("remove_outlier", (1801, 32, 2560), "uint16", slice_dim=1),
    Case("total_variation_rof", (64, 2160, 2560), parameters=ROF, slice_dim=0),
    Case("total_variation_rof", (1801, 32, 2560), parameters=ROF, slice_dim=1),
    Case("total_variation_rof", (61, 2161, 2557), "uint16", ROF, slice_dim=0),
    Case("total_variation_pd", (64, 2160, 2560), parameters=PD, slice_dim=0),
    Case("total_variation_pd", (1801, 32, 2560), parameters=PD, slice_dim=1),
    Case("total_variation_pd", (61, 2161, 2557), "uint16", PD, slice_dim=0),
    Case("nonlocal_means", (64, 2160, 2560), parameters=NLM, slice_dim=0),
    Case("nonlocal_means", (1801, 64, 2560), parameters=NLM, slice_dim=1),
    Case("nonlocal_means", (61, 2161, 2557), "uint16", NLM | {"strength": 9000.0}, slice_dim=0),
    Case("denoise_unet", (64, 2160, 2560), parameters=UNET, slice_dim=0),
    Case("denoise_unet", (1801, 64, 2560), parameters=UNET, slice_dim=1),
    Case("denoise_unet", (61, 2161, 2557), "uint16", UNET | {"tile": 1024}, slice_dim=0),
    Case("sino_360_to_180", (1801, 64, 2560)),
    Case("sino_360_to_180", (1801, 61, 2557), "uint16", {"overlap": 201, "side": "right"}),
    Case("data_resampler", (64, 2160, 2560), parameters=HALVED, slice_dim=0),
    Case("data_resampler", (33, 2161, 2557), parameters={"newshape": [2999, 3001]}, slice_dim=0),
    Case("data_resampler", (1801, 64, 2560), parameters={"newshape": [901, 1280]}, slice_dim=1),
    Case("SIRT3d_tomobar", (901, 64, 1280), parameters={"iterations": 2}),
    Case("SIRT3d_tomobar", (361, 61, 1019), "uint16", {"iterations": 1, "recon_size": 701}),
    Case("SIRT3d_tomobar", (721, 61, 509), parameters={"iterations": 1, "recon_mask_radius": None}),
    Case("CGLS3d_tomobar", (901, 64, 1280), parameters={"iterations": 2}),
    Case("CGLS3d_tomobar", (361, 61, 1019), parameters={"iterations": 1, "recon_size": 1301}),
    Case("CGLS3d_tomobar", (721, 61, 509), "uint16", {"iterations": 1, "detector_pad": 101}),
    Case("FISTA3d_tomobar", (901, 64, 1280), parameters=FISTA),
    Case("FISTA3d_tomobar", (361, 61, 1019), "uint16", FISTA | {"regularisation_parameter": 0.0}),
    Case("FISTA3d_tomobar", (721, 61, 509), parameters=FISTA | {"recon_mask_radius": None}),
    Case("dark_flat_field_correction", (64, 2160, 2560), "uint16"),
    Case("dark_flat_field_correction", (67, 2161, 2557), "uint16"),
    Case("minus_log", (64, 2160, 2560)),
    Case("minus_log", (64, 2160, 2560), "uint16", slice_dim=0),
    Case("minus_log", (1801, 32, 2560), slice_dim=1),
    Case("minus_log", (67, 2161, 2557), slice_dim=0),
    Case("per_length", (64, 2160, 2560)),
    Case("per_length", (1801, 32, 2560), slice_dim=1),
    Case("per_length", (61, 2161, 2557), "uint16"),
    Case("average_projection_frames", (64, 2160, 2560)),
    Case("average_projection_frames", (61, 2161, 2557), "uint16"),
    Case("sort_by_angle", (64, 2160, 2560)),
    Case("sort_by_angle", (61, 2161, 2557), "uint16"),
    Case("dynamic_flat_field_correction", (64, 2160, 2560), "uint16"),
    Case("dynamic_flat_field_correction", (61, 2161, 2557)),
    Case("paganin_filter", (64, 2160, 2560)),
    Case("paganin_filter", (61, 2161, 2557), parameters=FAST),
    Case("fbp", (1801, 64, 2560)),
    Case("fbp", (1801, 61, 2557)),
    Case("calculate_stats", (64, 2160, 2560), slice_dim=0, tolerance=SUM),
    Case("calculate_stats", (67, 2161, 2557), "uint16", slice_dim=0, tolerance=SUM),
    Case("calculate_stats", (1801, 32, 2560), slice_dim=1, tolerance=SUM),
    Case("rescale_to_int", (64, 2160, 2560), parameters=STATS, slice_dim=0),
    Case("rescale_to_int", (67, 2161, 2557), parameters={"bits": 32, **STATS}, slice_dim=0),
    Case("rescale_to_int", (1801, 32, 2560), parameters=STATS, slice_dim=1),
    Case("find_center_vo", (1801, 1, 2560)),
    Case("remove_stripe_based_sorting", (1801, 64, 2560)),
    Case("remove_stripe_based_sorting", (721, 151, 1019)),
    Case("remove_stripe_ti", (1801, 64, 2560)),
    Case("remove_stripe_ti", (1801, 61, 2557), parameters={"beta": 0.02}),
    Case("remove_stripe_fw", (1801, 64, 2560), tolerance=BLAS),
    Case("remove_stripe_fw", (1801, 61, 2557), parameters=SYM16, tolerance=BLAS),
]
