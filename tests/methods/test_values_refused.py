"""Values that reconstructions and denoising refuse are refused before anything runs."""

from __future__ import annotations

import pytest

from maxslices import Pipeline
from maxslices.errors import ParameterError

SIZES = {"detector_pad": -1, "recon_size": 0, "recon_mask_radius": 0}
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
