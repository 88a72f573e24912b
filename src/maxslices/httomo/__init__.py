"""The methods of httomolibgpu and httomolib, under their names in httomo's pipelines.

Pattern, halo and dims of the result are read from the database in httomo-backends, and signatures
from the source of the packages. The database has no estimators, so memory is measured. Only the
memory of centre finding is declared, because it takes one sinogram or two projections of a block.
The packages are imported at the first call. Without httomo-backends nothing is registered.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..core.method_registry import registry

if find_spec("httomo_backends") is not None:
    from .register_methods import register_all

    register_all(registry)
