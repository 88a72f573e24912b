"""The methods of httomolibgpu and httomolib, under their names in httomo's pipelines.

Pattern, halo and dims of the result are read from the database in httomo-backends, signatures from
the source of the packages. There are no estimators, so their memory is measured; that of centre
finding is declared, as a block only gives a part of itself there. The packages are imported when a
method is first called. Without httomo-backends nothing is registered.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..core.method_registry import registry

if find_spec("httomo_backends") is not None:
    from .register_methods import register_all

    register_all(registry)
