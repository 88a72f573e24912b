"""The pytest plugin: options, marker, fixture, recorded peaks and the summary.

pytest loads it in every run, so it imports only pytest until it is used.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..checking.check_result import CheckResult
    from ..core.method_meta import MethodMeta

MARKER = "max_slices"
PROPERTY = "maxslices"
RECORD_PROPERTY = "maxslices-record"
_OPTIONS: dict[str, tuple[str, type, str]] = {
    "lower": ("0.80", float, "least estimated slices, over slices that really fit"),
    "upper": ("1.00", float, "most estimated slices, over slices that really fit"),
    "device": ("auto", str, "where methods are run: cpu, cuda, cuda:N, or auto: a GPU if any"),
    "examples": ("300", int, "random situations that a conformance class tries in all"),
    "json": ("", str, "write all results to this file"),
    "record": ("", str, "add the measured peaks to this file"),
    "replay": ("", str, "compare estimators with the peaks recorded in this file"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add each option as a flag and as an ini key. The flag takes precedence."""
    group = parser.getgroup("maxslices", "estimates of memory compared with measured peaks")
    group.addoption(
        "--maxslices",
        dest="maxslices_of",
        nargs="?",
        const="",
        metavar="PACKAGE",
        help="check all registered methods, or those of a package, without a file of cases",
    )
    for name, (default, kind, text) in _OPTIONS.items():
        ini = f"maxslices_{name}"
        default_text = f"default: {default}" if default else "default: none"
        group.addoption(
            f"--maxslices-{name}",
            default=None,  # a default would shadow the ini key
            metavar={float: "RATIO", int: "N"}.get(kind, "FILE" if not default else "DEVICE"),
            help=f"{text} (ini: {ini}; {default_text})",
        )
        parser.addini(ini, f"{text} ({default_text})", default=None)


@dataclass(frozen=True)
class Settings:
    """The current options."""

    lower: float
    upper: float
    device: str
    examples: int
    json: Path | None
    record: Path | None
    replay: Path | None


_settings = pytest.StashKey[Settings]()
_results = pytest.StashKey[list[dict[str, Any]]]()
_records = pytest.StashKey[list[dict[str, Any] | None]]()


def _read_option(config: pytest.Config, name: str) -> Any:
    default, kind, _ = _OPTIONS[name]
    flag, ini = config.getoption(f"maxslices_{name}"), config.getini(f"maxslices_{name}")
    text = flag if flag is not None else ini if ini not in (None, "") else default
    source = f"--maxslices-{name}" if flag is not None else f"the ini key maxslices_{name}"
    if name in ("json", "record", "replay"):
        if not text:
            return None
        folder = config.invocation_params.dir if flag is not None else config.rootpath
        return Path(os.path.abspath(folder / text))  # pytest collects files by absolute paths
    try:
        value = kind(text)
    except ValueError:
        raise pytest.UsageError(f"{source}: {text!r} is not a number") from None
    if kind is not str and not 0 < value < 10**9:
        raise pytest.UsageError(f"{source} must be positive, not {text}")
    if name == "device" and not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise pytest.UsageError(f"{source}: unknown device {text!r}: use auto, cpu, cuda or cuda:N")
    return value


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and add the file of recorded peaks to the files of tests."""
    settings = Settings(**{name: _read_option(config, name) for name in _OPTIONS})
    if settings.lower > settings.upper:
        raise pytest.UsageError(
            f"maxslices: lower, {settings.lower}, is above upper, {settings.upper}"
        )
    config.stash[_settings] = settings
    config.stash[_results], config.stash[_records] = [], []
    config.addinivalue_line(
        "markers",
        f"{MARKER}(method, shape, dtype, lower=None, upper=None, device=None, **parameters): "
        "before the test, run the method on this shape, and require that its estimator gives "
        "about as many slices for the measured peak; several markers are checked one by one.",
    )
    config.addinivalue_line(
        "markers", "gpu: needs a CUDA device and CuPy; skipped with a reason if missing"
    )
    if not hasattr(config, "workerinput"):  # workers of xdist send their reports here
        config.pluginmanager.register(_Collector(config), "maxslices-collector")
    for path in (settings.json, settings.record):
        if path is not None and not path.parent.is_dir():
            raise pytest.UsageError(f"there is no folder {path.parent} to write {path.name} to")
        if path is not None and path.is_dir():
            raise pytest.UsageError(f"{path} is a folder: name a file to write to")
    if config.getoption("maxslices_of") is not None:
        tests = str(Path(__file__).with_name("all_methods.py"))
        if config.args_source is pytest.Config.ArgsSource.ARGS:
            config.args.append(tests)
        else:
            config.args[:] = [tests]
    if settings.replay is not None:
        if not settings.replay.is_file():
            raise pytest.UsageError(f"no file of recorded peaks: {settings.replay}")
        if str(settings.replay) not in config.args:
            config.args.append(str(settings.replay))


class MaxSlices:
    """Value of the fixture `max_slices`: the check with the options of this run.

    A call does the same as `maxslices.testing.check_max_slices`. The result is added to the summary
    and to the files of ``--maxslices-json`` and ``--maxslices-record``.
    """

    def __init__(self, item: pytest.Item) -> None:
        self.settings: Settings = item.config.stash[_settings]
        self._item = item

    def __call__(
        self,
        method: Callable[..., Any] | MethodMeta | str,
        shape: tuple[int, int, int],
        dtype: Any,
        lower: float | None = None,
        upper: float | None = None,
        device: str | None = None,
        **parameters: Any,
    ) -> CheckResult:
        """Check, and raise an `EstimateError` if the estimate is out of bounds.

        The test is skipped if the argument `device` names a missing device.
        """
        __tracebackhide__ = True
        from ..checking.check_result import EstimateError
        from ..checking.estimate_check import check_by_options
        from ..errors import EstimatorError, MaxslicesError

        if device is not None:
            skip_without(device)
        own = self.settings
        try:
            result = check_by_options(
                method,
                shape,
                dtype,
                {"lower": lower, "upper": upper, "device": device},
                parameters,
                lower=own.lower,
                upper=own.upper,
                device=own.device,
            )
        except EstimateError as error:
            self.note(error.result)
            raise
        except EstimatorError:
            raise  # with the author's lines
        except MaxslicesError as error:
            raise error.with_traceback(None) from None
        self.note(result)
        return result

    def note(self, result: CheckResult, *, measured: bool = True) -> None:
        """Add a result to the summary, and with `measured` its peak to the record."""
        from .recorded_peaks import make_record

        self._item.user_properties.append((PROPERTY, result.to_dict()))
        if measured and self.settings.record is not None and not result.unseen:
            self._item.user_properties.append((RECORD_PROPERTY, make_record(result)))


@pytest.fixture
def max_slices(request: pytest.FixtureRequest) -> MaxSlices:
    """Check an estimator by ``max_slices(method, shape, dtype, **parameters)``."""
    return MaxSlices(request.node)


def skip_without(device: str) -> None:
    """Skip a test for a GPU if no usable GPU is present."""
    from ..devices import select_backend
    from ..errors import DeviceError, MaxslicesError

    __tracebackhide__ = True
    try:
        select_backend(device)
    except DeviceError as error:
        pytest.skip(str(error))
    except MaxslicesError as error:
        raise error.with_traceback(None) from None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Run the checks of a test's markers before its body."""
    for marker in pyfuncitem.iter_markers(MARKER):
        _check_marker(pyfuncitem, marker)


