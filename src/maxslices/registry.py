"""The methods that pipelines may name.

A registry holds methods by ``module.name``. Packages bring theirs through the entry
point group ``maxslices.methods``: importing the named module registers them.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .errors import RegistrationError, UnknownMethodError
from .method import MethodMeta, describe
from .parameters import nearest

ENTRY_POINT_GROUP = "maxslices.methods"


class Registry:
    """Methods by full name (``module.name``), and by plain name where that is unique.

    Supports ``len``, ``in``, iteration over records and ``registry[name]``.
    """

    def __init__(self) -> None:
        self._methods: dict[str, MethodMeta] = {}
        self._entry_points_loaded = True

    def register(self, function: Callable[..., Any], **declaration: Any) -> MethodMeta:
        """Register a function that one may not own; see `method` for the keywords.

        Parameters
        ----------
        function : callable
            The method. It is not changed.
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
        meta = describe(function, **declaration)
        existing = self._methods.get(meta.full_name)
        if existing is not None and _place(existing) != _place(meta):
            raise RegistrationError(
                f"{meta.full_name} is registered twice: {_place(existing)} and {_place(meta)}"
            )
        self._methods[meta.full_name] = meta
        return meta

    def get(self, name: str, module: str | None = None) -> MethodMeta:
        """Return the method of this name.

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
        self.load_entry_points()
        wanted = f"{module}.{name}" if module else name
        if wanted in self._methods:
            return self._methods[wanted]
        same_name = [meta for meta in self._methods.values() if meta.name == name]
        if module is None and len(same_name) == 1:
            return same_name[0]
        if module is None and same_name:
            full_names = " or ".join(sorted(meta.full_name for meta in same_name))
            raise UnknownMethodError(f"several methods are named {name!r}: write {full_names}")
        if same_name:
            others = " or ".join(sorted(meta.module for meta in same_name))
            raise UnknownMethodError(
                f"no method {name!r} in module {module!r}; there is one in {others}"
            )
        names = {meta.name for meta in self._methods.values()}
        hint = nearest(name.rsplit(".", 1)[-1], names)
        if not names:
            hint = "; no package of methods is installed"
        elif not hint:
            hint = "; `maxslices methods` lists all"
        raise UnknownMethodError(f"unknown method {name!r}{hint}")

    def load_entry_points(self) -> None:
        """Import the packages that bring methods; done once, and by itself on first use.

        A package that fails to import is skipped with a warning that names it.
        """
        if self._entry_points_loaded:
            return
        self._entry_points_loaded = True
        for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            try:
                entry_point.load()
            except Exception as error:
                package = entry_point.dist.name if entry_point.dist else entry_point.value
                warnings.warn(
                    f"the methods of {package} are left out, because importing "
                    f"{entry_point.value} failed: {type(error).__name__}: {error}",
                    stacklevel=2,
                )

    def __getitem__(self, name: str) -> MethodMeta:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self.get(name) is not None
        except UnknownMethodError:
            return False

    def __iter__(self) -> Iterator[MethodMeta]:
        self.load_entry_points()
        return iter(sorted(self._methods.values(), key=lambda meta: (meta.name, meta.module)))

    def __len__(self) -> int:
        self.load_entry_points()
        return len(self._methods)


def _place(meta: MethodMeta) -> str:
    """Return where a method is defined, as ``file:line``."""
    code = getattr(meta.function, "__code__", None)
    if code is None:
        return f"{meta.module} ({id(meta.function):#x})"
    return f"{code.co_filename}:{code.co_firstlineno}"


registry = Registry()
"""The registry that the decorator and pipelines use unless told otherwise."""
registry._entry_points_loaded = False
