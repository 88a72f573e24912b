"""A process that runs a method on request, so that nothing it does can harm the one that asks.

`TrialProcess` is this side of it; `main` the other. Errands go there and answers come back
over pipes of their own: methods may print.
"""

from __future__ import annotations

import ctypes
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

from ..backends import Backend, select_backend
from ..backends.out_of_memory import is_out_of_memory
from ..errors import EstimatorError
from ..method import MethodMeta

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
    allowed_bytes: int
    """Memory that the method may take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    kind: Literal["ready", "ran", "out of memory", "error"]
    """Whether it ran, or why not."""
    text: str = ""
    """The exception: its type and what it says."""
    log: str = ""
    """What was written to standard error meanwhile."""


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
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main({far_end})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[far_end],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            os.close(far_end)
        assert self._process.stdin is not None
        self._requests = self._process.stdin
        self._read = b""
        self._send(packed)

    def ask(self, n_slices: int, limit_s: float) -> Answer:
        """Run the method and return what came of it.

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
        self._send(pickle.dumps(n_slices))
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
        return Answer(**json.loads(line))

    def _log_from(self, start: int) -> str:
        size = os.fstat(self._log.fileno()).st_size
        begin = max(start, size - _LOG_BYTES)
        return os.pread(self._log.fileno(), size - begin, begin).decode(errors="replace")


def main(descriptor: int) -> None:
    """Be the other process: read an errand, then numbers of slices, and answer each."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks ends this process
    requests = sys.stdin.buffer

    def answer(kind: str, text: str = "") -> None:
        os.write(descriptor, json.dumps({"kind": kind, "text": text}).encode() + b"\n")

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
            n_slices = _next(requests)
        except EOFError:
            return
        try:
            trial.run(n_slices)
        except Exception as error:  # noqa: BLE001 - what a method raises is for the one who asks
            answer("out of memory" if is_out_of_memory(error) else "error", _said(error))
        else:
            answer("ran")


class _Trial:
    """The method and its data, in the process that may die."""

    def __init__(self, errand: Errand) -> None:
        from .samples import Samples

        self._errand = errand
        self._meta = _find(errand.method)
        self._backend = select_backend(errand.device)
        self._samples = Samples(
            self._meta,
            errand.slice_dim,
            errand.other_dims,
            np.dtype(errand.dtype),
            self._backend,
        )
        self._ballast = 0

    def run(self, n_slices: int) -> None:
        """Run the method once, with no more memory than it may take."""
        gc.collect()
        self._backend.release()
        side = self._samples.side(n_slices)
        self._samples.block(1, "even")  # what it keeps for the next is not the method's
        if self._backend.kind == "cpu":
            _limit_address_space(self._errand.allowed_bytes)
        elif not self._ballast:
            self._ballast = _take_all_but(self._errand.allowed_bytes, self._backend)
        data = self._samples.block(n_slices, "even")
        result = self._meta.function(data, **(side | self._errand.parameters))
        if self._backend.kind == "cuda":
            import cupy

            cupy.cuda.runtime.deviceSynchronize()
        del result


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


def _limit_address_space(allowed_bytes: int) -> None:
    """Let this process take so much more memory than it has now."""
    import resource

    import psutil

    # What glibc keeps of freed memory would come on top.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = psutil.Process().memory_info().vms + allowed_bytes
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _take_all_but(allowed_bytes: int, backend: Backend) -> int:
    """Take the device's free memory save what is allowed; return its address, or 0."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    rest = free - allowed_bytes - backend.reserved_bytes
    return int(cupy.cuda.runtime.malloc(rest)) if rest > 0 else 0


def _next(requests: BinaryIO) -> Any:
    header = requests.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(requests.read(int.from_bytes(header, "little")))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
