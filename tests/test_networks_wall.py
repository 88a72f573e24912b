"""The core works without the folder of networks; `test_layers` sees that it never imports them.

``python -m tests.without_networks`` runs the rest of the suite with the folder away.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import warnings

import click
import numpy as np
import pytest

import maxslices
from maxslices import method
from maxslices.cli.main import main
from maxslices.errors import EstimatorError, UntraceableError
from maxslices.estimate import ResolvedModel, model_resolver
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.model_resolver import ModelResolver

from .without_networks import copy_without_networks, environment

needs_networks = pytest.mark.skipif(
    importlib.util.find_spec("maxslices.nn") is None, reason="the folder of networks is away"
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


@pytest.fixture(scope="module")
def in_the_copy(tmp_path_factory):
    """Run Python code in a copy without networks, and return its output."""
    root = copy_without_networks(tmp_path_factory.mktemp("without_networks"))

    def run(code):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=root, env=environment(root), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_the_copy_has_neither_the_folder_nor_its_entry_points(in_the_copy):
    code = (
        "import importlib.metadata as m, importlib.util as u, maxslices, maxslices_methods, os;"
        "here = os.path.dirname(os.getcwd());"
        "print(u.find_spec('maxslices.nn'), m.version('maxslices') == maxslices.__version__,"
        " [e.value for g in ('maxslices.estimators', 'maxslices.commands')"
        "  for e in m.entry_points(group=g)],"
        " [os.path.realpath(x.__file__).startswith(os.path.realpath(here))"
        "  for x in (maxslices, maxslices_methods)])"
    )
    assert in_the_copy(code) == "None True [] [True, True]"


def test_without_networks_the_command_line_lacks_their_command_alone(in_the_copy):
    code = "from maxslices.cli.main import main; main(['--help'])"
    text = in_the_copy(code)
    assert "reconstruct" in text
    assert "memory of networks" not in text


@method("all", array_module="torch")
def doubled_by_torch(data):
    return data * 2


def chosen(**options):
    dtype = np.dtype("float32")
    request = ModelRequest(doubled_by_torch.meta, 0, (16, 16), dtype, {}, total_slices=100)
    return ModelResolver("cuda", **options).resolve(request)


@pytest.fixture
def entry_points(monkeypatch):
    """Replace the entry points that are installed: (group, name, value)."""
    model_resolver.find_tracer.cache_clear()

    def install(*rows):
        made = importlib.metadata.EntryPoints(
            importlib.metadata.EntryPoint(name, value, group) for group, name, value in rows
        )
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda **given: made.select(**given)
        )

    yield install
    model_resolver.find_tracer.cache_clear()


@needs_torch
def test_without_a_tracer_a_torch_method_needs_an_estimator_or_a_device(entry_points):
    entry_points()
    with pytest.raises(UntraceableError, match="doubled_by_torch: no installed package traces"):
        chosen()


@needs_torch
def test_a_tracer_that_cannot_be_imported_is_named(entry_points):
    entry_points(("maxslices.estimators", "torch", "not_there_at_all:trace"))
    with pytest.raises(EstimatorError, match="importing not_there_at_all:trace failed: ModuleNot"):
        chosen()


def trace_four_bytes(request, supplied, device):
    model = maxslices.MemoryModel.linear(7, 4)
    why = "counted; a note\na line"
    return ResolvedModel(model, "replayed", why, np.dtype("float32"), request.other_dims)


@needs_torch
def test_any_package_may_bring_a_tracer(entry_points):
    entry_points(("maxslices.estimators", "torch", f"{__name__}:trace_four_bytes"))
    choice = chosen()
    assert choice.origin == "replayed"
    assert choice.model.bytes(5) == 27
    assert choice.output_dims == (16, 16)
    assert choice.why == "it declares no estimator; counted; a note\na line"


@click.command(short_help="say hello")
def greet():
    return "hello"


@pytest.mark.filterwarnings("default")
def test_a_command_that_cannot_be_loaded_leaves_the_others_working(entry_points, capsys):
    entry_points(
        ("maxslices.commands", "lost", "not_there_at_all"),
        ("maxslices.commands", "number", "math:pi"),
        ("maxslices.commands", "greet", f"{__name__}:greet"),
    )
    assert main(["greet"]) == 0
    assert capsys.readouterr() == ("hello\n", "")
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert ["greet", "say", "hello"] in [line.split() for line in out.splitlines()]
    assert "  lost " not in out
    assert err.count("\n") == 2
    assert "warning: the command lost of not_there_at_all is left out: loading" in err
    assert "warning: the command number of math:pi is left out: math:pi is not a click.Com" in err
    assert main(["lost"]) == 2
    assert "no such command 'lost'" in capsys.readouterr().err
    assert main(["geet"]) == 2
    assert "did you mean 'greet'?" in capsys.readouterr().err


def test_a_command_does_not_replace_one_of_the_core(entry_points, capsys):
    entry_points(("maxslices.commands", "run", f"{__name__}:greet"))
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n  run ") == 1
    assert "run a pipeline on a scan" in out
    assert main(["run", "--help"]) == 0
    assert "PIPELINE" in capsys.readouterr().out


@needs_networks
def test_installed_networks_bring_their_tracer_and_their_command(capsys):
    found = {
        (each.group, each.name): each.value
        for group in ("maxslices.estimators", "maxslices.commands")
        for each in importlib.metadata.entry_points(group=group)
    }
    assert found["maxslices.commands", "nn"] == "maxslices.nn.command:nn"
    assert found["maxslices.estimators", "torch"].startswith("maxslices.nn.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["--help"]) == 0
    assert "memory of networks" in capsys.readouterr().out
