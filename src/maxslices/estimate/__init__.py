"""Memory models of methods, from four sources: all measuring happens here, before planning.

`Chooser` decides which source answers a `ModelRequest`: what the author declared (`declared`), what
was measured before (`recorded`), a replay of a torch method, or measurements with a few slices
(`probed`).
"""

from .chooser import Chooser
from .declared import declared_model
from .model_request import Choice, ModelRequest
from .recorded import Records

__all__ = ["Choice", "Chooser", "ModelRequest", "Records", "declared_model"]
