"""Values that reconstructions and denoising refuse are refused before anything runs."""

from __future__ import annotations

import math

import pytest

from maxslices import Pipeline
from maxslices.errors import ParameterError, PipelineError

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
    with pytest.raises(ParameterError, match=f"{name} refuses this: {parameter} must be"):
        Pipeline.from_steps([step])


def test_sizes_are_checked_before_the_axis_is_known():
    find = {"method": "find_center_vo", "id": "axis", "side_outputs": {"cor": "cor"}}
    given = {"center": "${{axis.side_outputs.cor}}", "recon_size": 0}
    with pytest.raises(ParameterError, match="fbp refuses this: recon_size must be"):
        Pipeline.from_steps([find, {"method": "fbp", "parameters": given}])


@pytest.mark.parametrize("second", ["fbp", "SIRT3d_tomobar"])
def test_slices_are_not_reconstructed_again(second):
    with pytest.raises(PipelineError, match=f"{second} takes projections, .* slices that fbp has"):
        Pipeline.from_steps(["fbp", "median_filter", second])
