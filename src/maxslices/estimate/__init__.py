"""Memory models of methods, from four sources: all measuring happens here, before planning.

`ModelResolver` decides which source answers a `ModelRequest`: the estimator that the author
declared (`declared`), an earlier measurement (`recorded`), a replay of a torch method, or
measurements with a few slices (`probe`).
"""

from .model_request import ModelRequest, ResolvedModel
from .model_resolver import ModelResolver, declared_model
from .recorded import Records

__all__ = ["ResolvedModel", "ModelResolver", "ModelRequest", "Records", "declared_model"]
