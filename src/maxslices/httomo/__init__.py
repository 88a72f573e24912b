"""The methods of httomolibgpu and httomolib, by the names that httomo's pipelines give them.

What they need to be planned (pattern, halo, dims of the result) is read from the database
in httomo-backends, signatures from their source; no estimator, so that their memory is
measured. Nothing of theirs is imported before a method is called. With httomo-backends
not installed nothing is registered, and nothing of this is loaded.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..registry.method_registry import registry

if find_spec("httomo_backends") is not None:
    from .register import register_all

    register_all(registry)
