"""One real step on the device within a limit, in another process where possible.

The other process is sent a copy of the model without data, so nothing is copied from the
device and the real model is not touched. It starts and ends without fragmented memory.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...devices.out_of_memory import is_out_of_memory
from ..memory_budget import foreign_bytes, limit
from ..nn_errors import ModelArgumentError, first_line
from ..replay import Spec
from ..replay.meta_copy import materialize, meta_copy, optimizers_in
from ..replay.replay_step import StepLoop
from ..step.call_inputs import called
from ..step.model_step import ModelStep, meta_optimizer, real_tensors, run_step
from .answers import VerifiedStep


def main(job_path: str, answer_path: str) -> None:
    """Run the step of a job file and write its outcome to an answer file."""
    paths, settings, payload = pickle.loads(Path(job_path).read_bytes())
    sys.path[:] = list(dict.fromkeys([*sys.path, *paths]))
    answer = _run(settings, payload)
    Path(answer_path).write_bytes(pickle.dumps(answer))


def _run(settings: dict[str, Any], payload: bytes) -> dict[str, Any]:
    import torch

    from ...devices.out_of_memory import is_out_of_memory

    for name, value in settings.items():
        setattr(torch.backends.cudnn, name, value)
    try:
        job = pickle.loads(payload)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        return {"verdict": "cannot", "text": f"another process cannot read the model ({error})"}
    device = torch.device(job["device"])
    is_cuda = device.type == "cuda"
    if is_cuda:
        free, total = torch.cuda.mem_get_info(device)
        no_room = {
            "verdict": "no room",
            "text": f"another process finds {free:,} bytes free, of {job['limit_bytes']:,}",
        }
        if free < job["allocated_bytes"]:
            return no_room
        part = min(1.0, job["limit_bytes"] / total)
        torch.cuda.set_per_process_memory_fraction(part, device)
        assert torch.cuda.memory_allocated(device) == 0
    try:
        run_job(job["model"], job["optimizer"], job["loop"], job["inputs"], job["targets"], device)
        if is_cuda:
            torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 - the model's own: told to who asked
        if is_out_of_memory(error):
            if is_cuda and free < job["limit_bytes"]:
                return no_room  # that it failed says nothing of the limit
            return {"verdict": "out of memory", "text": str(error)}
        return {"verdict": "raised", "text": f"{type(error).__name__}: {error}", **_pickled(error)}
    if not is_cuda:
        return {"verdict": "ran"}
    return {
        "verdict": "ran",
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


def _pickled(error: Exception) -> dict[str, bytes]:
    try:
        return {"error": pickle.dumps(error)}
    except Exception:  # noqa: BLE001 - an exception may hold anything
        return {"error": b""}


TIMEOUT_S = 600.0
"""Steps that take longer are given up. The longest in the tables of the docs took 9 s, most of
it the start of Python and torch."""

_HERE = Path(__file__).resolve().parents[3]
"""Folder from which the other process imports this package."""


@dataclass(slots=True)
class RealSteps:
    """Runs the real steps of one search, in another process as long as that works."""

    step: ModelStep
    device: torch.device
    limit_bytes: int
    in_process_reason: str = ""
    """Reason not to use another process; "" if there is none."""

    def run(self, size: Any, inputs: Sequence[Spec], allocated_bytes: int) -> VerifiedStep:
        """Run a step and measure it.

        Parameters
        ----------
        size : int or tuple of int
            Batch size or shape, for the result.
        inputs : sequence of Spec
            Arguments of the model.
        allocated_bytes : int
            Predicted peak; another process must find as much free.

        Raises
        ------
        Exception
            Any error of the model other than a lack of memory.
        """
        gc.collect()
        torch.cuda.empty_cache()
        began = time.perf_counter()
        targets = self.step.target_specs(inputs)
        if not self.in_process_reason:
            job = self._job(inputs, targets, allocated_bytes)
            answer: dict[str, Any] = {"verdict": "cannot", "text": self.in_process_reason}
            if job is not None:
                answer = _ask(job)
            if answer["verdict"] == "raised":
                raise _as_error(answer)
            if answer["verdict"] in ("ran", "out of memory"):
                return VerifiedStep(
                    size,
                    answer["verdict"] == "ran",
                    "another process",
                    answer.get("allocated_bytes", 0),
                    answer.get("reserved_bytes", 0),
                    time.perf_counter() - began,
                )
            self.in_process_reason = answer["text"]
        return self._run_here(size, inputs, targets, began)

    def _job(
        self, inputs: Sequence[Spec], targets: Sequence[Any], allocated_bytes: int
    ) -> bytes | None:
        step = self.step
        made = meta_copy(step.model)
        optimizer = meta_optimizer(step.optimizer, step.model, made)
        if optimizer is not step.optimizer:
            optimizer = optimizer(None)
        model = step.prepared(made)
        try:
            payload = pickle.dumps(
                {
                    "model": model,
                    "optimizer": optimizer,
                    "loop": step.loop,
                    "inputs": tuple(inputs),
                    "targets": tuple(targets),
                    "device": str(self.device),
                    "limit_bytes": self.limit_bytes,
                    "allocated_bytes": allocated_bytes,
                }
            )
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.in_process_reason = (
                f"the model cannot be sent to another process ({first_line(error)})"
            )
            return None
        if _needs_main(payload):
            self.in_process_reason = (
                "what is defined in the script or notebook itself is not known to another process"
            )
            return None
        return pickle.dumps((sys.path, _settings(), payload))

    def _run_here(
        self, size: Any, inputs: Sequence[Spec], targets: Sequence[Any], began: float
    ) -> VerifiedStep:
        """Run a step in this process: the real model for inference, else a copy."""
        step, device = self.step, self.device
        real = (*step.model.parameters(), *step.model.buffers())
        own = step.mode == "inference" and all(t.device == device for t in real)
        beside = foreign_bytes(step.model, device)
        if not own:
            beside = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        try:
            with limit(self.limit_bytes + beside, device):
                if own:
                    self._predict(inputs)
                else:
                    _run_copy(step, inputs, targets, device)
                torch.cuda.synchronize(device)
            fits = True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        peak = torch.cuda.max_memory_allocated(device) - beside if fits else 0
        reserved = torch.cuda.max_memory_reserved(device) - beside if fits else 0
        gc.collect()
        torch.cuda.empty_cache()
        return VerifiedStep(size, fits, "this process", peak, reserved, time.perf_counter() - began)

    def _predict(self, inputs: Sequence[Spec]) -> None:
        model = self.step.model
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            given = real_tensors(tuple(inputs), self.device)
            with torch.cuda.device(self.device):
                whole = called(model, self.step.prediction_function, self.step.names)
                run_step(whole, given, self.step.loop)
        finally:
            for module, training in modes.items():
                module.training = training


def _run_copy(
    step: ModelStep, inputs: Sequence[Spec], targets: Sequence[Any], device: torch.device
) -> None:
    made = meta_copy(step.model)
    optimizer = meta_optimizer(step.optimizer, step.model, made)
    if optimizer is not step.optimizer:
        optimizer = optimizer(None)
    run_job(step.prepared(made), optimizer, step.loop, inputs, targets, device)


def run_job(
    model: torch.nn.Module,
    optimizer: Any,
    loop: StepLoop,
    inputs: Sequence[Spec],
    targets: Sequence[Any],
    device: torch.device,
) -> None:
    """Run a step of a model without data."""
    made = optimizer if optimizers_in(optimizer) else None
    materialize(model, device, made)
    if made is None and optimizer is not None and loop.mode == "training":
        made = optimizer([p for p in model.parameters() if p.requires_grad])
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        given = real_tensors(tuple(inputs), device)
        wanted = real_tensors(tuple(targets), device, random=False)  # as any loss can take them
        run_step(model, given, loop, made, wanted)


def _settings() -> dict[str, Any]:
    """Torch's switches that select kernels."""
    cudnn = torch.backends.cudnn
    return {
        "benchmark": cudnn.benchmark,
        "deterministic": cudnn.deterministic,
        "allow_tf32": cudnn.allow_tf32,
        "enabled": cudnn.enabled,
    }


