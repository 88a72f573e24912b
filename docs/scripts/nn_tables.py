"""Makes the tables of docs/nn.md: memory predicted without a device, and measured on one.

``python docs/scripts/nn_tables.py`` prints what is predicted. With ``--measure FILE`` it runs
everything on a CUDA device, each row in a process of its own that asserts that nothing is
allocated at its start, and keeps the figures in FILE; ``--from FILE`` prints them again beside
the predictions, with ``--calibrated FILE`` those of a later run. ``--torch-em PATH`` is torch_em's
``util/memory.py`` where torch_em is not installed; its searches are run as they are.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nn_models as models
import torch
from torch import nn

from maxslices.devices.out_of_memory import is_out_of_memory
from maxslices.nn import max_batch_size, max_patch_shape
from maxslices.nn.replay import Spec, Trace, Workspaces, replay
from maxslices.nn.replay.measure_workspaces import measured_workspaces

MIB = 2**20
STEPS = 4
AT_ONCE = 11
TRIED = 10
"""Batch sizes beyond the predicted one that are run, to know which was the largest."""


@dataclass(frozen=True)
class Row:
    """A step whose memory is predicted and measured."""

    key: str
    name: str
    make: Any
    shape: tuple[int, ...]
    mode: str
    target: tuple[int, ...] = ()
    """Shape of the classes' numbers for training; () without a loss."""
    published: tuple[int, int] = (0, 0)
    """Theory and measurement of the notebook, MiB."""


def _rows() -> list[Row]:
    image, volume = (128, 3, 224, 224), (8, 1, 64, 64, 64)
    known = [
        ("variable", "1 GiB variable", models.Variable, (1,), (), (1024, 1024)),
        ("cnn", "CNN", models.CNN, image, (128,), (636, 531)),
        ("vgg", "VGG16-BN", models.VGG16BN, image, (128,), (15929, 17232)),
        ("resnet", "ResNet50", models.resnet50, image, (128,), (11378, 11738)),
        ("vit", "ViT-B/16", models.ViTB16, image, (128,), (18678, 17218)),
        ("unetr", "UNETR", models.UNETR, volume, (8, 64, 64, 64), (5605, 5178)),
    ]
    rows = []
    for key, name, make, shape, target, published in known:
        mode = "training" if target else "inference"
        rows.append(Row(f"{key} training", name, make, shape, mode, target, published))
    for key, name, make, shape, _, _ in known[1:]:
        rows.append(Row(f"{key} inference", name, make, shape, "inference"))
    small = (4, 1, 256, 256)
    rows += [
        Row("encoder", "U-Net's encoder", models.Encoder, small, "forward"),
        Row("unet", "U-Net", models.BasicUNet, small, "forward"),
        Row("smp", "Unet(resnet18)", models.ResNet18UNet, small, "forward"),
        Row("unet inference", "U-Net", models.BasicUNet, small, "inference"),
        Row("smp inference", "Unet(resnet18)", models.ResNet18UNet, small, "inference"),
    ]
    return rows


ROWS = {row.key: row for row in _rows()}

BATCHES: dict[str, dict[str, Any]] = {
    "unet inference": {"make": models.BasicUNet, "patch": (256, 256), "part": 0.1},
    "unet training": {
        "make": models.BasicUNet, "patch": (256, 256), "part": 0.1,
        "mode": "training", "optimizer": "adam",
    },
    "unet inference, 3 %": {"make": models.BasicUNet, "patch": (256, 256), "part": 0.03},
    "smp inference": {"make": models.ResNet18UNet, "patch": (256, 256), "part": 0.02},
    "resnet training": {
        "make": models.resnet50, "patch": (224, 224), "part": 0.05, "channels": 3,
        "mode": "training", "optimizer": "sgd",
    },
    "vgg inference": {"make": models.VGG16BN, "patch": (224, 224), "part": 0.05, "channels": 3},
    "resnet inference": {"make": models.resnet50, "patch": (224, 224), "part": 0.02, "channels": 3},
    "vit inference": {"make": models.ViTB16, "patch": (224, 224), "part": 0.03, "channels": 3},
    "vit training": {
        "make": models.ViTB16, "patch": (224, 224), "part": 0.05, "channels": 3,
        "mode": "training", "optimizer": "adam",
    },
}  # fmt: skip
"""Searches for batch sizes: each with a part of the card."""

PATCHES: dict[str, dict[str, Any]] = {
    "unet3d inference": {"make": models.BasicUNet3D, "part": 0.05},
    "unet3d training": {
        "make": models.BasicUNet3D, "part": 0.05, "mode": "training", "optimizer": "adam"
    },
}  # fmt: skip


# -- predicted


