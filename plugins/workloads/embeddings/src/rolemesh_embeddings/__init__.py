"""Tables of embeddings on parameter servers: the workload `embeddings`, and the client of workers.

Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rolemesh_embeddings.exports import Export
from rolemesh_embeddings.options import EmbeddingsOptions, TableOptions
from rolemesh_embeddings.servers import Servers
from rolemesh_embeddings.workload import Embeddings

if TYPE_CHECKING:
    from rolemesh_embeddings.client import EmbeddingClient

__all__ = ["EmbeddingClient", "Embeddings", "EmbeddingsOptions", "Export", "Servers", "TableOptions"]


def __getattr__(name: str) -> Any:
    if name == "EmbeddingClient":
        from rolemesh_embeddings.client import EmbeddingClient

        return EmbeddingClient
    raise AttributeError(name)
