"""Start a worker process that runs a method, and talk to it.

The worker (`trial_worker`) may crash without harm to this process. Requests and answers go through
pipes of their own because methods may print.
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
"""The end of a worker's log that is searched for messages: some hundred lines."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the worker to one request."""

    kind: Literal["ready", "ran", "out of memory", "error"]
    """Outcome; "ready" is the answer to the job itself."""
    text: str = ""
    """Type and text of the exception, if there was one."""
    output: tuple[str, tuple[int, int]] | None = None
    """Dtype and other two dims of the array that the method returned."""
    is_clean: bool = True
    """False if the call left so much memory that the worker must be replaced."""
    log: str = ""
    """Standard output and error during the call."""


class TimedOut(Exception):
    """The worker gave no answer in time, and was killed."""


class Died(Exception):
    """The worker ended without an answer.

    Parameters
    ----------
    status : int
        Its exit status; negative for a signal.
    log : str
        The end of its standard output and error.
    """

    def __init__(self, status: int, log: str) -> None:
        super().__init__(status, log)
        self.status, self.log = status, log


def reference_to(meta: MethodMeta) -> tuple[str, str, str]:
    """Module to import, and the method's full name in two parts, for another process.

    Raises
    ------
    EstimatorError
        If the method is defined in a notebook or in the main program.
    """
    module = getattr(meta.function, "__module__", None) or meta.module
    if module == "__main__":
        raise EstimatorError(
            f"{meta.full_name} is defined in the program itself, where another process cannot "
            "import it: put it in a module of its own"
        )
    return module, meta.module, meta.name


class TrialProcess:
    """A worker process for one method.

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
        """Have the method run with a number of slices and a limit of memory.

        Raises
        ------
        TimedOut
            If there was no answer within `limit_s` seconds; the worker has been killed.
        Died
            If the worker ended.
        EstimatorError
            If the worker cannot import the method or use the device.
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
        """Kill the worker; a second call does nothing."""
        if self._log.closed:
            return
        self._process.kill()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()
        os.close(self._answers)
        self._log.close()

    def _send(self, packed: bytes) -> None:
        with suppress(BrokenPipeError):  # the worker has ended: `_receive` reports it
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