def _needs_main(payload: bytes) -> bool:
    """True if a pickle refers to ``__main__``."""

    class Reader(pickle.Unpickler):
        found = False

        def find_class(self, module: str, name: str) -> Any:
            Reader.found = Reader.found or module == "__main__"
            return super().find_class(module, name)

    Reader(io.BytesIO(payload)).load()
    return Reader.found


def _ask(job: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="maxslices-") as folder:
        path = Path(folder) / "job"
        path.write_bytes(job)
        answer = Path(folder) / "answer"
        paths = [str(_HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [
            sys.executable,
            "-m",
            "maxslices.nn.fit.real_step",
            str(path),
            str(answer),
        ]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"verdict": "cannot", "text": f"another process took over {TIMEOUT_S:.0f} s"}
        if answer.exists():
            found: dict[str, Any] = pickle.loads(answer.read_bytes())
            return found
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"verdict": "cannot", "text": f"another process ended without an answer: {last[0]}"}


def _as_error(answer: dict[str, Any]) -> Exception:
    try:
        error = pickle.loads(answer["error"])
    except Exception:  # noqa: BLE001 - an exception class may do anything when it is rebuilt
        error = None
    return error if isinstance(error, Exception) else ModelArgumentError(answer["text"])


if __name__ == "__main__":
    main(*sys.argv[1:])