def _check_marker(item: pytest.Function, marker: pytest.Mark) -> None:
    from ..checking.check_result import EstimateError
    from ..errors import EstimatorError, MaxslicesError

    __tracebackhide__ = True
    check = MaxSlices(item)
    try:
        inspect.signature(check).bind(*marker.args, **marker.kwargs)
    except TypeError as error:
        text = f"@pytest.mark.{MARKER}(method, shape, dtype, **parameters): {error}"
        raise pytest.fail.Exception(text, pytrace=False) from None
    try:
        check(*marker.args, **marker.kwargs)
    except EstimatorError:
        raise  # with the author's lines
    except (EstimateError, MaxslicesError) as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


class RecordFile(pytest.File):
    """The file of ``--maxslices-replay``: a test for each recorded peak."""

    def collect(self) -> Iterable[pytest.Item]:
        """Read the records."""
        from ..errors import UsageError
        from .recorded_peaks import read_records, record_id

        try:
            for record in read_records(self.path):
                yield RecordItem.from_parent(self, name=record_id(record), record=record)
        except UsageError as error:
            raise self.CollectError(str(error)) from None


class RecordItem(pytest.Item):
    """Comparison of one recorded peak with the current estimator."""

    def __init__(self, *, record: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.record = record

    def runtest(self) -> None:
        """Compare the estimate with the recorded peak."""
        __tracebackhide__ = True
        from ..checking.check_result import EstimateError
        from .recorded_peaks import replay

        check = MaxSlices(self)
        result = replay(self.record, (check.settings.lower, check.settings.upper))
        check.note(result, measured=False)
        if not result.ok:
            raise EstimateError(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show only the message of a failed check."""
        from ..checking.check_result import EstimateError
        from ..errors import MaxslicesError

        if isinstance(excinfo.value, EstimateError | MaxslicesError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Location of this test, for reports."""
        return self.path, None, self.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> RecordFile | None:
    """Collect the file of recorded peaks."""
    replay = parent.config.stash[_settings].replay
    if replay is None or file_path != replay:
        return None
    return RecordFile.from_parent(parent, path=file_path)


class _Collector:
    """Collect results from the reports, including those of xdist's workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the results from the report of a test's body."""
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self.config.stash[_results].append(value)  # type: ignore[arg-type]
                elif name == RECORD_PROPERTY:
                    self.config.stash[_records].append(value)  # type: ignore[arg-type]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the files of results, and the table, worst method first."""
    settings, results = config.stash[_settings], config.stash[_results]
    if not (results or settings.json or settings.record):
        return
    from ..checking.check_result import summary_lines

    terminalreporter.section("maxslices: estimated slices over slices that fit")
    for line in summary_lines(results) or ["no estimate was checked"]:
        terminalreporter.write_line(line)
    for path, write in ((settings.json, _write_json), (settings.record, _write_records)):
        if path is not None:
            try:
                terminalreporter.write_line(write(path, config))
            except OSError as error:  # raising here would hide the results of the run
                terminalreporter.write_line(f"could not write {path}: {error}", red=True)


def _write_json(path: Path, config: pytest.Config) -> str:
    results = config.stash[_results]
    path.write_text(json.dumps({"format": 1, "results": results}, indent=1) + "\n")
    return f"wrote {len(results)} results to {path}"


def _write_records(path: Path, config: pytest.Config) -> str:
    from .recorded_peaks import write_records

    records = config.stash[_records]
    added = [record for record in records if record is not None]
    total = write_records(path, added)
    text = f"recorded {len(added)} peaks in {path}, which holds {total}"
    if n_left := len(records) - len(added):
        text += f"; left {n_left} out, whose parameters are not only numbers, text and lists"
    return text
