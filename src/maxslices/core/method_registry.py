"""The methods that pipelines may name.

A registry holds methods by ``module.name``. Packages bring theirs through the entry
point group ``maxslices.methods``: importing the named module registers them.
"""

from __future__ import annotations

import copyreg
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import RegistrationError, UnknownMethodError
from .author_lines import raised_at, what_raised
from .declaration import describe
from .method_meta import MethodMeta, with_type
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
        self, function: Callable[..., Any], *, by_module_only: bool = False, **declaration: Any
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
            ``pattern`` and what else `method` takes; ``name`` and ``module`` say how
            pipelines name it, by default as it was defined.

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
        while frame.f_back is not None and frame.f_globals.get("__name__") in _OWN_MODULES:
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


_OWN_MODULES = ("maxslices.core.decorator", "maxslices.core.method_registry")


def _module_name(spec: object) -> object:
    return getattr(spec, "name", None)


registry = Registry(ENTRY_POINT_GROUP)
"""The registry that the decorator and pipelines use unless told otherwise."""


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
