"""The process in which a method is tried: it reads errands and answers each.

The one who asks is `trial_process.TrialProcess`.
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
from ..registry.method_meta import MethodMeta
from ..system.loaded_modules import torch_on_gpu
from .sample_data import FIRST, Samples
from .trial_limits import AddressSpace, Ballast


@dataclass(frozen=True, slots=True)
class Errand:
    """What the other process must know to run the method."""

    method: tuple[str, str, str]
    """Module that registers the method, and its full name in two parts: module and name."""
    slice_dim: int
    """Axis along which the data are cut."""
    other_dims: tuple[int, int]
    """The two dims that remain."""
    dtype: str
    """Input dtype."""
    device: str
    """"cpu" or "cuda:N"."""
    parameters: dict[str, Any]
    """The user's parameters."""
    side: dict[str, ArraySpec]
    """Flats and darks, of which as many are made up."""


def main(descriptor: int) -> None:
    """Be that process: read an errand, then numbers of slices, and answer each."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks ends this process
    requests = sys.stdin.buffer

    def answer(kind: str, text: str = "", **more: Any) -> None:
        said = {"kind": kind, "text": text, **more}
        os.write(descriptor, json.dumps(said).encode() + b"\n")

    path, errand = _next(requests)
    sys.path[:] = path
    try:
        trial = _Trial(errand)
    except Exception as error:  # noqa: BLE001 - whatever an import raises is for the one who asks
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


def _tried(trial: _Trial, n_slices: int, allowed_bytes: int) -> tuple[str, str]:
    """Run the method and return what came of it; what it raised is gone after that."""
    try:
        trial.run(n_slices, allowed_bytes)
    except Exception as error:  # noqa: BLE001 - what a method raises is for the one who asks
        return ("out of memory" if is_out_of_memory(error) else "error"), _said(error)
    return "ran", ""


class _Trial:
    """The method and its data, in the process that may die.

    It is called once without a limit, so that what the first call loads and keeps (the
    device's context, libraries, compiled kernels, caches) is not counted in any other.
    """

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._meta = _find(errand.method)
        self._backend = select_backend(errand.device)
        self._samples = self._new_samples()
        self.output: tuple[str, tuple[int, int]] | None = None
        self._limit: AddressSpace | Ballast
        if self._backend.kind == "cpu":
            self._limit = AddressSpace()
        else:
            import cupy

            # Nothing else runs here, so it stays the current one.
            cupy.cuda.Device(int(self._backend.name.removeprefix("cuda:"))).use()
            self._limit = Ballast(self._backend.modules_bytes)
        self._first_call()
        self.is_clean()

    def _first_call(self) -> None:
        for n_slices in FIRST:
            try:
                return self._call(n_slices, self._samples.side(n_slices))
            except Exception as error:  # noqa: BLE001 - it is met again when it is asked for
                if is_out_of_memory(error):
                    return None

    def run(self, n_slices: int, allowed_bytes: int) -> None:
        """Run the method once, with no more memory than it may take."""
        side = self._samples.side(n_slices)
        self._samples.block(1, "even")  # what it keeps for the next is not the method's
        self._settle()
        with self._limit.to(allowed_bytes):
            self._call(n_slices, side)

    def is_clean(self) -> bool:
        """Give back what can be, and tell whether much of the last call is left."""
        self._samples = self._new_samples()  # gives back the side data
        try:
            self._settle()
            return self._limit.is_clean()
        except RuntimeError:  # a GPU's error that stays
            return False

    def _new_samples(self) -> Samples:
        errand = self._errand
        return Samples(
            self._meta,
            errand.slice_dim,
            errand.other_dims,
            np.dtype(errand.dtype),
            self._backend,
            supplied=dict(errand.side),
        )

    def _call(self, n_slices: int, side: dict[str, Any]) -> None:
        data = self._samples.block(n_slices, "even")
        result = call_method(self._meta, data, side | self._errand.parameters, self._backend)
        if self._backend.kind == "cuda":
            import cupy

            cupy.cuda.runtime.deviceSynchronize()
        shape = getattr(result, "shape", ())
        if len(shape) == 3 and hasattr(result, "dtype"):
            dims = [int(n) for axis, n in enumerate(shape) if axis != self._errand.slice_dim]
            self.output = str(result.dtype), (dims[0], dims[1])
        del result

    def _settle(self) -> None:
        gc.collect()
        self._backend.release()
        torch = torch_on_gpu()
        if torch is not None:
            torch.cuda.empty_cache()


def _find(method: tuple[str, str, str]) -> MethodMeta:
    """Import what registers a method and return it."""
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