def predict(row: Row, workspaces: Workspaces, batch: int | None = None) -> Trace:
    """Replay a row."""
    shape = row.shape if batch is None else (batch, *row.shape[1:])
    target = row.target if batch is None else (batch, *row.target[1:])
    model = row.make()
    if row.mode == "training":
        return replay(
            model, Spec(shape), mode="training", loss=nn.CrossEntropyLoss(),
            targets=[Spec(target, torch.long)], optimizer=torch.optim.SGD, workspaces=workspaces,
        )  # fmt: skip
    if row.mode == "inference":
        model.eval()
    return replay(model, Spec(shape), mode=row.mode, workspaces=workspaces)  # type: ignore[arg-type]


def figures(trace: Trace) -> dict[str, Any]:
    """Return the values that are compared."""
    stages = {"model": trace.allocated_at("model"), "input": trace.allocated_at("input")}
    for call in trace.modules:
        if call.module in tuple("abcd"):
            stages.setdefault(call.module, trace.handed_out_bytes[call.end - 1])
    if any(mark.name == "forward" for mark in trace.marks):
        stages["forward"] = trace.allocated_at("forward")
    return {
        "allocated": trace.allocated_bytes,
        "reserved": trace.reserved_bytes,
        "seconds": trace.duration_s,
        "stages": stages,
    }


# -- measured


