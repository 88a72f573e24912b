"""The worker process of `trial_process.TrialProcess`, in which a method is run.

It reads a job, then pairs (slices, bytes allowed), and writes an answer to each.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ..devices import call_method, select_backend
from ..devices.out_of_memory import is_out_of_memory
from ..errors import EstimatorError
from ..model.arrays import ArraySpec
from ..registry.author_lines import raised_at
from ..registry.method_meta import MethodMeta
from ..system.loaded_modules import torch_on_gpu
from .sample_data import FIRST, Samples
from .trial_limits import AddressSpace, Ballast


@dataclass(frozen=True, slots=True)
class TrialJob:
    """What a worker process needs to run a method."""

    method: tuple[str, str, str]
    """Module to import, then the method's full name in two parts: module and name."""
    slice_dim: int
    """Axis of the slices."""
    other_dims: tuple[int, int]
    """The two dims that remain."""
    dtype: str
    """Input dtype."""
    device: str
    """"cpu" or "cuda:N"."""
    parameters: dict[str, Any]
    """The user's parameters."""
    side: dict[str, ArraySpec]
    """Flats and darks; as many frames are made up."""


def main(descriptor: int) -> None:
    """Worker main loop."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    requests = sys.stdin.buffer

    def answer(kind: str, text: str = "", **more: Any) -> None:
        said = {"kind": kind, "text": text, **more}
        os.write(descriptor, json.dumps(said).encode() + b"\n")

    path, job = _next(requests)
    sys.path[:] = path
    try:
        trial = _JobRun(job)
    except Exception as error:  # noqa: BLE001 - whatever an import raises goes to the parent
        answer("error", _said(error))
        return
    answer("ready")
    while True:
        try:
            n_slices, allowed_bytes = _next(requests)
        except EOFError:
            return
        kind, text = _tried(trial, n_slices, allowed_bytes)
        answer(kind, text, output=trial.output, is_clean=trial.is_clean())


def _tried(trial: _JobRun, n_slices: int, allowed_bytes: int) -> tuple[str, str]:
    """Outcome and message of one run; frees the exception, which holds arrays of the method."""
    try:
        trial.run(n_slices, allowed_bytes)
    except Exception as error:  # noqa: BLE001 - what a method raises goes to the parent
        return ("out of memory" if is_out_of_memory(error) else "error"), (
            _said(error) + raised_at(error, trial.meta.function)
        )
    return "ran", ""


class _JobRun:
    """A job under way in the worker: the method, its data and the limit of memory.

    The method is first called without a limit, so that what a first call loads and keeps (the
    device's context, libraries, compiled kernels, caches) does not count in later ones.
    """

    def __init__(self, job: TrialJob) -> None:
        self._job = job
        self.meta = _find(job.method)
        self._backend = select_backend(job.device)
        self._samples = self._new_samples()
        self.output: tuple[str, tuple[int, int]] | None = None
        self._limit: AddressSpace | Ballast
        if self._backend.kind == "cpu":
            self._limit = AddressSpace()
        else:
            import cupy

            # Stays the current device: nothing else runs in this process.
            cupy.cuda.Device(int(self._backend.name.removeprefix("cuda:"))).use()
            self._limit = Ballast(self._backend.modules_bytes)
        self._first_call()
        self.is_clean()

    def _first_call(self) -> None:
        for n_slices in FIRST:
            try:
                return self._call(n_slices, self._samples.side(n_slices))
            except Exception as error:  # noqa: BLE001 - comes again in the run that needs it
                if is_out_of_memory(error):
                    return None

    def run(self, n_slices: int, allowed_bytes: int) -> None:
        """Run the method once with a limit of memory."""
        side = self._samples.side(n_slices)
        self._samples.block(1, "even")  # its cache of values must not count as the method's
        self._settle()
        with self._limit.to(allowed_bytes):
            self._call(n_slices, side)

    def is_clean(self) -> bool:
        """Free what can be freed; True if the last call has left little."""
        self._samples = self._new_samples()  # frees the side data
        try:
            self._settle()
            return self._limit.is_clean()
        except RuntimeError:  # a sticky CUDA error
            return False

    def _new_samples(self) -> Samples:
        job = self._job
        return Samples(
            self.meta,
            job.slice_dim,
            job.other_dims,
            np.dtype(job.dtype),
            self._backend,
            supplied=dict(job.side),
        )

    def _call(self, n_slices: int, side: dict[str, Any]) -> None:
        data = self._samples.block(n_slices, "even")
        result = call_method(self.meta, data, side | self._job.parameters, self._backend)
        if self._backend.kind == "cuda":
            import cupy

            cupy.cuda.runtime.deviceSynchronize()
        shape = getattr(result, "shape", ())
        if len(shape) == 3 and hasattr(result, "dtype"):
            dims = [int(n) for axis, n in enumerate(shape) if axis != self._job.slice_dim]
            self.output = str(result.dtype), (dims[0], dims[1])
        del result

    def _settle(self) -> None:
        gc.collect()
        self._backend.release()
        torch = torch_on_gpu()
        if torch is not None:
            torch.cuda.empty_cache()


def _find(method: tuple[str, str, str]) -> MethodMeta:
    """Import the module that registers a method, and look it up."""
    from ..registry.method_registry import registry

    defined_in, module, name = method
    if f"{module}.{name}" in registry:
        return registry.get(name, module)
    found = getattr(importlib.import_module(defined_in), name)
    meta = found if isinstance(found, MethodMeta) else getattr(found, "meta", None)
    if not isinstance(meta, MethodMeta):
        raise EstimatorError(f"{defined_in}.{name} is no registered method")
    return meta


def _next(requests: BinaryIO) -> Any:
    header = requests.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(requests.read(int.from_bytes(header, "little")))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
