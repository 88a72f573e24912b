"""Registering methods: the decorator, and the registry of those that pipelines may name.

A registry holds methods by ``module.name``. Packages bring theirs through the entry
point group ``maxslices.methods``: importing the named module registers them.
"""

from __future__ import annotations

import copyreg
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast

from ..errors import RegistrationError, UnknownMethodError
from .author_code import name_of, raised_at, what_raised
from .declaration import describe
from .method_meta import Declaration, MethodMeta, MethodOptions, Pattern, with_type
from .parameters import nearest

ENTRY_POINT_GROUP = "maxslices.methods"


class Registry:
    """Methods by full name (``module.name``), and by plain name where that is unique.

    Supports ``len``, ``in``, iteration over records and ``registry[name]``.

    Parameters
    ----------
    entry_point_group : str, optional
        Group of the packages that bring methods, imported on first use; by default none.
    """

    def __init__(self, entry_point_group: str | None = None) -> None:
        self._group = entry_point_group
        self._methods: dict[str, MethodMeta] = {}
        self._sites: dict[str, _Site] = {}
        self._left_out: list[str] = []
        self._by_module_only: set[str] = set()
        self._of_packages: set[str] = set()
        self._refused: dict[str, str] = {}
        # Two locks: whoever imports a package holds the first, and the package's modules
        # register under the second, perhaps in a thread that imports them at that moment.
        self._loading = threading.RLock()
        self._changing = threading.Lock()

    def register(
        self,
        function: Callable[..., Any],
        *,
        by_module_only: bool = False,
        **declaration: Unpack[Declaration],
    ) -> MethodMeta:
        """Register a function that one may not own; see `method` for the keywords.

        Parameters
        ----------
        function : callable
            The method: its first parameter, of whatever name, takes the array. It is not
            changed.
        by_module_only : bool
            Whether a plain name never means it where another method has that name too.
        **declaration
            ``pattern`` and the options of `method`; ``name`` and ``module`` by which pipelines
            name it, by default those of its definition; and ``former_names``, a mapping of the
            names that its parameters had in earlier releases to those they have.

        Returns
        -------
        MethodMeta

        Raises
        ------
        RegistrationError
            If the declaration cannot work, or the name is taken.
        """
        meta = self.add(describe(function, **declaration))
        if by_module_only:
            with self._changing:
                self._by_module_only.add(meta.full_name)
        return meta

    def refuse(self, full_name: str, reason: str) -> None:
        """Refuse a method of another framework; `get` gives the reason."""
        with self._changing:
            self._refused[full_name] = reason

    def add(self, meta: MethodMeta) -> MethodMeta:
        """Add a record that `describe` made; `register` and the decorator `method` end here.

        The same line of code may register a method again, and so may a module that is
        reloaded: the newer record replaces the older.
        """
        site = _Site.of_caller()
        with self._changing:
            earlier = self._sites.get(meta.full_name)
            if earlier is not None and not site.replaces(earlier):
                raise RegistrationError(
                    f"{meta.full_name} is registered twice: at {earlier} and at {site}"
                )
            self._methods[meta.full_name] = meta
            self._sites[meta.full_name] = site
        return meta

    def get(self, name: str, module: str | None = None) -> MethodMeta:
        """Look a method up by its name.

        Parameters
        ----------
        name : str
            A plain name, or ``module.name``.
        module : str, optional
            Its module, as pipeline files give it in ``module_path``.

        Raises
        ------
        UnknownMethodError
            If there is none, naming the nearest; or if several packages have it.
        """
        if not isinstance(name, str):
            raise UnknownMethodError(f"a method is found by its name, not by {with_type(name)}")
        known = self._known()
        wanted = f"{module}.{name}" if module else name
        if wanted in known:
            return known[wanted]
        if wanted in self._refused:
            raise UnknownMethodError(f"{wanted} is not supported: {self._refused[wanted]}")
        same_name = [meta for meta in known.values() if meta.name == name]
        if not module:
            own = [meta for meta in same_name if meta.full_name not in self._by_module_only]
            same_name = own or same_name
        if not module and len(same_name) == 1:
            return same_name[0]
        if not module and same_name:
            full_names = " or ".join(sorted(meta.full_name for meta in same_name))
            raise UnknownMethodError(f"several methods are named {name!r}: write {full_names}")
        if same_name:
            others = " or ".join(sorted(meta.module for meta in same_name))
            raise UnknownMethodError(
                f"no method {name!r} in module {module!r}; there is one in {others}"
            )
        beside = sorted(meta.name for meta in known.values() if module and meta.module == module)
        hint = nearest(name.rsplit(".", 1)[-1], {meta.name for meta in known.values()})
        if beside and not hint:
            hint = f"; {module} has: {', '.join(beside)}"
        if not known:
            hint = "; no package of methods is installed: pip install maxslices-methods"
        elif not hint:
            hint = "; `maxslices methods` lists those of installed packages"
            if module:  # perhaps a file beside the pipeline
                hint += ", `maxslices new-methods` makes a package for your own"
        if self._left_out:
            hint += f" ({'; '.join(self._left_out)})"
        raise UnknownMethodError(f"unknown method {wanted!r}{hint}")

    def shortest_name(self, meta: MethodMeta) -> str:
        """Shortest name that means a method: its own, or ``module.name``."""
        try:
            found = self.get(meta.name)
        except UnknownMethodError:
            return meta.full_name
        return meta.name if found is meta else meta.full_name

    def load_entry_points(self) -> None:
        """Import the packages that bring methods; done once, and by itself on first use.

        A package that fails to import is left out with a warning that names it. Another
        thread that asks meanwhile waits.
        """
        with self._loading:
            if self._group is None:
                return
            # Cleared first: a package that asks for methods while it is imported comes here.
            group, self._group = self._group, None
            try:
                self._left_out = self._import_packages(group)
            except BaseException:
                self._group = group
                raise
        for text in self._left_out:
            warnings.warn(text, stacklevel=2)

    def _import_packages(self, group: str) -> list[str]:
        """Import the packages of an entry point group; returns what is missing of each, and why."""
        import importlib.metadata

        missing = []
        for entry_point in importlib.metadata.entry_points(group=group):
            before = set(self._methods)
            try:
                entry_point.load()
                top = entry_point.value.partition(":")[0].partition(".")[0]
                self._of_packages |= {
                    name
                    for name, meta in self._methods.items()
                    if name not in before or f"{meta.function.__module__}.".startswith(f"{top}.")
                }
            except (MemoryError, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a package raises
                module = entry_point.value.partition(":")[0]
                package = entry_point.dist.name if entry_point.dist else entry_point.value
                what = f"the methods of {package} are left out"
                if added := [
                    meta.name for meta in self._methods.values() if meta.full_name not in before
                ]:
                    what = f"{package} may lack methods beside {', '.join(sorted(added))}"
                missing.append(
                    f"{what}, because importing {entry_point.value} failed: "
                    f"{what_raised(error)}{raised_at(error, module)}"
                )
        return missing

    def is_of_a_package(self, meta: MethodMeta) -> bool:
        """True for a method that an installed package brings, to every process that asks."""
        return meta.full_name in self._of_packages and self._methods[meta.full_name] is meta

    def _known(self) -> dict[str, MethodMeta]:
        self.load_entry_points()
        with self._changing:
            return dict(self._methods)

    def __getitem__(self, name: str) -> MethodMeta:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self.get(name) is not None
        except UnknownMethodError:
            return False

    def __iter__(self) -> Iterator[MethodMeta]:
        return iter(sorted(self._known().values(), key=lambda meta: (meta.name, meta.module)))

    def __len__(self) -> int:
        return len(self._known())


@dataclass(frozen=True, slots=True)
class _Site:
    """The line of code that registered a method."""

    file: str
    line: int
    execution: object
    """Spec of the module, which each reload renews."""

    @classmethod
    def of_caller(cls) -> _Site:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
            frame = frame.f_back
        spec = frame.f_globals.get("__spec__")
        return cls(frame.f_code.co_filename, frame.f_lineno, spec)

    def replaces(self, earlier: _Site) -> bool:
        if (self.file, self.line) == (earlier.file, earlier.line):
            return True
        if self.execution is None and earlier.execution is None:
            # A notebook or prompt, where every cell has a file name of its own.
            return self.file != earlier.file
        same_module = _module_name(self.execution) == _module_name(earlier.execution)
        return same_module and self.execution is not earlier.execution

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _module_name(spec: object) -> object:
    return getattr(spec, "name", None)


registry = Registry(ENTRY_POINT_GROUP)
"""The registry that the decorator and pipelines use unless told otherwise."""
_GLOBAL = registry


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class RegisteredFunction(Protocol[P, R]):
    """A function with the record that the decorator leaves on it, for type checkers."""

    meta: MethodMeta
    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""


def method(
    pattern: Pattern, *, registry: Registry | None = None, **options: Unpack[MethodOptions]
) -> Callable[[Callable[P, R]], RegisteredFunction[P, R]]:
    """Register a function as a processing method; the function comes back unchanged.

    Parameters
    ----------
    pattern : {"projection", "sinogram", "all"}
        Which slices of an (angles, detector_y, detector_x) array it works on.
    calc_max_slices : callable, optional
        ``(slice_dim, other_dims, dtype, available_memory, **kwargs) -> (n, output dtype)``,
        or an estimator made by `from_ledger`. It is given the user's parameters over the
        function's defaults; one without ``**kwargs`` is given those that it names.
    halo : int, (int, int) or callable, optional
        Slices (before, after) that it needs around its block; a callable is given the
        parameters.
    output_dims : callable, optional
        ``(other_dims, **kwargs) -> (int, int)``, where the result has other dims. It may
        name ``slice_dim``.
    output_dtype : dtype-like or callable, optional
        The result's dtype, or ``(dtype, **kwargs) -> dtype``. By default what the
        estimator returns.
    output_angles : callable, optional
        ``(angles, **kwargs) -> angles`` of the result, where it has other projections than the
        data: float32 arrays, in radians.
    side_data : {"too", "alone"}, optional
        The mean of the flats, and that of the darks, go through the method as well, or alone:
        then the data pass through unchanged. Later methods are given these frames.
    check_values : callable, optional
        ``(**kwargs)``: raises ValueError for values that the method refuses whatever the data
        are, so that a pipeline is told of them before it runs. References are left out.
    side_results : iterable of str, optional
        The function returns these values (one, or a tuple in this order) and no array:
        the data go on unchanged, and later methods may refer to the values.
    sample_slices : callable, optional
        ``(n_slices, **kwargs) -> slice indices``: the only slices that the side results
        depend on; the function is called once, with these.
    combine : callable, optional
        Makes one result of the list of all blocks' results; required for side results
        without `sample_slices`.
    array_module : {"torch"}, optional
        The function takes its data, flats and darks as torch tensors on the device, and
        returns one; arrays of other methods become tensors, and back, without a copy.
        torch itself is imported when the method runs.
    records : path, optional
        File of records that come with the package, made by ``docs/scripts/ship_records.py``:
        without an estimator, the method can then be planned where there is no GPU.
    row_reach : int, (int, int) or callable, optional
        Rows (above, below) that a row of the result depends on, where they are not those of the
        halo: a sweep, which reads few rows, reads so many. A callable is given the parameters.
    host_only : bool
        Whether the method takes a block to the host, whatever the device, and brings its result
        back. Without an estimator, it can be planned for a GPU that is not there: its input and
        its result are all that it has on one.
    saved_by_default : bool
        Whether the result is saved where a pipeline does not say, as a reconstruction is.
    keeps_pixel_size : bool
        Whether pixels have the size that they had, where `output_dims` says that there are other
        numbers of them: frames are cut or joined, and not scaled. A reconstruction always does.
    order_matters : bool, optional
        Whether the result depends on the order in which projections are stored. By default it
        does for methods that take no angles and are given whole sinograms or a halo. A run on
        projections that are not stored by angle warns of such methods.
    takes : str or tuple of str, optional
        What its data may be: "counts", "transmission", "line integrals", "thickness" or
        "slices". A pipeline that gives it something else is warned about.
    gives : str, optional
        What its result is: one of these, or "same" as its data.
    registry : Registry, optional
        Where to register; the global registry by default.

    Returns
    -------
    callable
        A decorator.

    Raises
    ------
    RegistrationError
        If the signatures cannot work together; nothing is registered then.

    Examples
    --------
    >>> import numpy as np
    >>> from maxslices import Registry, method
    >>> def estimate(slice_dim, other_dims, dtype, available_memory, **kwargs):
    ...     per_slice = 2 * other_dims[0] * other_dims[1] * dtype.itemsize
    ...     return available_memory // per_slice, dtype
    >>> @method("projection", calc_max_slices=estimate, registry=Registry())
    ... def scale(data, *, strength: float = 1.0):
    ...     return data * strength
    >>> scale.meta.calc_max_slices(0, (10, 20), np.float32(), 14450)
    (9, dtype('float32'))
    """
    if callable(pattern):
        raise RegistrationError(
            f"{name_of(pattern)}: a method is decorated with its pattern, as in @method('all')"
        )

    def decorate(function: Callable[P, R]) -> RegisteredFunction[P, R]:
        target = _GLOBAL if registry is None else registry
        meta = target.add(describe(function, data_name="data", pattern=pattern, **options))
        # What cannot take attributes (a builtin) is registered all the same.
        with suppress(AttributeError, TypeError):
            function.meta = meta  # type: ignore[attr-defined]
        return cast("RegisteredFunction[P, R]", function)

    return decorate


def _pickled(meta: MethodMeta) -> tuple[Any, ...]:
    """Pickle a method of an installed package by its name: each process imports its own.

    By value, the functions of httomo's methods would have their packages imported just to be
    pickled, and with them CuPy, by a process that needs neither.
    """
    if registry.is_of_a_package(meta):
        return _of_name, (meta.full_name,)
    whole: tuple[Any, ...] = meta.__reduce_ex__(2)  # type: ignore[assignment]
    return whole


def _of_name(full_name: str) -> MethodMeta:
    try:
        return registry.get(full_name)
    except UnknownMethodError as error:
        raise ImportError(f"{error}: install the same packages of methods everywhere") from None


copyreg.pickle(MethodMeta, _pickled)
