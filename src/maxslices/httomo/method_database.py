"""The method database of httomo-backends: YAML files and supporting functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from ..errors import RegistrationError
from .source_stubs import namespace_of, source_file

Implementation = Literal["cpu", "gpu", "gpu_cupy"]
"""CPU, GPU with NumPy arrays, GPU with CuPy arrays."""
_DATABASE = "httomo_backends.methods_database"


@dataclass(frozen=True, slots=True)
class DatabaseEntry:
    """One method in the database."""

    module: str
    """Dotted module, as in a pipeline's ``module_path``."""
    name: str
    """Name of the function."""
    pattern: str
    """"projection", "sinogram" or "all"."""
    implementation: Implementation
    """Arrays of its input: NumPy ("cpu", and "gpu", which copies to the GPU itself) or CuPy."""
    output_dims_change: bool
    """True if the other two dims of its result differ from its input's."""
    padding: bool
    """True if it needs a halo."""
    save_result: bool = False
    """True if httomo saves its result by default."""

    @property
    def full_name(self) -> str:
        """``module.name``."""
        return f"{self.module}.{self.name}"

    def output_dims(self) -> Callable[..., tuple[int, int]] | None:
        """Function that computes the result's other two dims; None if they do not change."""
        return self._supporting("_calc_output_dim_") if self.output_dims_change else None

    def halo(self) -> Callable[..., tuple[int, int]] | int:
        """Function that computes the halo (slices before, after); 0 without a halo."""
        return self._supporting("_calc_padding_") if self.padding else 0

    def _supporting(self, prefix: str) -> Callable[..., tuple[int, int]]:
        """Supporting function of httomo-backends, whose module is read at the first call."""

        def call(*args: Any, **parameters: Any) -> tuple[int, int]:
            package, _, rest = self.module.partition(".")
            module = f"{_DATABASE}.packages.backends.{package}.supporting_funcs.{rest}"
            function = namespace_of(module).get(f"{prefix}{self.name}")
            if function is None:
                raise RegistrationError(f"httomo-backends has no {prefix}{self.name} in {module}")
            first, second = function(*args, **parameters)
            return int(first), int(second)

        return call


def read_entries(package: str) -> Iterator[DatabaseEntry]:
    """Iterate over the methods of a package, such as "httomolibgpu"."""
    query = source_file(f"{_DATABASE}.query")
    if query is None:
        return
    file = query.parent / "packages" / "backends" / package / f"{package}.yaml"
    if not file.is_file():
        return
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with file.open(encoding="utf-8") as opened:
        yield from _walk(yaml.load(opened, Loader=loader) or {}, (package,), file)


def _walk(node: Mapping[str, Any], path: tuple[str, ...], file: Path) -> Iterator[DatabaseEntry]:
    for key, value in node.items():
        if not isinstance(value, Mapping):
            continue
        if "pattern" not in value:
            yield from _walk(value, (*path, key), file)
            continue
        try:
            yield DatabaseEntry(
                module=".".join(path),
                name=key,
                pattern=value["pattern"],
                implementation=value["implementation"],
                output_dims_change=bool(value.get("output_dims_change", False)),
                padding=bool(value["padding"]),
                save_result=bool(value.get("save_result_default", False)),
            )
        except KeyError as error:
            name = ".".join((*path, key))
            raise RegistrationError(f"{file}: {name} lacks {error.args[0]}") from None
