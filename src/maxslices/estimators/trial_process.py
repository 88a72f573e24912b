"""A process that runs a method on request, so that nothing it does can harm the one that asks.

`TrialProcess` is this side of it; `main` the other. Errands go there and answers come back
over pipes of their own: methods may print.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Literal

import numpy as np

from ..arrays import ArraySpec
from ..backends import call_method, select_backend
from ..backends.out_of_memory import is_out_of_memory
from ..errors import EstimatorError
from ..method import MethodMeta
from .samples import Samples
from .trial_limits import ENVIRONMENT, AddressSpace, Ballast

FIRST = (1, 2, 3, 4, 8, 17, 32)
"""Slice counts with which a first call is tried."""
_LOG_BYTES = 16_384
"""How much of the end of a log is looked at."""


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


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    kind: Literal["ready", "ran", "out of memory", "error"]
    """Whether it ran, or why not."""
    text: str = ""
    """The exception: its type and what it says."""
    output: tuple[str, tuple[int, int]] | None = None
    """Dtype of the array that it returned, and the two dims besides the slices."""
    is_clean: bool = True
    """Whether nothing of the call is left, so that another can be made."""
    log: str = ""
    """What was written to standard output and error meanwhile."""


class TimedOut(Exception):
    """The process gave no answer in time; it was ended."""


class Died(Exception):
    """The process ended without an answer.

    Parameters
    ----------
    status : int
        Its exit status; negative for a signal.
    log : str
        The end of what it wrote to standard error.
    """

    def __init__(self, status: int, log: str) -> None:
        super().__init__(status, log)
        self.status, self.log = status, log


def reference_to(meta: MethodMeta) -> tuple[str, str, str]:
    """Return how another process finds a method.

    Raises
    ------
    EstimatorError
        If it cannot: the method is defined in a notebook or in the program that is run.
    """
    module = getattr(meta.function, "__module__", None) or meta.module
    if module == "__main__":
        raise EstimatorError(
            f"{meta.full_name} is defined in the program itself, where another process cannot "
            "import it: put it in a module of its own"
        )
    return module, meta.module, meta.name


class TrialProcess:
    """A process that runs one method on as many slices as it is asked to.

    Parameters
    ----------
    errand : Errand
        The method, its parameters and the device.

    Raises
    ------
    EstimatorError
        If parameters cannot be sent to another process.
    """

    def __init__(self, errand: Errand) -> None:
        self._name = f"{errand.method[1]}.{errand.method[2]}"
        try:
            packed = pickle.dumps((sys.path, errand))
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise EstimatorError(
                f"{self._name}: its parameters cannot be sent to another process: {error}"
            ) from None
        self._answers, far_end = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._is_ready = False
        path = os.pathsep.join(filter(None, sys.path))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main({far_end})"],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[far_end],
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": path},
            )
        finally:
            os.close(far_end)
        assert self._process.stdin is not None
        self._requests = self._process.stdin
        self._read = b""
        self._send(packed)

    def ask(self, n_slices: int, allowed_bytes: int, limit_s: float) -> Answer:
        """Run the method in so many bytes and return what came of it.

        Raises
        ------
        TimedOut
            If there was no answer within `limit_s` seconds; the process has been ended.
        Died
            If it ended by itself.
        EstimatorError
            If it cannot import the method or use the device.
        """
        until = time.monotonic() + limit_s
        if not self._is_ready:
            answer = self._receive(until)
            if answer.kind != "ready":
                raise EstimatorError(
                    f"{self._name}: the process that is to try it cannot: {answer.text}"
                )
            self._is_ready = True
        start = os.fstat(self._log.fileno()).st_size
        self._send(pickle.dumps((n_slices, allowed_bytes)))
        answer = self._receive(until)
        return replace(answer, log=self._log_from(start))

    @property
    def is_alive(self) -> bool:
        """Return whether it can be asked again."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process; a second call does nothing."""
        if self._log.closed:
            return
        self._process.kill()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()
        os.close(self._answers)
        self._log.close()

    def _send(self, packed: bytes) -> None:
        with suppress(BrokenPipeError):  # it has died, which `_receive` finds out
            self._requests.write(len(packed).to_bytes(8, "little") + packed)
            self._requests.flush()

    def _receive(self, until: float) -> Answer:
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, until - time.monotonic())):
                    self._process.kill()
                    raise TimedOut
                received = os.read(self._answers, 65_536)
                if not received:
                    raise Died(self._process.wait(), self._log_from(0))
                self._read += received
        line, _, self._read = self._read.partition(b"\n")
        said = json.loads(line)
        if (output := said.get("output")) is not None:
            said["output"] = (output[0], tuple(output[1]))
        return Answer(**said)

    def _log_from(self, start: int) -> str:
        size = os.fstat(self._log.fileno()).st_size
        begin = max(start, size - _LOG_BYTES)
        return os.pread(self._log.fileno(), size - begin, begin).decode(errors="replace")


def main(descriptor: int) -> None:
    """Be the other process: read an errand, then numbers of slices, and answer each."""
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
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _find(method: tuple[str, str, str]) -> MethodMeta:
    """Import what registers a method and return it."""
    from ..registry import registry

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
