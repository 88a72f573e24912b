"""Register methods: the decorator, and the registry in which pipelines look methods up.

A registry holds methods by ``module.name``. Packages provide methods through the entry point group
``maxslices.methods``: importing the module that it names registers them.
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

    Supports ``len``, ``in``, iteration over `MethodMeta` and ``registry[name]``.

    Parameters
    ----------
    entry_point_group : str, optional
        Entry point group of the packages to import on first use. By default none.
    """

    def __init__(self, entry_point_group: str | None = None) -> None:
        self._group = entry_point_group
        self._methods: dict[str, MethodMeta] = {}
        self._sites: dict[str, _Site] = {}
        self._left_out: list[str] = []
        self._by_module_only: set[str] = set()
        self._of_packages: set[str] = set()
        self._refused: dict[str, str] = {}
        # Two locks, because a package may register its methods in another thread while the thread
        # that imports it holds the first one.
        self._loading = threading.RLock()
        self._changing = threading.Lock()

    def register(
        self,
        function: Callable[..., Any],
        *,
        by_module_only: bool = False,
        **declaration: Unpack[Declaration],
    ) -> MethodMeta:
        """Register a function, also of another package. `method` documents the keywords.

        Parameters
        ----------
        function : callable
            The method. Its first parameter, of any name, takes the array. The function itself is
            not changed.
        by_module_only : bool
            Whether a plain name refers to another method of that name, if there is one.
        **declaration
            ``pattern`` and the options of `method`, ``name`` and ``module`` in pipelines (by
            default those of the function), and ``former_names``, which maps names of parameters
            in earlier releases to present names.

        Returns
        -------
        MethodMeta

        Raises
        ------
        RegistrationError
            If the declaration is invalid, or the name is already registered.
        """
        meta = self.add(describe(function, **declaration))
        if by_module_only:
            with self._changing:
                self._by_module_only.add(meta.full_name)
        return meta

    def refuse(self, full_name: str, reason: str) -> None:
        """Refuse a method of another framework. Looking it up raises the reason."""
        with self._changing:
            self._refused[full_name] = reason

    def add(self, meta: MethodMeta) -> MethodMeta:
        """Add a declaration made by `describe`.

        The same line of code may register a method again, and so may a reloaded module. The new
        declaration replaces the old one.
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

    def forget(self, module: str) -> None:
        """Remove the methods of a module, such as one that is edited and imported again."""
        with self._changing:
            for full_name in [n for n, meta in self._methods.items() if meta.module == module]:
                del self._methods[full_name], self._sites[full_name]

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
            If no package has it, naming similar ones, or if several packages have it.
        """
        if not isinstance(name, str):
            raise UnknownMethodError(f"the name of a method must be text, not {with_type(name)}")
        methods = self._known()
        wanted = f"{module}.{name}" if module else name
        if wanted in methods:
            return methods[wanted]
        if wanted in self._refused:
            raise UnknownMethodError(f"{wanted} is not supported: {self._refused[wanted]}")
        same_name = [meta for meta in methods.values() if meta.name == name]
        if not module:
            own = [meta for meta in same_name if meta.full_name not in self._by_module_only]
            same_name = own or same_name
        if not module and len(same_name) == 1:
            return same_name[0]
        if not module and same_name:
            full_names = " or ".join(sorted(meta.full_name for meta in same_name))
            raise UnknownMethodError(f"several methods are named {name!r}: write {full_names}")
        if same_name:
            modules = " or ".join(sorted(meta.module for meta in same_name))
            raise UnknownMethodError(
                f"the module {module!r} has no method {name!r}, but {modules} has"
            )
        of_module = sorted(
            meta.name for meta in methods.values() if module and meta.module == module
        )
        hint = nearest(name.rsplit(".", 1)[-1], {meta.name for meta in methods.values()})
        if of_module and not hint:
            hint = f"; {module} has: {', '.join(of_module)}"
        if not methods:
            hint = "; no package of methods is installed: pip install maxslices-methods"
        elif not hint:
            hint = "; `maxslices methods` lists the methods of installed packages"
            if module:  # perhaps the user's own file
                hint += ", and `maxslices new-methods` makes a package for your own"
        if self._left_out:
            hint += f" ({'; '.join(self._left_out)})"
        raise UnknownMethodError(f"unknown method {wanted!r}{hint}")

    def shortest_name(self, meta: MethodMeta) -> str:
        """Shortest unambiguous name of a method: its own, or ``module.name``."""
        try:
            method = self.get(meta.name)
        except UnknownMethodError:
            return meta.full_name
        return meta.name if method is meta else meta.full_name

    def load_entry_points(self) -> None:
        """Import the packages that provide methods, once. Looking up a method calls this.

        A package that cannot be imported is skipped with a warning. Other threads wait until all
        packages are imported.
        """
        with self._loading:
            if self._group is None:
                return
            # Cleared first, because a package may look up methods while it is imported.
            group, self._group = self._group, None
            try:
                self._left_out = self._import_packages(group)
            except BaseException:
                self._group = group
                raise
        for text in self._left_out:
            warnings.warn(text, stacklevel=2)

    def _import_packages(self, group: str) -> list[str]:
        """Import the packages of an entry point group; return warnings on those that failed."""
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
            except BaseException as error:  # noqa: BLE001 - an import may raise anything
                module = entry_point.value.partition(":")[0]
                package = entry_point.dist.name if entry_point.dist else entry_point.value
                what = f"the methods of {package} are missing"
                if added := [
                    meta.name for meta in self._methods.values() if meta.full_name not in before
                ]:
                    what = f"{package} may lack methods other than {', '.join(sorted(added))}"
                missing.append(
                    f"{what}, because importing {entry_point.value} failed: "
                    f"{what_raised(error)}{raised_at(error, module)}"
                )
        return missing

    def is_of_a_package(self, meta: MethodMeta) -> bool:
        """True for a method of an installed package, which every process can import."""
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
            # In a notebook or prompt every cell has its own file name.
            return self.file != earlier.file
        same_module = _module_name(self.execution) == _module_name(earlier.execution)
        return same_module and self.execution is not earlier.execution

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _module_name(spec: object) -> object:
    return getattr(spec, "name", None)


