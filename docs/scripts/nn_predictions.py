"""Predicted and measured memory of networks that nobody tuned to: torchvision's and timm's.

``python docs/scripts/nn_predictions.py OUT`` measures on a CUDA device, into the folder OUT, and
prints the tables; ``--predict`` adds the predictions without a device (on any machine), and
``--print`` prints the tables again. Each network is measured in a process of its own, in a loop
as users write it: three passes, each with a new batch. Inference is measured in a loop that keeps
its output until the next is there, and in one that drops it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import gzip
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking for a device must not begin CUDA

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

GB, MIB = 10**9, 2**20
N_PASSES = 3
"""Passes that are measured: the second has the first one's workspace and output beside it."""
N_TRIED = 5
"""Passes of a size that is tried: some run out of memory in the fourth."""
AT_ONCE = 14
"""Processes at once: two cores of sixteen are left to the device's driver."""
CARD_PART = 0.94
"""Part of the card that the processes together may take; the rest, chosen and not measured, is for
the driver."""
BESIDE_GB = 1.2
"""What a search takes beside its limit: the contexts of its process and of a trial, 0.5 GB each."""
POLLED_S = 0.05
"""Seconds between two looks for processes that ended."""
COLLECTED_S = 20
"""Seconds from one writing of the figures to the next, so that a run that is stopped has some."""
MOST_MORE = 32
"""Images, or steps of 32 pixels, by which the next size differs at most that is tried."""
MODES = ("training", "inference", "inference, dropped")
"""Loops that are measured: with the output kept, and dropped before the next pass."""
LIMITS = {"10 %": None, "24 GB": 24 * GB}
"""Limits for batches and patches; None is a tenth of the card."""


