"""Every method of the real database, and the templates and pipelines that come with it."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from maxslices import Registry
from maxslices.errors import ParameterError
from maxslices.httomo.method_adapters import OUTPUT_ANGLES
from maxslices.httomo.register_methods import register_all
from maxslices.pipeline import Pipeline
from maxslices.pipeline.pipeline import cut_into_sections

PACKAGES = ("httomolibgpu", "httomolib")
REQUIRED = {"newshape": [7, 9], "overlap": 4, "metadata_path": "coefficients.txt"}


def database(theirs: Path, package: str) -> dict[str, dict[str, Any]]:
    """Return full names and entries of the YAML file, read with plain YAML."""
    folder = theirs / "httomo_backends/methods_database/packages/backends" / package
    tree = yaml.safe_load((folder / f"{package}.yaml").read_text())
    return {
        f"{package}.{area}.{module}.{name}": entries
        for area, modules in tree.items()
        for module, names in modules.items()
        for name, entries in names.items()
    }


def required(parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in REQUIRED.items() if name in parameters}


def source_of(theirs: Path, full_name: str) -> str:
    file = theirs.joinpath(*full_name.split(".")[:-1]).with_suffix(".py")
    return file.read_text() if file.is_file() else ""


@pytest.mark.parametrize("package", PACKAGES)
def test_all_methods_that_are_installed_are_registered(real, theirs, package):
    installed = {
        name: entry
        for name, entry in database(theirs, package).items()
        if f"\ndef {name.split('.')[-1]}(" in source_of(theirs, name)
    }
    assert len(installed) > (20 if package == "httomolibgpu" else 2)
    for name, entry in installed.items():
        meta = real.get(*name.rsplit(".", 1)[::-1])
        assert meta.pattern == entry["pattern"], name
        assert (meta.estimator is None) == (".rotation." not in name), name
        halo = meta.halo_slices(**required(meta.parameters))
        assert (halo != (0, 0)) == entry["padding"], name
        dims = meta.output_other_dims(meta.slice_dims()[0], (30, 22), **required(meta.parameters))
        if not entry["output_dims_change"] or meta.side_data == "alone":
            assert dims == (30, 22), name


def test_packages_of_httomo_are_not_imported(theirs):
    code = (
        f"import sys; sys.path.insert(0, {str(theirs)!r})\n"
        "from maxslices import Registry\n"
        "from maxslices.httomo.register_methods import register_all\n"
        "methods = Registry(); register_all(methods)\n"
        "for meta in methods:\n"
        "    given = {k: v for k, v in {'newshape': [7, 9], 'overlap': 4}.items()"
        " if k in meta.parameters}\n"
        "    meta.halo_slices(**given), meta.output_other_dims(0, (8, 6), **given)\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(roots & {'httomolibgpu', 'httomolib', 'httomo_backends', 'tomobar',"
        " 'cupy', 'scipy'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_halo_and_dims_follow_the_parameters(real):
    assert real["httomolibgpu.misc.corr.remove_outlier"].halo_slices(kernel_size=7) == (3, 3)
    assert real["httomolibgpu.recon.algorithm.FISTA3d_tomobar"].halo_slices() == (5, 5)
    recon = real["httomolibgpu.recon.algorithm.FBP3d_tomobar"]
    assert recon.output_other_dims(1, (30, 22)) == (22, 22)
    assert recon.output_other_dims(1, (30, 22), recon_size=17) == (17, 17)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("prep.phase.paganin_filter", "float32"),
        ("misc.segm.binary_thresholding", "uint8"),
        ("misc.morph.data_reducer", "uint16"),
    ],
)
def test_the_dtype_of_results_on_the_host_is_guessed(real, name, expected):
    assert real[f"httomolib.{name}"].output_dtype(1, (30, 22), np.dtype("uint16")) == expected


def test_side_results(real):
    rotation = "httomolibgpu.recon.rotation"
    assert real["httomo.methods.calculate_stats"].side_results == ("glob_stats",)
    assert real[f"{rotation}.find_center_vo"].side_results == ("cor",)
    names = ("cor", "overlap", "side", "overlap_position")
    assert real[f"{rotation}.find_center_360"].side_results == names


def test_inspect_returns_the_source_of_the_package(real):
    source = inspect.getsource(real["httomolibgpu.prep.phase.paganin_filter"].function)
    assert source.startswith("def paganin_filter(")
    assert "return" in source


def test_methods_that_httomos_wrappers_treat_specially(real):
    assert real.get("data_reducer", "httomolib.misc.morph").side_data == "alone"
    assert real.get("remove_outlier", "httomolibgpu.misc.corr").side_data == "too"
    morph = "httomolibgpu.misc.morph"
    halved = real.get("sino_360_to_180", morph).angles_after(np.arange(7, dtype="f4"), {})
    np.testing.assert_array_equal(halved, [0, 1, 2])
    averaged = OUTPUT_ANGLES["average_projection_frames"]
    angles = averaged(np.arange(7, dtype="f4"), projection_averaging_factor=3)
    np.testing.assert_array_equal(angles, np.array([1, 4, 6], "f4"))


def template(theirs: Path, module: str, name: str) -> dict[str, Any]:
    package = module.split(".")[0]
    folder = theirs / "httomo_backends/yaml_templates" / package / module
    (step,) = yaml.safe_load((folder / f"{name}.yaml").read_text())
    return step


def is_left_to_the_user(name: str, value: Any) -> bool:
    """True for REQUIRED, and for the file of a distortion, without which the method refuses."""
    return value == "REQUIRED" or (name == "metadata_path" and value is None)


def test_templates_are_well_formed(real, theirs):
    """Every template unchanged, but with values for REQUIRED and references."""
    folder = theirs / "httomo_backends" / "yaml_templates"
    checked = 0
    for file in sorted(folder.glob("httomolib*/*/*.yaml")):
        (step,) = yaml.safe_load(file.read_text())
        parameters = step.get("parameters") or {}
        for name, value in list(parameters.items()):
            if is_left_to_the_user(name, value):
                parameters[name] = REQUIRED[name]
            elif isinstance(value, str) and "${{" in value:
                del parameters[name]
        full_name = f"{step['module_path']}.{step['method']}"
        if not source_of(theirs, full_name):
            continue
        Pipeline.from_steps([step], real)
        checked += 1
    assert checked > 25


def directive(theirs: Path, name: str) -> list[dict[str, Any]]:
    """Return a pipeline of httomo-backends, assembled as by its generator."""
    file = theirs / "httomo_backends" / "pipelines_full" / f"{name}_directive.yaml"
    steps = []
    for entry in yaml.safe_load(file.read_text()):
        step = copy.deepcopy(template(theirs, entry["module_path"], entry["method"]))
        parameters = step["parameters"]
        left = [key for key, value in parameters.items() if is_left_to_the_user(key, value)]
        parameters |= {key: REQUIRED[key] for key in left}
        if entry["method"] == "rescale_to_int" and not source_of(
            theirs, f"{entry['module_path']}.{entry['method']}"
        ):  # httomolib 2.2, the last wheel for Python 3.11, is older than the database
            step["module_path"] = "httomolibgpu.misc.rescale"
        steps.append(step)
    return steps


SECTIONS = {
    "FBP2d_astra": [3, 1],
    "FBP3d_tomobar": [3, 4, 2],
    "FBP3d_tomobar_denoising": [3, 5, 2],
    "FBP3d_tomobar_noimagesaving": [3, 3],
    "FISTA3d_tomobar": [3, 2, 2],
    "LPRec3d_tomobar": [3, 4, 2],
    "deg360_distortion_FBP3d_tomobar": [3, 5, 2],
    "deg360_paganin_FBP3d_tomobar": [2, 2, 1, 2, 2],
    "titaren_center_pc_FBP3d_resample": [2, 5, 2],
}
"""Number of methods in each section of httomo 3.3, without its automatic savers."""


@pytest.mark.parametrize("name", SECTIONS)
def test_pipelines_are_cut_as_httomo_cuts_them(real, theirs, name, tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(directive(theirs, name), sort_keys=False))
    pipeline = Pipeline.from_file(file, real)
    sections = cut_into_sections(pipeline)
    assert [len(section.steps) for section in sections] == SECTIONS[name]
    # Images are of reconstructed slices, which lie along the axis of the sinograms.
    assert sections[-1].slice_dim == 1


def test_a_plain_name_prefers_methods_of_other_packages(real):
    def minus_log(data):
        return data

    only_theirs = real.get("minus_log")
    own = real.register(minus_log, module="mine", pattern="all")
    assert only_theirs.module == "httomolibgpu.prep.normalize"
    assert real.get("minus_log") is own
    assert real.get("minus_log", "httomolibgpu.prep.normalize") is only_theirs


def test_nothing_is_registered_without_httomo_backends(monkeypatch):
    monkeypatch.setattr("maxslices.httomo.source_stubs.importlib.util.find_spec", lambda name: None)
    methods = Registry()
    register_all(methods)
    assert [meta.full_name for meta in methods] == ["httomo.methods.calculate_stats"]


def test_results_are_saved_by_default_as_in_the_database(real, theirs):
    entries = database(theirs, "httomolibgpu")
    saved = {
        name: each["save_result_default"] for name, each in entries.items() if ".recon." in name
    }
    assert any(saved.values())
    for name, is_saved in saved.items():
        assert name not in real or real[name].saved_by_default is is_saved


def test_a_phase_filter_reaches_farther_with_a_larger_ratio(real):
    meta = real.get("paganin_filter", "httomolibgpu.prep.phase")
    reach = [meta.rows_reached(ratio_delta_beta=ratio) for ratio in (10, 150, 350)]
    assert reach == sorted(reach)
    assert 600 < reach[2] < 700  # 16.6 times L, of 40 pixels
    assert real.get("dark_flat_field_correction", "httomolibgpu.prep.normalize").rows_reached() == 0


def test_a_misspelt_parameter_is_refused_although_the_function_takes_kwargs(real):
    name, module = "LPRec3d_tomobar", "httomolibgpu.recon.algorithm"
    step = {"method": name, "module_path": module, "parameters": {"filter_freq_cutof": 1.0}}
    with pytest.raises(ParameterError, match="did you mean filter_freq_cutoff"):
        Pipeline.from_steps([step], methods=real)