registry = Registry(ENTRY_POINT_GROUP)
"""The registry that the decorator and pipelines use by default."""
_GLOBAL = registry


P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class RegisteredFunction(Protocol[P, R]):
    """A function with its record in the attribute ``meta``, for type checkers."""

    meta: MethodMeta
    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""


def method(
    pattern: Pattern, *, registry: Registry | None = None, **options: Unpack[MethodOptions]
) -> Callable[[Callable[P, R]], RegisteredFunction[P, R]]:
    """Register a function as a processing method, and return the function itself.

    Its first parameter must be named ``data``. It takes a NumPy array on a CPU and a CuPy array on
    a GPU.

    Parameters
    ----------
    pattern : {"projection", "sinogram", "all"}
        Which slices of an (angles, detector_y, detector_x) array it works on.
    calc_max_slices : callable, optional
        ``(slice_dim, other_dims, dtype, available_memory, **kwargs) -> (n, output dtype)``,
        or an estimator made by `from_ledger`. It receives the user's parameters and the
        function's defaults, or only those that it names if it has no ``**kwargs``.
    halo : int, (int, int) or callable, optional
        Slices (before, after) needed around a block. A callable receives the parameters.
    output_dims : callable, optional
        ``(other_dims, **kwargs) -> (int, int)``, if the dims of the result differ. It may
        name ``slice_dim``.
    output_dtype : dtype-like or callable, optional
        Dtype of the result, or ``(dtype, **kwargs) -> dtype``. By default the estimator
        returns it.
    output_angles : callable, optional
        ``(angles, **kwargs) -> angles`` of the result, if its projections differ from those of
        the data. Both are float32 arrays in radians.
    side_data : {"too", "alone"}, optional
        Apply the method to the mean of the flats and to the mean of the darks as well ("too"), or
        to these only ("alone"). Later methods receive the resulting frames.
    check_values : callable, optional
        ``(**kwargs)``: raises ValueError for invalid values, before the pipeline runs.
        References are not passed.
    side_results : iterable of str, optional
        Names of the values that the function returns (one, or a tuple in this order) instead of
        an array. The data are unchanged, and later methods may refer to the values.
    sample_slices : callable, optional
        ``(n_slices, **kwargs) -> slice indices``: the only slices that the side results
        depend on. The function is called once, with these slices.
    combine : callable, optional
        Combines the list of all blocks' side results into one. Required for side results
        without `sample_slices`.
    array_module : {"torch"}, optional
        The function takes data, flats and darks as torch tensors on the device, and returns a
        tensor. Arrays are converted without a copy. torch is imported when the method runs.
    records : path, optional
        File of records shipped with the package, made by ``docs/scripts/ship_records.py``. With
        it, a method without an estimator can be planned without a GPU.
    row_reach : int, (int, int) or callable, optional
        Rows (above, below) that a row of the result depends on, if they differ from the halo. A
        sweep reads these rows. A callable receives the parameters.
    host_only : bool
        Whether the method computes on the host, with blocks that it copies from and to the
        device. Such a method needs only its input and result on a GPU, so it can be planned
        without a GPU and without an estimator.
    saved_by_default : bool
        Whether the result is saved if the pipeline has no ``save_result``, as reconstructions are.
    keeps_pixel_size : bool
        Whether the pixel size is unchanged although `output_dims` changes the number of pixels,
        because frames are cropped or joined. Reconstructions always keep it.
    order_matters : bool, optional
        Whether the result depends on the order in which projections are stored. By default true
        for methods that take no angles and receive whole sinograms or a halo. A run warns about
        such methods if projections are not stored by angle.
    takes : str or tuple of str, optional
        Quantities that its data may represent: "counts", "transmission", "line integrals",
        "thickness" or "slices". Pipelines with another quantity cause a warning.
    gives : str, optional
        Quantity of its result: one of these, or "same" as its data.
    registry : Registry, optional
        Where to register. By default the global registry.

    Returns
    -------
    callable
        The decorator.

    Raises
    ------
    RegistrationError
        If the declaration is invalid. Nothing is registered then.

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
            f"{name_of(pattern)}: the decorator needs a pattern, as in @method('all')"
        )

    def decorate(function: Callable[P, R]) -> RegisteredFunction[P, R]:
        target = _GLOBAL if registry is None else registry
        meta = target.add(describe(function, data_name="data", pattern=pattern, **options))
        # Builtins and other objects without attributes are registered too.
        with suppress(AttributeError, TypeError):
            function.meta = meta  # type: ignore[attr-defined]
        return cast("RegisteredFunction[P, R]", function)

    return decorate


def _pickled(meta: MethodMeta) -> tuple[Any, ...]:
    """Pickle a method of an installed package by its name.

    Pickling the functions of httomo's methods themselves would import their packages and CuPy in
    processes that need neither.
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
