"""``maxslices nn`` from its arguments to its output, and its imports."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from maxslices.cli.main import main

MODULE = """
import torch
from torch import nn

WIDTH = 3

def network(width=4):
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

def deep():
    return nn.Sequential(*(nn.Sequential(network(16), nn.GELU()) for _ in range(4)))

made = _hidden = network()

class Ends(nn.Module):
    def forward(self, x):
        raise SystemExit(3)

class Asks(nn.Module):
    def forward(self, x):
        return {}["key"]

def counted():
    return nn.Dropout(float(torch.linspace(0, 0.5, 3)[1]))

def broken():
    raise OSError("no weights")

class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 5)

    def forward(self, ids, scale=None):
        return {"logits": self.head(self.words(ids)).transpose(1, 2)}

    def embed(self, ids):
        return self.words(ids)

class NoForward(nn.Module):
    def encode(self, x):
        return x * 2

class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("twice", torch.tensor(True))

    def forward(self, x):
        return x * 2 if self.twice else x

def difference(output, target):
    return (output - target).abs().mean()

def ends():
    raise SystemExit(3)
"""


@pytest.fixture
def cli(capsys, tmp_path, monkeypatch):
    """Run the command line in a folder with a module of networks."""
    (tmp_path / "own_networks.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import not_there_at_all")
    (tmp_path / "ends.py").write_text("raise SystemExit(4)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(text):
        try:
            status = main(["nn", *text.split()])
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    yield run
    for name in ("own_networks", "needs_more"):
        sys.modules.pop(name, None)


def test_a_report_is_printed(cli):
    status, out, err = cli(
        "report own_networks:network --input 4x1x32x32 --train adam --memory 24GB -p width=8"
    )
    assert (status, err) == (0, "")
    assert out.startswith("Sequential: a step of training with Adam\n89 parameters")
    assert "Fits: " in out


def test_a_report_as_json(cli):
    status, out, _ = cli("report own_networks:network --input 4x1x32x32:float32 --json --forward")
    assert status == 0
    assert json.loads(out)["mode"] == "forward"


def test_a_batch_and_a_patch_are_found(cli):
    sizes = []
    for factor in ("0.8", "1"):
        status, out, _ = cli(
            "batch own_networks:network --patch 512x512 --channels 1 --memory 800MB "
            f"--safety-factor {factor}"
        )
        assert status == 0
        sizes.append(int(re.match(r"Batch size (\d+)", out)[1]))
    assert sizes[0] < sizes[1]
    status, out, _ = cli(
        "patch own_networks:network --ndim 2 --channels 1 --memory 700MB --divisible 64x64"
    )
    assert status == 0
    assert out.startswith("Patch shape ")


def test_inputs_have_names_and_a_method_may_be_called(cli):
    status, out, err = cli(
        "report own_networks:Text --input ids=8x16:int64 --train adagrad --loss cross_entropy "
        "--card rtx4090"
    )
    assert (status, err) == (0, "")
    assert "with Adagrad" in out
    assert "RTX 4090, 25.3 GB" in out
    status, out, _ = cli("report own_networks:NoForward --input 8x3 --call encode --json")
    assert (status, json.loads(out)["inputs"]) == (0, ["8x3 float32"])


def test_a_step_is_reduced(cli):
    status, out, err = cli("reduce own_networks:deep --input 16x1x256x256 --memory 1GB --json")
    assert (status, err) == (0, "")
    figures = json.loads(out)
    assert figures["fits"] is True
    assert figures["peak_after_bytes"] < figures["peak_before_bytes"]
    assert all(isinstance(text, str) for text in figures["rewrites"].values())


def test_figures_of_searches_are_printed_as_json(cli):
    shared = "own_networks:network --channels 1 --memory 700MB --json"
    status, out, _ = cli(f"batch {shared} --patch 256x256 --safety-factor 0.5")
    assert (status, json.loads(out)["is_verified"]) == (0, False)
    assert json.loads(out)["found"] < json.loads(out)["predicted"]
    status, out, _ = cli(f"patch {shared} --ndim 2 --divisible 16x16 --volume 512x99999")
    assert status == 0
    assert json.loads(out)["found"][0] == 512


def test_a_batch_of_inputs_by_name_and_of_one_without_a_channel_axis(cli):
    _, named, _ = cli("batch own_networks:Text --input ids=1x64:int64 --memory 645MB --json")
    text = "batch own_networks:Text --patch 64 --channels 0 --dtype int64 --memory 645MB --json"
    _, placed, _ = cli(text)
    assert json.loads(named)["found"] == json.loads(placed)["found"] > 1


def test_a_model_that_reads_its_weights_is_built_with_data(cli):
    status, out, _ = cli("report own_networks:Decides --input 4x4")
    assert status == 0
    assert out.startswith("Decides: inference")


def test_a_snapshot_is_written(cli, tmp_path):
    assert cli("report own_networks:network --input 4x1x32x32 --snapshot step.pickle")[0] == 0
    assert set(pickle.loads((tmp_path / "step.pickle").read_bytes())) >= {"segments"}
    status, _, err = cli("report own_networks:network --input 4x1x32x32 --snapshot none/a.pickle")
    assert (status, err.count("\n")) == (2, 1)
    assert "none/a.pickle: No such file" in err


def test_a_report_and_the_largest_batch_agree_and_name_the_safety_factor(cli):
    shared = "own_networks:network --memory 3GB"
    _, out, _ = cli(f"batch {shared} --channels 1 --patch 256x256")
    largest = int(re.search(r"predicted +(\d+) at most; safety factor 0.9", out)[1])
    batch = int(re.search(r"Batch size (\d+)", out)[1])
    _, out, _ = cli(f"report {shared} --input {largest}x1x256x256")
    assert "\nFits: " in out
    assert "above the safety factor of 0.9" in out
    assert "\nDoes not fit: " in cli(f"report {shared} --input {largest + 1}x1x256x256")[1]
    assert batch < largest
    _, out, _ = cli(f"report {shared} --input {batch - 1}x1x256x256 --safety-factor 0.95")
    assert "within the safety factor of 0.95" in out


def test_the_axes_of_a_patch_are_those_of_the_convolutions(cli):
    shared = "--channels 1 --memory 700MB --json"
    _, out, _ = cli(f"patch own_networks:network {shared}")
    assert len(json.loads(out)["found"]) == 2
    status, _, err = cli(f"patch own_networks:counted {shared}")
    assert (status, err.count("\n")) == (2, 1)
    assert "--ndim" in err


def test_steps_may_be_of_several_batches_and_of_an_unknown_optimizer(cli):
    shared = "report own_networks:network --input 4x1x32x32 --json"
    _, out, _ = cli(f"{shared} --optimizer-state 5MiB")
    assert json.loads(out)["categories"]["optimizer state"] == 5 * 2**20
    _, out, _ = cli(f"{shared} --train adam --accumulate 3")
    assert json.loads(out)["mode"] == "training"
    assert "pass one of them" in cli(f"{shared} --train adam --optimizer-state 5MiB")[2]


SHORT = {
    "REPORT": "report OWN:network --input 1x1x8x8",
    "BATCH": "batch OWN:network --patch 8x8 --channels 1 --memory 1GB",
    "OWN": "own_networks",
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("report own_networks --input 1x1x8x8", "is not of the form module:callable"),
        ("report own_networks.py:network --input 1x1x8x8", "its module, own_networks:network"),
        ("report OWN:Hidden --input 1x1x8x8", "own_networks has no Hidden\n"),
        (
            "report not_there.models:resnet50 --input 1x1x8x8",
            "'not_there' cannot be found: install its package",
        ),
        ("report needs_more:network --input 1x1x8x8", "needs the module 'not_there_at_all'"),
        ("report OWN:net --input 1x1x8x8", "has no net; similar names: network"),
        ("report OWN:network --input 1,2", "'1,2' is not a shape of the input"),
        ("report OWN:WIDTH --input 1x1x8x8", "neither a model nor a function"),
        ("report OWN:broken --input 1x1x8x8", "cannot be created: OSError: no weights"),
        ("report OWN:ends --input 1x1x8x8", "cannot be created: SystemExit: 3"),
        ("report ends:network --input 1x1x8x8", "cannot be imported: SystemExit: 4"),
        ("report OWN:network --input 1x2x8x8", "cannot take 1x2x8x8"),
        ("REPORT:float7", "not a dtype of torch"),
        ("REPORT --train adam --forward", "one of them"),
        ("REPORT --memory 24", "did you mean 24GB"),
        ("batch OWN:network --patch 8y8 --memory 1GB", "'8y8' is not a shape"),
        ("batch OWN:network --patch 8 --memory 1GB", "or in_channels (--channels on"),
        ("report OWN:made --input 1x1x8x8 -p width=3", "takes no width"),
        ("report OWN:Asks --input 1x1x8x8", "raised KeyError: 'key' ("),
        ("report OWN:Ends --input 1x1x8x8", "raised SystemExit: 3 (own_networks.py:"),
        ("report torch.nn:ReLU --input 1x1x8x8 --train sgd", "no trainable parameters"),
        ("BATCH --device hpu", "unknown device 'hpu': use auto, cpu, cuda or cuda:N"),
        ("report OWN:made --input 1x1x8x8 --device cuda:99", "no device cuda:99: torch"),
        ("REPORT -p width=2 -p width=3", "is repeated"),
        ("REPORT --loss mse", "--loss goes with --train"),
        ("REPORT --train sgd --loss msse", "Similar names are MSELoss"),
        ("REPORT --train sgd --loss OWN:WIDTH", "of type int, not a loss"),
        ("REPORT --train sgd --loss CrossEntropyLoss --targets 4x7:int64", "with targets of 1x7"),
        ("REPORT --train sgd --loss mse --targets y=4x7", "omit y="),
        ("REPORT --card RTX4091", "Name one of RTX 4090"),
        ("report OWN:Text --input ids=2x3:int64 --input 2x3", "has no name"),
        ("report OWN:Text --input ids=2x3:int64 --input ids=2x3", "is repeated"),
        ("report OWN:Text --input idz=2x3:int64", "unexpected keyword argument 'idz'"),
        ("report OWN:Text --input 2x3:int64 --call emb", "its own methods are embed"),
        ("report OWN:NoForward --input 2x3", "own methods are encode. Pass the method"),
        ("batch OWN:Text --input 1x3:int64 --channels 3 --memory 1GB", "goes with --patch"),
        ("batch OWN:Text --memory 1GB", "is missing or repeated: pass --patch or"),
        ("BATCH --dtype float7", "'float7' is not a dtype"),
        ("BATCH --safety-factor 1.5", "above 0 and at most 1"),
        ("patch OWN:network --memory 1GB --train sgd --loss mse --targets 1x2", "have many"),
        (
            "reduce OWN:network --input 4x1x8x8 --memory 1GB --means pac",
            "unknown rewrite 'pac' in means: choose from selective",
        ),
        ("reduce OWN:network --input 4x1x8x8", "or --card on the command line"),
        ("reduce OWN:network --input 4x1x512x512 --memory 605MB", "no plan fits"),
    ],
)
def test_an_error_is_one_line(cli, text, message):
    for name, whole in SHORT.items():
        text = text.replace(name, whole)
    status, out, err = cli(text)
    assert status not in (0, None)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_model_that_reads_numbers_is_built_with_data(cli):
    status, out, _ = cli("report own_networks:counted --input 1x1x8x8")
    assert status == 0
    assert out.startswith("Dropout: inference")


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_torch_is_imported_on_the_first_access_of_a_function():
    code = "import sys, maxslices.nn; print('torch' in sys.modules); maxslices.nn.memory_report"
    assert python(f"{code}; print('torch' in sys.modules)").split() == ["False", "True"]
    assert python("import sys, maxslices; print('maxslices.nn' in sys.modules)") == "False"
    code = "import sys; from maxslices.cli.main import main; main(['nn', 'report', '--help'])"
    assert python(f"{code}; print('torch' in sys.modules)").splitlines()[-1] == "False"


def test_without_torch_the_error_names_the_extra_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import maxslices.nn\n"
        "try: maxslices.nn.max_batch_size\n"
        "except maxslices.nn.NoDeviceError as error: print(error)"
    )
    assert python(code) == "maxslices.nn.max_batch_size needs torch: pip install 'maxslices[torch]'"


def test_a_damaged_torch_is_a_clear_error(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('no libtorch.so')")
    done = subprocess.run(
        [sys.executable, "-m", "maxslices.cli.main", "nn", "report", "a:b", "--input", "1x1x8x8"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "maxslices: error: maxslices nn needs torch, which is installed and cannot be imported: "
        "no libtorch.so. Install it again\n"
    )