@dataclass(frozen=True)
class Case:
    """One network."""

    library: str
    name: str
    batch: int
    """Images of training; inference has twice as many."""
    shape: tuple[int, ...] = (3, 224, 224)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the input."""
        return torch.float32

    def make(self) -> nn.Module:
        """Network with random weights, on the CPU."""
        if self.library == "timm":
            import timm

            return timm.create_model(self.name, pretrained=False)
        import torchvision

        more: dict[str, Any] = {"weights": None}
        if self.name in SEGMENTATION:
            more["weights_backbone"] = None
            return getattr(torchvision.models.segmentation, self.name)(**more)
        if self.name in ("googlenet", "inception_v3"):
            more["init_weights"] = True
        home = torchvision.models.video if len(self.shape) == 4 else torchvision.models
        return getattr(home, self.name)(**more)

    def size(self, mode: str) -> tuple[int, ...]:
        """Shape of the batch."""
        return (self.batch if mode == "training" else 2 * self.batch, *self.shape)

    def data(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Batch of random numbers, or of zeros as tokens."""
        return torch.rand(shape) if self.dtype.is_floating_point else torch.zeros(shape).long()

    def targets(self, n: int, sizes: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Shape of the class numbers."""
        sizes = self.shape[1:] if sizes is None else sizes
        return (n, *sizes) if self.name in SEGMENTATION else (n,)


SEGMENTATION = (
    "deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large", "fcn_resnet101",
)  # fmt: skip
"""Networks of torchvision.models.segmentation, whose output is a dict: their targets are a class
for each pixel."""

_TORCHVISION = [
    ("alexnet", 64), ("vgg11", 16), ("vgg16_bn", 16), ("resnet18", 32), ("resnet50", 32),
    ("resnext50_32x4d", 16), ("wide_resnet50_2", 16), ("densenet121", 16), ("googlenet", 32),
    ("inception_v3", 16, (3, 299, 299)), ("squeezenet1_1", 32), ("mobilenet_v2", 32),
    ("mobilenet_v3_large", 32), ("mnasnet1_0", 32), ("shufflenet_v2_x1_0", 32),
    ("efficientnet_b0", 32), ("efficientnet_v2_s", 16), ("regnet_x_3_2gf", 16),
    ("regnet_y_1_6gf", 32), ("convnext_tiny", 16), ("swin_t", 16), ("swin_v2_t", 16),
    ("maxvit_t", 8), ("vit_b_16", 16), ("deeplabv3_resnet50", 8, (3, 320, 320)),
    ("fcn_resnet50", 8, (3, 320, 320)), ("lraspp_mobilenet_v3_large", 16, (3, 320, 320)),
    ("r3d_18", 4, (3, 16, 112, 112)), ("r2plus1d_18", 4, (3, 16, 112, 112)),
    ("mc3_18", 4, (3, 16, 112, 112)), ("s3d", 4, (3, 16, 224, 224)),
    ("mvit_v2_s", 2, (3, 16, 224, 224)), ("swin3d_t", 2, (3, 16, 224, 224)),
]  # fmt: skip
_TIMM = [
    ("beitv2_base_patch16_224", 8), ("cait_xxs24_224", 16), ("coat_lite_mini", 16),
    ("convit_tiny", 16), ("convmixer_768_32", 8), ("cspresnet50", 16, (3, 256, 256)),
    ("davit_tiny", 16), ("deit3_small_patch16_224", 16), ("dla34", 16), ("edgenext_small", 16),
    ("efficientformer_l1", 16), ("eva02_tiny_patch14_224", 16), ("fastvit_t8", 16),
    ("focalnet_tiny_srf", 16), ("gcvit_xtiny", 16), ("ghostnet_100", 32), ("hgnetv2_b0", 32),
    ("hiera_tiny_224", 16), ("hrnet_w18_small", 16), ("inception_next_tiny", 16),
    ("levit_128", 32), ("mixer_b16_224", 16), ("mobilevit_s", 16, (3, 256, 256)),
    ("mvitv2_tiny", 16), ("nest_tiny", 16), ("nf_resnet50", 16), ("nextvit_small", 16),
    ("pit_s_224", 16), ("poolformer_s12", 16), ("pvt_v2_b1", 16), ("repvit_m1", 32),
    ("res2net50_26w_4s", 16), ("resnest50d", 16), ("rexnet_100", 32), ("skresnet18", 32),
    ("tiny_vit_5m_224", 16), ("tnt_s_patch16_224", 8), ("twins_svt_small", 16),
    ("visformer_small", 16), ("volo_d1_224", 8), ("xception41", 8, (3, 299, 299)),
    ("xcit_tiny_12_p16_224", 16),
]  # fmt: skip
CASES = {row[0]: Case("torchvision", *row) for row in _TORCHVISION}
CASES |= {row[0]: Case("timm", *row) for row in _TIMM}

SEARCHED = {
    "resnet50": "training", "efficientnet_b0": "inference", "convnext_tiny": "training",
    "swin_t": "inference", "densenet121": "training", "deeplabv3_resnet50": "training",
    "regnet_y_1_6gf": "inference", "mobilenet_v3_large": "training", "vgg16_bn": "inference",
    "vit_b_16": "training",
}  # fmt: skip
"""Networks of which the largest batch is searched."""
PATCHES = {
    "fcn_resnet50": "inference", "efficientnet_b0": "inference", "swin_t": "inference",
    "mobilenet_v3_large": "inference", "densenet121": "inference", "resnet50": "training",
    "deeplabv3_resnet50": "training", "convnext_tiny": "training",
    "lraspp_mobilenet_v3_large": "training", "regnet_y_1_6gf": "training",
}  # fmt: skip
"""Networks of which the largest patch is searched, the quickest predictions (2 to 15 s) first."""
REDUCED = ("deeplabv3_resnet50", "convnext_tiny", "resnet50")
"""Networks that are reduced, and whose convolutions are timed without workspaces."""

TIMED = (
    "deeplabv3_resnet50", "convnext_tiny", "resnet50", "densenet121", "efficientnet_b0",
    "swin_t", "vit_b_16", "regnet_y_1_6gf", "r3d_18",
)  # fmt: skip
"""Networks of which steps are timed."""


def entropy(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of all outputs: of a dict, of a tuple, or of the one there is."""
    if isinstance(output, torch.Tensor):
        return functional.cross_entropy(output, target)
    outputs = output.values() if isinstance(output, dict) else output
    return sum(functional.cross_entropy(each, target) for each in outputs if each is not None)


# -- predictions


def step_of(case: Case, mode: str) -> tuple[Any, list[Any]]:
    """Step of a network and its input."""
    from maxslices.nn.replay import Spec
    from maxslices.nn.step.model_step import ModelStep

    spec = Spec(case.size(mode), case.dtype)
    if mode != "training":
        step = ModelStep(case.make(), "inference", keep_output=mode == "inference")
        return step, [spec]

    def targets(x: Any) -> Any:
        return Spec(case.targets(x.shape[0], tuple(x.shape[2:])), torch.long)

    adam = torch.optim.Adam
    return ModelStep(case.make(), mode, adam, entropy, targets), [spec]


def predict(case: Case, mode: str) -> dict[str, Any]:
    """Predict a step without a device, by the report."""
    from maxslices.nn import memory_report

    step, inputs = step_of(case, mode)
    more: dict[str, Any] = {}
    if mode == "training":
        more = {"optimizer": "adam", "loss": entropy, "targets": step.targets(inputs[0])}
    else:
        step.model.eval()
        more = {"keep_output": step.keep_output}
    began = time.perf_counter()
    report = memory_report(step.model, inputs[0], step.mode, **more)
    return {"allocated": report.allocated_bytes, "seconds": time.perf_counter() - began}


# -- measurements, each in a process of its own


def measure(case: Case, mode: str) -> dict[str, Any]:
    """Run the loop and note what it took, and every allocation in order."""
    shape = case.size(mode)
    model = case.make()
    on_host = [case.data(shape) for _ in range(N_PASSES)]
    labels = torch.zeros(case.targets(shape[0]), dtype=torch.long)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(context=None, max_entries=10**6)
    peaks, counts = [], []

    def note() -> None:
        peaks.append(torch.cuda.max_memory_allocated())
        counts.append(torch.cuda.memory_stats()["allocation.all.allocated"])

    model.to("cuda")
    note()
    if mode == "training":
        optimizer = torch.optim.Adam(model.parameters())
        for batch in on_host:
            x, y = batch.to("cuda"), labels.to("cuda")
            optimizer.zero_grad()
            output = model(x)
            loss = entropy(output, y)
            loss.backward()
            optimizer.step()
            note()
    else:
        model.eval()
        with torch.no_grad():
            for batch in on_host:
                x = batch.to("cuda")
                output = model(x)
                if mode == "inference, dropped":
                    output = None
                note()
    torch.cuda.synchronize()
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    born: dict[int, int] = {}
    asked: list[int] = []
    for event in history:
        if event["action"] == "alloc":
            born[event["addr"]] = len(asked)
            asked.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in born:
            asked.append(-1 - born.pop(event["addr"]))
    del output
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "peaks": peaks, "counts": counts, "asked": asked,
    }  # fmt: skip


