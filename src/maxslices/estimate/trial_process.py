"""A process that runs a method on request, so that nothing it does can harm the one that asks.

This is its near side; `trial_worker` is the far one. Jobs go there and answers come back
over pipes of their own: methods may print.
"""

from __future__ import annotations

import json
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import EstimatorError
from ..registry.method_meta import MethodMeta
from . import trial_worker
from .trial_limits import ENVIRONMENT
from .trial_worker import TrialJob

_LOG_BYTES = 16_384
"""How much of the end of a log is looked at."""


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
    job : TrialJob
        The method, its parameters and the device.

    Raises
    ------
    EstimatorError
        If parameters cannot be sent to another process.
    """

    def __init__(self, job: TrialJob) -> None:
        self._name = f"{job.method[1]}.{job.method[2]}"
        try:
            packed = pickle.dumps((sys.path, job))
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise EstimatorError(
                f"{self._name}: its parameters cannot be sent to another process: {error}"
            ) from None
        self._answers, far_end = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._is_ready = False
        path, module = os.pathsep.join(filter(None, sys.path)), trial_worker.__name__
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import {module} as worker; worker.main({far_end})"],
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