def wait_for_card() -> None:
    """Wait for other rows' processes to end: memory used on the card is then this row's."""
    # Locked until this process ends.
    path = Path(tempfile.gettempdir(), "nn_tables.lock")
    fcntl.flock(os.open(path, os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
    time.sleep(1)  # until the one before is gone from the card too


def measure_times(row: Row, device: str, batch: int | None) -> dict[str, Any]:
    """Run a row for real."""
    shape = row.shape if batch is None else (batch, *row.shape[1:])
    target = row.target if batch is None else (batch, *row.target[1:])
    cuda = torch.device(device).type == "cuda"
    allocated = torch.cuda.memory_allocated if cuda else int
    model = row.make()
    batches = [torch.rand(shape) for _ in range(STEPS if row.mode == "training" else 1)]
    if cuda:
        if row.mode == "training":
            wait_for_card()
        torch.cuda.init()
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
    stages = {}
    model.to(device)
    stages["model"] = allocated()
    if row.mode == "training":
        loss = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        labels = torch.zeros(target, dtype=torch.long)
        for on_host in batches:
            x, y = on_host.to(device), labels.to(device)
            optimizer.zero_grad()
            output = model(x)
            value = loss(output, y)
            value.backward()
            optimizer.step()
    else:
        x = batches[0].to(device)
        stages["input"] = allocated()
        if row.mode == "inference":
            model.eval()
            with torch.no_grad():
                made = model(x)
        else:
            for name, module in model.named_children():
                if name in tuple("abcd"):
                    module.register_forward_hook(
                        lambda *_, name=name: stages.update({name: allocated()})
                    )
            made = model(x)
        stages["forward"] = allocated()
        del made
    if not cuda:
        return {"stages": stages, "parameters": sum(p.numel() for p in model.parameters())}
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "device": total - free,
        "stages": stages,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def calibrated(device: str, batch: int | None) -> dict[str, Any]:
    """Predict each row with the workspaces that were measured on the device."""
    made: dict[str, Any] = {}
    seconds = 0.0
    for key, row in ROWS.items():
        trace = predict(row, Workspaces.none(), batch)
        workspaces = Workspaces.none()
        if torch.device(device).type == "cuda":
            workspaces, took = measured_workspaces(trace.calls, torch.device(device))
            seconds += took
        made[key] = figures(trace.with_workspaces(workspaces))
    return {"rows": made, "seconds": seconds}


# -- searches


def theirs(path: str) -> Any:
    """Return torch_em's module with the two searches."""
    if not path:
        package = importlib.util.find_spec("torch_em")
        if package is None or not package.submodule_search_locations:
            return None
        path = str(Path(package.submodule_search_locations[0], "util", "memory.py"))
    spec = importlib.util.spec_from_file_location("torch_em_memory", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(function: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    """Call, and return the result and the seconds."""
    torch.cuda.empty_cache()
    began = time.perf_counter()
    made = function(*arguments, **options)
    return made, time.perf_counter() - began


def batch_sizes(case: dict[str, Any], torch_em: str) -> dict[str, Any]:
    """Search for a batch size in every way, with a part of the card."""
    case = dict(case)
    model = case.pop("make")().cuda()
    patch, part, channels = case.pop("patch"), case.pop("part"), case.pop("channels", 1)
    torch.cuda.set_per_process_memory_fraction(part)
    made: dict[str, Any] = {"part": part, "mode": case.get("mode", "inference")}
    module = theirs(torch_em)
    if module is not None and not case:
        for safety in (1.0, 0.9):
            n, seconds = timed(
                module.compute_max_batch_size, model, patch, channels, safety_factor=safety
            )
            made[f"torch_em {safety}"] = [n, seconds]
    # The factor is checked where torch_em's answer is known.
    ways: list[tuple[str, dict[str, Any]]] = [("ours", {"safety_factor": 1})]
    if module is not None and not case:
        ways.append(("ours 0.9", {}))
    for label, options in ways:
        n, seconds = timed(max_batch_size, model, patch, channels, **options, **case)
        result = n.result
        made[label] = {
            "n": int(n), "predicted": result.predicted, "seconds": seconds,
            "prediction_s": result.prediction_s, "calibration_s": result.calibration_s,
            "tried": [[t.size, t.fits, t.where, t.reserved_bytes] for t in result.tried],
            "limit": result.limit_bytes, "takes": result.allocated_bytes, "notes": result.notes,
        }  # fmt: skip
        made["limit"] = result.limit_bytes
    runs: dict[int, bool] = {}

    def fits(n: int) -> bool:
        if n not in runs:
            runs[n] = _runs(model, (n, channels, *patch), case)
        return runs[n]

    # Larger ones may run where some smaller do not: up to where the tensors alone are too many.
    first = made["ours"]["predicted"]
    takes = made["ours"]["takes"] if made["ours"]["n"] == first else made["limit"]
    most = int(first * made["limit"] / takes) + 1
    apart = max(1, (most - first) // TRIED)
    for n in sorted({first, first + 1, first + 2, first + 3, *range(first, most + 1, apart)}):
        fits(n)
    while not any(runs.values()):
        fits(min(runs) - 1)
    made["largest"] = max(n for n, ran in runs.items() if ran)
    made["runs"] = {str(k): v for k, v in sorted(runs.items())}
    return made


def _runs(model: nn.Module, shape: tuple[int, ...], case: dict[str, Any]) -> bool:
    """Tell whether a step runs, in this process."""
    torch.cuda.empty_cache()
    output = optimizer = None
    try:
        x = torch.empty(shape, device="cuda").normal_()
        if not case:
            model.eval()
            with torch.no_grad():
                model(x)
        else:
            model.train()
            kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[case["optimizer"]]
            optimizer = kind(model.parameters(), lr=1e-3)
            for _ in range(2):
                optimizer.zero_grad()
                output = model(x)
                output.sum().backward()
                optimizer.step()
        torch.cuda.synchronize()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        x = output = optimizer = None
        model.zero_grad(set_to_none=True)
        gc.collect()
    return True


def patch_shapes(case: dict[str, Any], torch_em: str) -> dict[str, Any]:
    """Search for a patch in every way, with a part of the card."""
    case = dict(case)
    model = case.pop("make")().cuda()
    torch.cuda.set_per_process_memory_fraction(case.pop("part"))
    made: dict[str, Any] = {}
    module = theirs(torch_em)
    if module is not None and not case:
        for safety in (1.0, 0.9):
            options = {"min_divisible": (8, 8, 8), "safety_factor": safety}
            shape, seconds = timed(module.compute_max_patch_shape, model, 3, **options)
            made[f"torch_em {safety}"] = [list(shape), seconds]
    ways: dict[str, dict[str, Any]] = {
        "ours 1.0": {"safety_factor": 1.0},
        "ours 0.9": {},
        "ours, anisotropic": {"safety_factor": 1.0, "volume": (2048, 2048, 2048)},
        "ours, 128 slices": {"safety_factor": 1.0, "volume": (128, 2048, 2048)},
    }
    for label in list(ways) if not case else ["ours 1.0", "ours, anisotropic"]:
        options = ways[label]
        shape, seconds = timed(
            max_patch_shape, model, 3, min_divisible=(8, 8, 8), **options, **case
        )
        result = shape.result
        made[label] = [
            list(shape), seconds, result.prediction_s, result.calibration_s,
            [[t.size, t.fits, t.where] for t in result.tried], result.notes,
        ]  # fmt: skip
    return made


# -- all of it


def child(kind: str, key: str, parsed: argparse.Namespace) -> dict[str, Any]:
    """Do one thing in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = [sys.executable, __file__, "--child", kind, key, str(out)]
        command += ["--device", parsed.device, "--torch-em", parsed.torch_em]
        if parsed.batch is not None:
            command += ["--batch", str(parsed.batch)]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"error": done.stderr[-1500:]}
        return {**json.loads(out.read_text()), "wall_s": time.perf_counter() - began}


def run_child(parsed: argparse.Namespace) -> None:
    """Do what the parent asks for."""
    kind, key, out = parsed.child
    if kind == "measure":
        made = measure_times(ROWS[key], parsed.device, parsed.batch)
    elif kind == "calibrated":
        made = calibrated(parsed.device, parsed.batch)
    elif kind == "batch":
        made = batch_sizes(BATCHES[key], parsed.torch_em)
    else:
        made = patch_shapes(PATCHES[key], parsed.torch_em)
    Path(out).write_text(json.dumps(made))


def measure_all(parsed: argparse.Namespace) -> dict[str, Any]:
    """Run everything on the device."""
    cuda = torch.device(parsed.device).type == "cuda"
    began = time.perf_counter()
    training = [("measure", key) for key in ROWS if key.endswith("training")]
    others = [("measure", key) for key in ROWS if not key.endswith("training")]
    others.append(("calibrated", ""))
    if cuda:
        others += [("batch", key) for key in BATCHES] + [("patch", key) for key in PATCHES]
    if parsed.only:
        training = [job for job in training if parsed.only in job]
        others = [job for job in others if parsed.only in job]
    found: dict[str, Any] = {"rows": {}, "batches": {}, "patches": {}, "torch": torch.__version__}
    parts = {"measure": "rows", "batch": "batches", "patch": "patches"}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # One after the other: the device's used memory is then theirs.
        for jobs in (training, others):
            for (kind, key), made in zip(
                jobs, pool.map(lambda job: child(*job, parsed), jobs), strict=True
            ):
                if kind == "calibrated":
                    found["calibrated"] = made
                else:
                    found[parts[kind]][key] = made
                found["seconds"] = time.perf_counter() - began
                Path(parsed.measure).write_text(json.dumps(found, indent=1))
    return found


def mib(n_bytes: float | None) -> str:
    """Write bytes in MiB."""
    return "" if n_bytes is None else f"{n_bytes / MIB:,.0f}"


def print_tables(found: dict[str, Any]) -> None:
    """Print the tables as Markdown."""
    measured = found.get("rows", {})
    calibrated_rows = found.get("calibrated", {}).get("rows", {})
    allowance = Workspaces.allowance()
    for mode in ("training", "inference"):
        print(f"\n{mode}, MiB\n")
        print(
            "| model | published: theory | measured | predicted: no device | calibrated | reserved "
            "| measured: allocated | reserved | device | error | calibrated |\n|" + "---|" * 11
        )
        for key, row in ROWS.items():
            if not key.endswith(mode):
                continue
            predicted = figures(predict(row, allowance))
            real, ours = measured.get(key, {}), calibrated_rows.get(key, {})
            errors = [
                f"{p['allocated'] / real['allocated'] - 1:+.1%}" if real.get("allocated") else ""
                for p in (predicted, ours)
                if p
            ] or [""]
            published = [mib(n * MIB) if n else "" for n in row.published]
            cells = [
                row.name, *published, mib(predicted["allocated"]), mib(ours.get("allocated")),
                mib((ours or predicted)["reserved"]), mib(real.get("allocated")),
                mib(real.get("reserved")),
                mib(real.get("device")) if mode == "training" else "", *errors,
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |")
    print("\nstages, MiB\n")
    for key in ("encoder", "unet", "smp"):
        trace = predict(ROWS[key], Workspaces.none())
        real = measured.get(key, {}).get("stages", {})
        for stage, n_bytes in figures(trace)["stages"].items():
            text = f"{real[stage] / MIB:.2f}" if stage in real else ""
            print(f"| {ROWS[key].name} | {stage} | {n_bytes / MIB:.2f} | {text} |")
    print("\nsearches\n")
    for part in ("batches", "patches"):
        for key, made in found.get(part, {}).items():
            print(key, json.dumps(made))
    for key, made in {**measured, "calibrated": found.get("calibrated", {})}.items():
        if "error" in made:
            print(f"FAILED {key}: {made['error']}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", metavar="FILE", help="run everything, and keep the figures")
    parser.add_argument("--from", dest="source", metavar="FILE", help="figures that were kept")
    parser.add_argument(
        "--calibrated", metavar="FILE", help="what --child calibrated x FILE found, with --from"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, help="a smaller batch, to try the script")
    parser.add_argument("--only", help="measure, calibrated, batch or patch; or a row's name")
    parser.add_argument("--torch-em", default="", metavar="PATH", help="torch_em's util/memory.py")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.child:
        run_child(parsed)
        return
    found: dict[str, Any] = {}
    if parsed.measure:
        os.environ.setdefault("MAXSLICES_RECORDS", tempfile.mkdtemp())
        found = measure_all(parsed)
    elif parsed.source:
        found = json.loads(Path(parsed.source).read_text())
        if parsed.calibrated:
            found["calibrated"] = json.loads(Path(parsed.calibrated).read_text())
    print_tables(found)


if __name__ == "__main__":
    main()