def calibrate(case: Case) -> dict[str, Any]:
    """Predict each mode with the device, and hand back the workspaces that were measured."""
    from maxslices.nn.replay import Workspaces
    from maxslices.nn.replay.measure_workspaces import measured_workspaces
    from maxslices.nn.replay.trace import unused_ends_bytes

    made: dict[str, Any] = {"workspaces": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MAXSLICES_RECORDS"] = folder
        for mode in MODES:
            step, inputs = step_of(case, mode)
            began = time.perf_counter()
            trace = step.trace(inputs, Workspaces.allowance())
            took = time.perf_counter() - began
            workspaces, measuring = measured_workspaces(trace.calls, torch.device("cuda"))
            made["workspaces"].append(workspaces.as_plain())
            made[mode] = {
                "allocated": trace.with_workspaces(workspaces).allocated_bytes,
                "without": trace.peak_bytes + unused_ends_bytes(trace),
                "seconds": took, "measuring_s": measuring,
            }  # fmt: skip
    return made


def run_once(
    case: Case, mode: str, shape: tuple[int, ...], limit: int, target: tuple[int, ...]
) -> dict[str, Any]:
    """Tell whether the loop runs within a limit."""
    from maxslices.devices.out_of_memory import is_out_of_memory

    model = case.make()
    torch.cuda.init()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    try:
        model.to("cuda")
        x = torch.rand(shape, device="cuda")
        if mode == "training":
            y = torch.zeros(target, dtype=torch.long, device="cuda")
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(N_TRIED):
                optimizer.zero_grad()
                output = model(x)
                loss = entropy(output, y)
                loss.backward()
                optimizer.step()
        else:
            model.eval()
            with torch.no_grad():
                for _ in range(N_TRIED):
                    output = model(x)
        torch.cuda.synchronize()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {"ran": False}
    del output
    return {"ran": True, "allocated": torch.cuda.max_memory_allocated()}


def arguments(case: Case, mode: str, limit: int | None) -> dict[str, Any]:
    """Arguments of both searches; a limit of None is a tenth of the card."""
    from maxslices.nn.replay import Spec

    torch.cuda.init()
    more: dict[str, Any] = {"device": "cuda", "margin": 0, "mode": mode}
    if limit is None:
        torch.cuda.set_per_process_memory_fraction(0.1)
    else:
        more["memory"] = limit
    if mode == "training":
        more |= {"optimizer": "adam", "loss": entropy}
        more["targets"] = lambda x: Spec(case.targets(x.shape[0], tuple(x.shape[2:])), torch.long)
    return more


def search_batch(case: Case, mode: str, limit: int | None) -> dict[str, Any]:
    """Largest batch by prediction, and the real steps that verify it."""
    from maxslices.nn import max_batch_size

    model, more = case.make(), arguments(case, mode, limit)
    began = time.perf_counter()
    found = max_batch_size(model, case.shape[1:], case.shape[0], **more)
    return log_of(found, began)


def search_patch(case: Case, mode: str, limit: int | None) -> dict[str, Any]:
    """Largest patch by prediction, and the real steps that verify it."""
    from maxslices.nn import max_patch_shape

    model, more = case.make(), arguments(case, mode, limit)
    began = time.perf_counter()
    found = max_patch_shape(model, len(case.shape) - 1, 2, (32, 32), case.shape[0], **more)
    return log_of(found, began)


def log_of(found: Any, began: float) -> dict[str, Any]:
    """What a search found, as numbers and text."""
    log = found.result
    return {
        "found": found if isinstance(found, int) else list(found), "predicted": log.predicted,
        "limit": log.limit_bytes, "takes": log.allocated_bytes, "notes": log.notes,
        "tried": [[t.size, t.fits, t.where, t.allocated_bytes, t.duration_s] for t in log.tried],
        "prediction_s": log.prediction_s, "calibration_s": log.calibration_s,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process measures times."""
    with open(Path(tempfile.gettempdir(), "nn_predictions.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def times(case: Case) -> dict[str, Any]:
    """Steps as they are, by operator, and as predicted with and without a device."""
    from maxslices.nn.reduce.study import ModuleOrder, study_step
    from maxslices.nn.reduce.times import (
        DeviceRates,
        ForwardTimes,
        StepTimeline,
        flops_by_module,
        measure_times,
    )
    from maxslices.nn.replay import Workspaces

    step, inputs = step_of(case, "training")
    order = ModuleOrder(step.model)
    study, flops = study_step(step, inputs, Workspaces.allowance()), flops_by_module(step, inputs)
    made: dict[str, Any] = {}
    stated = ForwardTimes(DeviceRates.stated(None))
    made["stated_s"] = StepTimeline.of(study, order, flops, stated).step_s()
    with alone():
        made |= timed(step, inputs)
        gc.collect()
        torch.cuda.empty_cache()
        measured = measure_times(step, inputs, torch.device("cuda"))
    made["measured_s"] = StepTimeline.of(study, order, flops, measured).step_s()
    made["forward_s"] = [measured.forward_s[""], measured.host_forward_s[""]]
    return made


def timed(step: Any, inputs: list[Any]) -> dict[str, Any]:
    """Seconds of whole steps, of their stages, and of operators."""
    from maxslices.nn.replay.meta_copy import materialize

    real = step.meta_copy()
    materialize(real, torch.device("cuda"))
    x = torch.rand(inputs[0].shape, device="cuda")
    y = torch.zeros(step.targets(inputs[0]).shape, dtype=torch.long, device="cuda")
    optimizer = torch.optim.Adam(real.parameters())

    def once(stages: dict[str, float] | None = None) -> None:
        torch.cuda.synchronize()
        began = time.perf_counter()

        def note(stage: str) -> None:
            nonlocal began
            if stages is not None:
                torch.cuda.synchronize()
                now = time.perf_counter()
                stages[stage] = min(stages.get(stage, 1e9), now - began)
                began = now

        optimizer.zero_grad()
        loss = entropy(real(x), y)
        note("forward")
        loss.backward()
        note("backward")
        optimizer.step()
        note("step")
        torch.cuda.synchronize()

    for _ in range(3):
        once()
    taken, stages = [], dict[str, float]()
    for _ in range(6):
        began = time.perf_counter()
        once()
        taken.append(time.perf_counter() - began)
    for _ in range(3):
        once(stages)
    made: dict[str, Any] = {"step_s": sorted(taken)[2], "steps_s": taken, "stages_s": stages}
    with contextlib.suppress(Exception):
        made["operators"] = by_operator(once)
    return made


def by_operator(once: Callable[[], None]) -> list[list[Any]]:
    """Device time of each operator of a step, with its shapes, the longest first."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as seen:
        once()
    rows = seen.key_averages(group_by_input_shape=True)
    rows = sorted(rows, key=lambda row: -row.self_device_time_total)
    return [
        [row.key, row.count, row.self_device_time_total, str(row.input_shapes)[:200]]
        for row in rows[:80] if row.self_device_time_total
    ]  # fmt: skip


def reduced(case: Case, part: float) -> dict[str, Any]:
    """Reduce for a part of the peak, and time the plan within that limit and without one."""
    from maxslices.core.block_memory import CONTEXT_BYTES
    from maxslices.nn.reduce import confirm, plan_search, reduction
    from maxslices.nn.replay import Workspaces

    step, inputs = step_of(case, "training")
    peak = step.trace(inputs, Workspaces.allowance()).allocated_bytes
    run_for_real, measure_times = confirm.run_for_real, plan_search.measure_times

    def locked(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with alone():
                return function(*arguments, **named)

        return call

    confirm.run_for_real, plan_search.measure_times = locked(run_for_real), locked(measure_times)
    _, summary = reduction.reduce_memory(
        step.model, inputs[0], int(part * peak) + CONTEXT_BYTES, loss=entropy,
        targets=step.targets, optimizer=torch.optim.Adam, device="cuda",
    )  # fmt: skip
    free = locked(run_for_real)(step, inputs, torch.device("cuda"))
    return {
        "step_before_s": summary.measured_step_before_s, "step_s": summary.measured_step_s,
        "predicted_step_s": summary.predicted_step_s, "without_limit_s": free and free.step_s,
        "search_s": summary.search_s, "peak_after": summary.peak_after_bytes,
        "measured_after": summary.measured_after_bytes, "peak_before": summary.peak_before_bytes,
        "measured_before": summary.measured_before_bytes,
        "rewrites": {path: str(each) for path, each in summary.rewrites.items()},
    }  # fmt: skip


# -- many at once


Job = tuple[str, float, Callable[[], dict[str, Any]]]
"""Name, memory in GB, and what to do."""


def run_all(jobs: list[Job], folder: Path, out: Path, deadline: float) -> None:
    """Run jobs, each in a process of its own; those that run at the deadline are ended.

    What they wrote is collected every `COLLECTED_S` and in the end.

    The processes are copies of this one, which has imported all and not touched the device.
    """
    waiting, running, collected = list(jobs), dict[int, Job](), time.time()
    most_gb = CARD_PART * card_bytes(folder) / GB
    while (waiting or running) and time.time() < deadline:
        taken_gb = sum(job[1] for job in running.values())
        can = [j for j in waiting if not running or j[1] + taken_gb <= most_gb]
        if can and len(running) < AT_ONCE:
            job = can[0]
            waiting.remove(job)
            pid = os.fork()
            if not pid:
                os.setpgid(0, 0)  # it is ended together with the processes that it begins
                do(job, folder)
            running[pid] = job
            continue
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            running.pop(pid)
        else:
            time.sleep(POLLED_S)
        if time.time() - collected > COLLECTED_S:
            collect(folder, out)
            collected = time.time()
    for pid in running:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if waiting or running:
        print(f"not done in time: {', '.join(job[0] for job in (*running.values(), *waiting))}")
    collect(folder, out)


def card_bytes(folder: Path) -> int:
    """Memory of the card, asked in a process of its own: none may be forked after CUDA began."""
    file = folder / "card"
    forked(file, lambda: {"bytes": torch.cuda.mem_get_info()[1]})
    return int(json.loads(file.read_text())["bytes"])


def do(job: Job, folder: Path) -> None:
    """Do a job in a process that ends here."""
    began, file = time.time(), folder / f"{job[0].replace('/', '-')}.json"
    try:
        torch.set_num_threads(1)
        made = job[2]()
    except BaseException:  # noqa: BLE001 - the other jobs are wanted all the same
        made = json.loads(file.read_text()) if file.exists() else {}
        made["error"] = traceback.format_exc()[-1500:]
    made["began"], made["ended"] = began, time.time()
    write(file, made)
    os._exit(0)


def write(file: Path, made: dict[str, Any]) -> None:
    """Write what was measured; who reads the file meanwhile finds the one before it."""
    written = file.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(made))
    written.replace(file)


def bracketed(
    key: str, name: str, mode: str, kind: str, label: str, folder: Path
) -> dict[str, Any]:
    """Search the largest size and then find it by trying, from what was found on.

    What is known after the search and after each try is written at once.
    """
    case, limit = CASES[name], LIMITS[label]
    search = search_batch if kind == "batch" else search_patch
    file = folder / f"found-{key}"
    forked(file, partial(search, case, mode, limit))
    made: dict[str, Any] = json.loads(file.read_text())
    made |= {"kind": kind, "name": name, "mode": mode, "limit_name": label}
    if "error" in made:
        return made
    made["tries"] = tries = dict[int, bool]()
    write(folder / f"{key}.json", made)

    def runs(more: int) -> bool:
        """Whether a size that is larger by so many images, or by so many times 32, runs."""
        if more not in tries:
            if kind == "batch":
                shape: tuple[int, ...] = (made["found"] + more, *case.shape)
            else:
                shape = (2, case.shape[0], *(size + 32 * more for size in made["found"]))
            target = case.targets(shape[0], shape[2:])
            forked(file, partial(run_once, case, mode, shape, made["limit"], target))
            tried = json.loads(file.read_text())
            if "error" in tried:
                raise RuntimeError(tried["error"])
            tries[more] = tried["ran"]
            write(folder / f"{key}.json", made)
        return tries[more]

    smallest = 1 - (made["found"] if kind == "batch" else min(made["found"]) // 32)
    if runs(0):
        ran, step = 0, 1
        while step <= MOST_MORE and runs(ran + step):
            ran, step = ran + step, 2 * step
        failed = ran + step
    else:
        failed, step = 0, 1
        while failed - step > smallest and not runs(failed - step):
            failed, step = failed - step, 2 * step
        ran = failed - step
    while failed - ran > 1 and step <= MOST_MORE:
        middle = (ran + failed) // 2
        ran, failed = (middle, failed) if runs(middle) else (ran, middle)
    return made


def forked(file: Path, function: Callable[[], dict[str, Any]]) -> None:
    """Run a function in a process of its own, which writes what it returns to a file."""
    pid = os.fork()
    if not pid:
        try:
            made = function()
        except BaseException:  # noqa: BLE001 - the other sizes are wanted all the same
            made = {"error": traceback.format_exc()[-1500:]}
        write(file, made)
        os._exit(0)
    os.waitpid(pid, 0)


def measure_all(
    folder: Path, out: Path, names: list[str], parts: list[str], labels: list[str], deadline: float
) -> None:
    """Run everything on the device."""
    jobs: list[Job] = []
    if "times" in parts:
        for name in REDUCED:
            for has_room in (True, False):
                key = f"squeezed-{name}-{has_room}"
                jobs.append((key, 8, partial(squeezed, CASES[name], has_room)))
        jobs += [
            (f"reduced-{name}-{part}", 14, partial(reduced, CASES[name], part))
            for name in REDUCED for part in (0.8, 0.6)
        ]  # fmt: skip
        jobs += [(f"times-{name}", 8, partial(times, CASES[name])) for name in TIMED]
        run_all(jobs, folder, out, deadline)
    jobs = []
    for name in names:
        if "memory" in parts:
            jobs += [
                (f"memory-{name}-{mode}", 6, partial(measure, CASES[name], mode)) for mode in MODES
            ]
        if "device" in parts:
            jobs.append((f"device-{name}", 4, partial(calibrate, CASES[name])))
    searches: list[Job] = []
    for label in labels:
        limit_gb = (LIMITS[label] or card_bytes(folder) / 10) / GB
        for kind, of in {"patch": PATCHES, "batch": SEARCHED}.items():
            for name, mode in of.items() if kind in parts else ():
                key = f"{kind}-{name}-{label.replace(' ', '')}"
                job = partial(bracketed, key, name, mode, kind, label, folder)
                searches.append((key, limit_gb + BESIDE_GB, job))
    # Searches take longest: they begin first, and the small ones run beside them.
    run_all(searches + jobs, folder, out, deadline)


def squeezed(case: Case, has_room: bool) -> dict[str, Any]:
    """Time the convolutions of a step with room for their workspaces, or without any."""
    from maxslices.nn.replay import Workspaces
    from maxslices.nn.replay.measure_workspaces import _measured, convolution_of

    step, inputs = step_of(case, "training")
    calls = step.trace(inputs, Workspaces.allowance()).calls
    kinds = ("convolution", "input gradient", "weight gradient")
    unique = {(c.kind, c.signature): c for c in calls if c.kind in kinds}
    rows = []
    total = torch.cuda.mem_get_info()[1]
    for call in list(unique.values())[:90]:
        torch.cuda.set_per_process_memory_fraction(1.0)
        n_bytes = _measured(call) if has_room else 0
        run = convolution_of(call)
        if not has_room:
            made = torch.empty(call.shapes[2 if call.kind == "convolution" else 0], device="cuda")
            weight = torch.empty(call.shapes[1], device="cuda")
            del made, weight
            torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        try:
            with alone():
                taken = []
                for _ in range(4):
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    run()
                    torch.cuda.synchronize()
                    taken.append(time.perf_counter() - began)
            rows.append([call.kind, call.signature, call.batch, n_bytes, min(taken)])
        except torch.OutOfMemoryError:
            rows.append([call.kind, call.signature, call.batch, n_bytes, None])
        del run
        torch.cuda.empty_cache()
    return {"rows": rows}


def collect(folder: Path, out: Path) -> None:
    """Join what the processes wrote: figures, allocations and workspaces, each in a file."""
    figures: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for file in sorted(folder.glob("*.json")):
        made = json.loads(file.read_text())
        if "asked" in made:
            asked[file.stem] = made.pop("asked")
        for each in made.pop("workspaces", ()):
            table = {**tables.get("table", {}), **each["table"]}
            for key, points in each["table"].items():
                known = {tuple(point) for point in (*tables.get("table", {}).get(key, ()), *points)}
                table[key] = sorted(known)
            tables = {**each, "table": table}
        figures[file.stem] = made
    figures["torch"] = torch.__version__
    (out / "figures.json").write_text(json.dumps(figures, indent=1))
    for name, content in (("asked", asked), ("workspaces", tables)):
        with gzip.open(out / f"{name}.json.gz", "wt") as packed:
            json.dump(content, packed)


# -- tables


def table(out: Path) -> None:
    """Print measured figures beside the predicted ones."""
    figures = json.loads((out / "figures.json").read_text())
    file = out / "predicted.json"
    without = json.loads(file.read_text()) if file.exists() else {}
    print("| network | mode | measured, MiB | without a device | with one |\n|" + "---|" * 5)
    for key, made in figures.items():
        if not key.startswith("memory-"):
            continue
        case, mode = key.removeprefix("memory-").rsplit("-", 1)
        if "error" in made:
            print(f"| {case} | {mode} | {made['error'].strip().splitlines()[-1][:80]} | | |")
            continue
        on_device = figures.get(f"device-{case}", {})
        told = on_device.get(mode, {})
        given = without.get(f"{case}-{mode}", {"allocated": told.get("without")})
        cells = [
            "" if n_bytes is None else f"{n_bytes / made['allocated'] - 1:+.2%}"
            for n_bytes in (given.get("allocated"), told.get("allocated"))
        ]
        said = (given.get("error") or on_device.get("error", "")).strip()[-60:]
        cells[1] = cells[1] or said
        print(f"| {case} | {mode} | {made['allocated'] / MIB:,.1f} | {' | '.join(cells)} |")
    for key, made in figures.items():
        if key.startswith(("times-", "reduced-")) and "error" not in made:
            told = {k: f"{1e3 * v:.1f}" for k, v in made.items() if k.endswith("_s") and
                    isinstance(v, float)}  # fmt: skip
            print(key, told)
    errors = [key for key, made in figures.items() if "error" in made]
    print(f"{len(errors)} failed: {' '.join(errors)[:600]}")
    spans = [m for m in figures.values() if "ended" in m]
    if spans:
        print(f"{max(m['ended'] for m in spans) - min(m['began'] for m in spans):.0f} s")
    sizes_table([made for made in figures.values() if isinstance(made, dict) and "kind" in made])


def sizes_table(rows: list[dict[str, Any]]) -> None:
    """Print the largest batches and patches, and how far the largest that ran is from each."""
    for kind in ("batch", "patch"):
        print(f"| {kind} of | limit | predicted | found | largest that ran | steps apart | s | |")
        print("|" + "---|" * 8)
        for made in rows:
            if made["kind"] != kind:
                continue
            start = f"| {made['name']}, {made['mode']} | {made['limit_name']} "
            if "error" in made:
                last = made["error"].strip().splitlines()[-1][:120]
                print(f"{start}| {made.get('found', '')} {last} |")
                continue
            tries = {int(more): ran for more, ran in made["tries"].items()}
            ran = max((more for more in tries if tries[more]), default=None)
            # Sizes between the largest that ran and the next that did not are not known.
            known = ran is not None and tries.get(ran + 1) is False
            found, by = (made["found"], 1) if kind == "batch" else (made["found"][0], 32)
            cells = [str(made["predicted"]), str(made["found"])]
            cells += ["" if ran is None else f"{found + ran * by}{'' if known else ' or more'}"]
            told = [f"{more:+d} {'ran' if tries[more] else 'did not'}" for more in sorted(tries)]
            cells += ["" if ran is None else f"{ran:+d}", f"{made['seconds']:.0f}"]
            print(start + "".join(f"| {cell} " for cell in cells) + f"| {', '.join(told)} |")


def predict_all(out: Path, names: list[str]) -> None:
    """Predict every network without a device."""
    file = out / "predicted.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        for mode in MODES:
            try:
                made = predict(CASES[name], mode)
            except Exception as error:  # noqa: BLE001 - the other rows are wanted all the same
                made = {"error": f"{type(error).__name__}: {error}"}
            known[f"{name}-{mode}"] = made
            told = made.get("error") or f"{made['allocated'] / MIB:,.1f} MiB"
            print(name, mode, told, f"{made.get('seconds', 0):.1f} s", flush=True)
            file.write_text(json.dumps(known, indent=1))


def stub_operators() -> None:
    """Declare the compiled operators that torchvision's Python needs when it is imported."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [each for each in sys.modules if each.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        KEPT.append(library)


KEPT: list[Any] = []
"""Libraries of operators, which end with the object."""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--predict", action="store_true", help="predict without a device")
    parser.add_argument("--print", action="store_true", help="print the tables of OUT")
    parser.add_argument("--only", help="networks to predict or to measure the memory of")
    parser.add_argument("--parts", default="memory,device,batch,patch,times")
    parser.add_argument("--limits", default=",".join(LIMITS), help="limits of batches and patches")
    parser.add_argument(
        "--limit-s", type=float, default=270, help="what runs then is ended, and the tables printed"
    )
    parser.add_argument(
        "--networks", default="table", help="lists: table, and those of nn_holdout.py, first,"
        " second, third and fourth",
    )  # fmt: skip
    parsed, began = parser.parse_args(), time.time()
    parsed.out.mkdir(parents=True, exist_ok=True)
    stub_operators()
    if parsed.networks != "table":
        import nn_holdout

        lists = {"table": dict(CASES), "first": nn_holdout.FIRST, "second": nn_holdout.SECOND}
        lists |= {"third": nn_holdout.THIRD, "fourth": nn_holdout.FOURTH}
        CASES.clear()
        for each in parsed.networks.split(","):
            CASES.update(lists[each])
    names = parsed.only.split(",") if parsed.only else list(CASES)
    import timm  # noqa: F401
    import torchvision.models.segmentation
    import torchvision.models.video  # noqa: F401

    import maxslices.nn.reduce  # noqa: F401

    if parsed.predict:
        predict_all(parsed.out, names)
    elif not parsed.print:
        with tempfile.TemporaryDirectory() as folder:
            measure_all(
                Path(folder), parsed.out, names, parsed.parts.split(","),
                parsed.limits.split(","), began + parsed.limit_s,
            )  # fmt: skip
    if (parsed.out / "figures.json").exists():
        table(parsed.out)


if __name__ == "__main__":
    main()
