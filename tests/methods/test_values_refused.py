"""Values out of range are refused with a text that names them: by the check, and by the call."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from maxslices import Pipeline, registry
from maxslices.errors import ParameterError, PipelineError

from .cases import WEIGHTS

FULL = {"angles": np.linspace(0, math.pi, 8)}
TWO = {"newshape": [2, 2]}
MARGINS = {"calculate_padding_value_method": "use_pad_x_y"}
CALLS = {
    "remove_all_stripe": [
        ({"snr": 0.0}, "snr must be over 0"),
        ({"la_size": 0}, "at least 1"),
        ({"dim": 3}, "1 or 2"),
    ],
    "median_filter": [
        ({"kernel_size": size}, f"one of 3, 5, 7, 9, 11, 13, not {size}")
        for size in (0, 2, 4, 15, -3)
    ],
    "remove_outlier": [({"dif": dif}, "dif must be above 0") for dif in (0, -1.0, math.nan)],
    **{
        name: [
            ({"iterations": 0}, "iterations must be over 0"),
            ({"regularisation_parameter": -1}, "over 0"),
            ({"regularisation_parameter": math.inf}, "over 0 and finite, not inf"),
        ]
        for name in ("total_variation_rof", "total_variation_pd")
    },
    "dynamic_flat_field_correction": [
        ({"flats": flats}, "three frames at least")
        for flats in (None, np.ones((2, 6, 16), "f4"), np.ones((6, 16), "f4"))
    ],
    "dark_flat_field_correction": [
        ({"flats": None}, "needs flats"),
        ({"flats": np.ones((0, 6, 16))}, "needs flats"),
        ({"flats": np.ones((2, 16, 6))}, r"flats of shape \(2, 16, 6\) do not fit .* \(6, 16\)"),
        ({"flats": np.ones((2, 6, 16)), "darks": np.ones((1, 2, 6, 16))}, "darks of shape"),
    ],
    "find_center_pc": [({"tol": 0.0}, "tol must be over 0")],
    "find_center_vo": [
        ({"smin": 5, "smax": 5}, "smin < smax"),
        ({"step": 0.0}, "over 0"),
        ({"step": math.inf}, "finite srad, step"),
        ({"step": math.nan}, "step=nan"),
        ({"smin": 500, "smax": 600}, "not on a detector of 16 pixels"),
    ],
    "LPRec3d_tomobar": [(FULL | {"filter_type": "none"}, "must be one of ramp, shepp")],
    "FBP2d_astra": [
        (FULL | {"filter_type": "sinc"}, "must be one of ram-lak"),
        (FULL | {"filter_parameter": 2.0}, "must be omitted for these windows"),
    ],
    "FBP3d_tomobar": [(FULL | {"filter_freq_cutoff": 0.0}, "must be over 0")],
    "SIRT3d_tomobar": [(FULL | {"iterations": 0}, "iterations must be at least 1")],
    "fbp": [
        (FULL | {"recon_size": 0}, "recon_size must be at least 1"),
        (FULL | {"detector_pad": -3}, "detector_pad must be"),
        (FULL | {"recon_mask_radius": 0.0}, "recon_mask_radius must be over 0"),
        (FULL | {"filter_type": "parzen"}, "must be one of ram-lak, shepp-logan"),
        (FULL | {"center": math.nan}, "center must be a number"),
        ({"angles": FULL["angles"][:-1]}, "one angle for each of the 8 projections"),
        ({"angles": FULL["angles"] * math.nan}, "not finite"),
    ],
    "save_to_images": [
        ({"axis": 1, "results_folder": Path()}, "give axis: auto, not 1"),
        ({"bit_depth": 12, "results_folder": Path()}, "8, 16 or 32"),
        ({"jpeg_quality": 0, "results_folder": Path()}, "from 1 to 100"),
    ],
    "distortion_correction_proj_discorpy": [
        (coefficients, "give metadata_path, or all of xcenter")
        for coefficients in ({"xcenter": 2.0}, {}, {"xcenter": 2.5, "list_fact": [1.0]})
    ],
    "sino_360_to_180": [
        ({"overlap": 16}, "less than 15 pixels, not 16"),
        ({"side": "top"}, "'left' or 'right', not 'top'"),
    ],
    "data_resampler": [
        ({"newshape": [3]}, r"two numbers of pixels, not \[3\]"),
        ({"newshape": [3, 0]}, r"not \[3, 0\]"),
        (TWO | {"interpolation": "cubic"}, "'linear' or 'nearest', not 'cubic'"),
        (TWO | {"axis": 0, "slice_dim": 1}, "axis=0 but the data are cut along axis 1"),
        (TWO | {"axis": 2}, r"0 \(projections\) or 1 \(sinograms\), not 2"),
        (TWO, "not None"),
    ],
    "paganin_filter": [
        ({"pixel_size": 0.0}, "pixel_size must be positive and finite, not 0.0"),
        ({"energy": -3}, "energy must be positive and finite, not -3"),
        ({"distance": math.inf}, "and finite, not inf"),
        ({"pad_x_y": [3, 4]}, r"pad_x_y=\[3, 4\] is used only with .*'use_pad_x_y'"),
        (MARGINS, "must be two numbers of pixels"),
        (MARGINS | {"pad_x_y": [3, -4]}, r"at least 0.*not \[3, -4\]"),
        ({"calculate_padding_value_method": "none"}, "'next_fast_length' or 'use_pad_x_y'"),
    ],
    "rescale_to_int": [
        ({"glob_stats": None}, "refer to the result of calculate_stats, or give two numbers"),
        ({"glob_stats": [1.0]}, "whole scan, not \\[1.0\\]"),
        ({"glob_stats": (0.0, math.nan)}, "finite minimum"),
        ({"glob_stats": (2.0, 1.0)}, "maximum not below it, not 2.0 and 1.0"),
        ({"glob_stats": (0, 1), "bits": 12}, "bits must be 8, 16 or 32, not 12"),
        ({"glob_stats": (0, 1), "perc_range_min": 60.0, "perc_range_max": 60.0}, "60.0 and 60.0"),
        ({"glob_stats": (0, 1), "perc_range_max": 101.0}, "between 0 and 100"),
    ],
    "remove_stripe_based_sorting": [
        ({"size": 0}, "at least 1 pixel, not 0"),
        ({"dim": 3}, "dim must be 1 or 2, not 3"),
    ],
    "remove_stripe_ti": [
        ({"beta": beta}, "beta must be over 0 and at most 1") for beta in (0, -0.1, 1.5, math.nan)
    ],
    "remove_stripe_fw": [
        ({"sigma": 0}, "sigma must be positive and finite, not 0"),
        ({"sigma": math.inf}, "and finite, not inf"),
        ({"level": 0}, "level must be 1 to 4 for sinograms of 8 x 16, or None"),
        ({"level": 5}, "for as many as fit, not 5"),
        ({"wname": "db99"}, "'sym16' or 'bior4.4', not 'db99'"),
        ({"wname": "morl"}, "must be a discrete wavelet"),
    ],
}
TORCH_CALLS = {
    "nonlocal_means": [
        ({"strength": 0.0}, "strength must be over 0"),
        ({"strength": 1.0, "noise": -1.0}, "noise at least 0"),
        ({"strength": 1.0, "patch_size": 4}, "patch_size must be odd"),
        ({"strength": 1.0, "search_size": 0}, "search_size must be odd"),
    ],
    "denoise_unet": [({"weights": WEIGHTS, "tile": 8}, "tile must be at least 32, not 8")],
}


def cases_of(calls):
    return [(name, *case) for name, cases in calls.items() for case in cases]


@pytest.mark.parametrize(("name", "parameters", "words"), cases_of(CALLS))
def test_a_call_refuses_a_value_out_of_range(name, parameters, words):
    with pytest.raises(ValueError, match=words):
        registry.get(name).function(np.ones((8, 6, 16), np.float32), **parameters)


@pytest.mark.parametrize(("name", "parameters", "words"), cases_of(TORCH_CALLS))
def test_a_call_on_tensors_refuses_a_value_out_of_range(name, parameters, words):
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=words):
        registry.get(name).function(torch.ones(3, 6, 16), **parameters)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("median_filter", np.zeros((3, 3, 3), "int64"), "uint8, uint16, float32 .* not int64"),
        ("remove_stripe_based_sorting", np.ones((4, 2, 8)), "float32 or uint16, not float64"),
        ("remove_stripe_ti", np.ones((4, 2, 8)), "float32 or uint16, not float64"),
        ("remove_stripe_fw", np.ones((4, 2, 8)), "float32 or uint16, not float64"),
        ("find_center_360", np.ones((1, 1, 60), "f4"), "needs two angles and 14 columns"),
        ("find_center_360", np.ones((40, 1, 13), "f4"), "needs two angles and 14 columns"),
        ("sino_360_to_180", np.ones((1, 2, 10), "f4"), "two angles or more, not 1"),
    ],
)
def test_a_call_refuses_data_that_it_cannot_take(name, data, words):
    with pytest.raises(ValueError, match=words):
        registry.get(name).function(data)


def test_a_method_for_tensors_names_an_array():
    pytest.importorskip("torch")
    for name in ("nonlocal_means", "denoise_unet"):
        with pytest.raises(TypeError, match=f"{name} takes a torch tensor, not ndarray"):
            registry.get(name).function(np.ones((3, 6, 16), "f4"), 1.0)


SIZES = {"detector_pad": -1, "recon_size": 0, "recon_mask_radius": 0, "center": math.nan}
REFUSED = [
    *(
        (name, parameter, value)
        for name in (
            "fbp",
            "FBP3d_tomobar",
            "FBP2d_astra",
            "LPRec3d_tomobar",
            "SIRT3d_tomobar",
            "CGLS3d_tomobar",
            "FISTA3d_tomobar",
        )
        for parameter, value in SIZES.items()
    ),
    *(
        (name, parameter, 0)
        for name in ("total_variation_rof", "total_variation_ROF")
        for parameter in ("regularisation_parameter", "iterations", "time_marching_parameter")
    ),
    *(
        (name, parameter, 0)
        for name in ("total_variation_pd", "total_variation_PD")
        for parameter in ("regularisation_parameter", "iterations", "lipschitz_const")
    ),
]


@pytest.mark.parametrize(("name", "parameter", "value"), REFUSED)
def test_a_value_out_of_range_is_refused_by_the_check(name, parameter, value):
    step = {"method": name, "parameters": {parameter: value}}
    with pytest.raises(ParameterError, match=f"{name} refuses these values: {parameter} must be"):
        Pipeline.from_steps([step])


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("data_resampler", {"newshape": [0, 5]}, r"two numbers of pixels, not \[0, 5\]"),
        ("data_resampler", {"newshape": [3]}, r"two numbers of pixels, not \[3\]"),
        ("distortion_correction_proj_discorpy", {}, "give metadata_path, or all of xcenter"),
        ("distortion_correction_proj_discorpy", {"list_fact": []}, "give metadata_path"),
        ("rescale_to_int", {}, "glob_stats"),
    ],
)
def test_the_check_refuses_what_a_method_says_of_its_parameters(name, parameters, words):
    with pytest.raises(ParameterError, match=words):
        Pipeline.from_steps([{"method": name, "parameters": parameters}])


def test_a_sinogram_that_is_not_there():
    with pytest.raises(ValueError, match="from 0 to 99, not 100"):
        registry.get("find_center_vo").sample_slices(100, ind=100)


def test_sizes_are_checked_before_the_axis_is_known():
    find = {"method": "find_center_vo", "id": "axis", "side_outputs": {"cor": "cor"}}
    parameters = {"center": "${{axis.side_outputs.cor}}", "recon_size": 0}
    with pytest.raises(ParameterError, match="fbp refuses these values: recon_size must be"):
        Pipeline.from_steps([find, {"method": "fbp", "parameters": parameters}])


@pytest.mark.parametrize("second", ["fbp", "SIRT3d_tomobar"])
def test_slices_are_not_reconstructed_again(second):
    with pytest.raises(PipelineError, match=f"{second} takes projections, but fbp has already"):
        Pipeline.from_steps(["fbp", "median_filter", second])
