"""Reports: sums, stages, parts, DDP's buckets, text, snapshot."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from maxslices.errors import MaxslicesError
from maxslices.nn import NoDeviceError, memory_report
from maxslices.nn.replay import Spec, Workspaces, replay
from maxslices.nn.replay.trace import block_tail_slack_bytes
from maxslices.nn.report.breakdown import bucket_sizes

from .networks import Small, Two

MIB = 2**20
NONE = Workspaces.none()


@pytest.fixture(scope="module")
def report():
    return memory_report(
        Small(),
        (4, 1, 64, 64),
        "training",
        torch.optim.Adam,
        loss=nn.MSELoss(),
        memory="1GB",
        workspaces=NONE,
    )


def test_categories_add_up_to_the_peak(report):
    assert sum(report.categories.values()) == report.allocated_bytes
    assert report.allocated_bytes == report.trace.allocated_bytes  # not the tensors' sum
    assert report.reserved_bytes >= report.allocated_bytes
    assert report.device_bytes == report.reserved_bytes + report.context_bytes
    n_bytes = sum(-(-t.nbytes // 512) * 512 for t in Small().state_dict().values())
    assert report.categories["weights"] == n_bytes
    assert report.categories["input"] == 2 * 4 * 64 * 64 * 4  # and the targets
    assert report.fits is True


def test_stages_are_those_of_the_last_step(report):
    assert [stage.name for stage in report.stages] == [
        "model", "input", "forward", "loss", "backward", "step", "delete", "empty_cache",
    ]  # fmt: skip
    assert max(stage.peak_bytes for stage in report.stages) == report.allocated_bytes
    assert all(stage.peak_bytes >= stage.end_bytes for stage in report.stages)


def test_deleting_all_leaves_the_workspaces_that_libraries_keep():
    report = memory_report(nn.Linear(512, 4096), (4096, 512), "inference")
    last, deleted, emptied = report.stages[-3:]
    mib = 2**20
    assert deleted.end_bytes == emptied.end_bytes == (32 + 1) * mib  # of cuBLAS and cublasLt
    # Weights, input, two outputs and workspaces; 1 MiB lies in a segment of 2.
    assert last.reserved_bytes == deleted.reserved_bytes == (20 + 64 + 64 + 32 + 2) * mib
    assert emptied.reserved_bytes == (32 + 2) * mib


def test_parts_hold_what_the_forward_pass_leaves(report):
    trace = report.trace
    event = [mark.event for mark in trace.marks if mark.name == "forward"][-1]
    held = trace.moment(event).by_category()["activations"]
    assert sum(part.held_bytes for part in report.parts) == held
    parts = {part.path: part for part in report.parts}
    assert list(parts) == ["", "down", "pool", "inner", "last"]
    assert parts["down"].held_bytes >= 3 * 4 * 8 * 64 * 64 * 4
    assert parts["last"].gradients_bytes == 2 * 512


def test_the_largest_part_is_replaced_by_its_children():
    report = memory_report(nn.Sequential(Small(), nn.Identity()), (4, 1, 64, 64))
    assert {"0.down", "0.pool", "0.inner", "0.last", "1"} <= {part.path for part in report.parts}
    assert report.holders[0].path in ("0", "0.down", "")


def test_ddp_holds_the_buckets_that_torch_makes():
    from torch.distributed import _compute_bucket_assignment_by_size

    model = nn.Sequential(nn.Linear(100, 2000), nn.Linear(2000, 2000), nn.Linear(2000, 3000))
    order = list(model.parameters())[::-1]
    indices, _ = _compute_bucket_assignment_by_size(order, [2**20, 25 * 2**20])
    wanted = [sum(order[i].numel() for i in bucket) for bucket in indices]
    assert sorted(items for items, _ in bucket_sizes(model)) == sorted(wanted)

    plain = memory_report(model, (8, 100), "training", "sgd", workspaces=NONE)
    ddp = memory_report(model, (8, 100), "training", "sgd", ddp=True, workspaces=NONE)
    buckets = sum(-(-4 * items // 512) * 512 for items in wanted)
    assert ddp.categories["DDP buckets"] == buckets
    assert ddp.trace.allocated_bytes == plain.trace.allocated_bytes + buckets


def test_half_precision_takes_less():
    whole = memory_report(Small(), (4, 1, 64, 64), "training", "sgd", workspaces=NONE)
    half = memory_report(Small(), (4, 1, 64, 64), "training", "sgd", amp=True, workspaces=NONE)
    assert half.amp == "float16"
    assert half.allocated_bytes < 0.8 * whole.allocated_bytes


def test_inputs_are_shapes_tensors_or_names():
    by_shape = memory_report(Two(), ((2, 1, 8, 8), (2, 1, 8, 8)), "inference")
    by_tensor = memory_report(Two(), (torch.ones(2, 1, 8, 8), Spec((2, 1, 8, 8))), "inference")
    by_name = memory_report(Two(), {"x": (2, 1, 8, 8), "y": (2, 1, 8, 8)}, "inference")
    assert by_shape.allocated_bytes == by_tensor.allocated_bytes == by_name.allocated_bytes


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ((2, 2, 8, 8), {}, "cannot take 2x2x8x8"),
        ("large", {}, "a shape such as"),
        ((2, 1, 8, 8), {"mode": "eval"}, "'inference', 'forward', 'training'"),
        ((2, 1, 8, 8), {"mode": "forward", "optimizer": "sgd"}, "goes with mode='training'"),
        (
            (2, 1, 8, 8),
            {"memory": "1MB"},
            "no memory is left for a model: .*Free some, or take a larger card",
        ),
    ],
)
def test_wrong_arguments_are_named(inputs, options, message):
    with pytest.raises(MaxslicesError, match=message):
        memory_report(Small(), inputs, **options)


def test_the_text_answers_why(report):
    text = str(report)
    for part in (
        "Small: a step of training with Adam",
        "Fits: ",
        "At the peak, in the stage",
        "reserved - allocated",
        "CUDA context",
        "Stage by stage",
        "Part by part",
        "are activations",
        "The largest holders",
    ):
        assert part in " ".join(text.split())
    assert all(len(line) <= 130 for line in text.splitlines())
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["categories"] == report.categories
    assert plain["fits"] is True


def test_a_snapshot_has_the_step_s_memory_at_each_event(report, tmp_path):
    report.write_snapshot(tmp_path / "step.pickle")
    snapshot = pickle.loads((tmp_path / "step.pickle").read_bytes())
    alive, in_use, most = {}, 0, 0
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
            in_use += event["size"]
            most = max(most, in_use)
        elif event["action"] == "free_completed":
            in_use -= alive.pop(event["addr"])
    assert most == report.trace.allocated_bytes
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    used = {b["address"]: b["size"] for b in blocks if b["state"] == "active_allocated"}
    assert used == alive
    total = sum(segment["total_size"] for segment in snapshot["segments"])
    assert total == report.reserved_bytes


def test_torch_s_own_viewer_reads_a_snapshot(report, tmp_path):
    from torch.cuda import _memory_viz

    report.write_snapshot(tmp_path / "step.pickle")
    snapshot = pickle.loads((tmp_path / "step.pickle").read_bytes())
    assert "alloc" in _memory_viz.trace(snapshot)
    assert "reserved" in _memory_viz.segsum(snapshot).lower()


class Shared(nn.Module):
    """Two blocks with one layer in common. The second block holds most."""

    def __init__(self):
        super().__init__()
        layer = nn.Conv2d(1, 1, 3, padding=1)
        self.first = nn.Sequential(nn.MaxPool2d(1), layer)
        self.second = nn.Sequential(nn.Conv2d(1, 64, 1), nn.ReLU(), nn.Conv2d(64, 1, 1), layer)

    def forward(self, x):
        return self.second(self.first(x))


def test_layers_that_blocks_have_in_common_are_found_by_each_path():
    report = memory_report(Shared(), (4, 1, 64, 64), workspaces=NONE)
    assert "second.3" in {part.path for part in report.parts}


def convolutions(width):
    layers: list[nn.Module] = []
    for i in range(6):
        layers += [nn.Conv2d(width if i else 3, width, 3, padding=1, stride=1 + i % 2), nn.ReLU()]
    return nn.Sequential(*layers)


def test_unused_ends_may_be_those_of_another_layout():
    shape = (8, 3, 200, 200)
    trace = replay(
        convolutions(16), Spec(shape), mode="training", workspaces=Workspaces.allowance()
    )
    own = trace.allocated_bytes - trace.peak_bytes
    assert block_tail_slack_bytes(trace) == pytest.approx(
        own + 2 * (2 / 3 * (own + MIB) * MIB) ** 0.5
    )
    measured = trace.with_workspaces(replace(trace.workspaces, origin="measured on a card"))
    assert block_tail_slack_bytes(measured) == own + trace.peak_bytes // 200
    report = memory_report(convolutions(16), shape, "training")
    assert sum(report.categories.values()) == report.allocated_bytes


def test_where_no_block_is_large_none_has_an_unused_end():
    trace = replay(
        convolutions(2), Spec((1, 3, 40, 40)), mode="training", workspaces=Workspaces.allowance()
    )
    assert max(storage.n_bytes for storage in trace.peak.alive) <= MIB
    assert block_tail_slack_bytes(trace) == trace.allocated_bytes - trace.peak_bytes


def test_a_block_has_no_more_than_one_unused_end():
    trace = replay(
        nn.Linear(512, 520), Spec((4, 512)), mode="inference", workspaces=Workspaces.allowance()
    )
    large = sum(storage.n_bytes > MIB for storage in trace.peak.alive)
    assert 0 < large < 3
    assert block_tail_slack_bytes(trace) <= large * MIB


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_device_is_reported_and_a_card_that_is_not_present_is_accepted():
    with pytest.raises(NoDeviceError, match="a CUDA device is needed, and this machine has none"):
        memory_report(nn.Linear(3, 5), (7, 3), device="cuda")
    assert memory_report(nn.Linear(3, 5), (7, 3), memory="8GB", device="cuda").fits
