"""``python -m maxslices.nn.fit.real_step_process JOB ANSWER``: a step in a process of its own."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main(job_path: str, answer_path: str) -> None:
    """Run the step of a job file and write its outcome to an answer file."""
    paths, settings, payload = pickle.loads(Path(job_path).read_bytes())
    sys.path[:] = list(dict.fromkeys([*sys.path, *paths]))
    answer = _run(settings, payload)
    Path(answer_path).write_bytes(pickle.dumps(answer))


def _run(settings: dict[str, Any], payload: bytes) -> dict[str, Any]:
    import torch

    from ...devices.out_of_memory import is_out_of_memory
    from .real_step import run_job

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
    step = SimpleNamespace(**{name: job[name] for name in ("mode", "loss", "amp", "keep_output")})
    try:
        run_job(job["model"], job["optimizer"], step, job["inputs"], job["targets"], device)
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


if __name__ == "__main__":
    main(*sys.argv[1:])
