"""The options of the workload `embeddings`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from rolemesh_embeddings.optimizers import Adagrad, Optimizer

__all__ = ["EmbeddingsOptions", "TableOptions"]


class TableOptions(BaseModel, extra="forbid", allow_inf_nan=False):
    """One table: 64-bit keys, each with a row of `dim` values."""

    dim: int = Field(ge=1, le=1 << 16, description="values of a row")
    optimizer: Optimizer = Field(default_factory=Adagrad, description="`use: sgd`, `adagrad`, `adam` or `ftrl`")
    begin: Literal["uniform", "normal", "zeros"] = Field(
        "uniform", description="distribution of a new row's values; they depend on seed, table and key only"
    )
    scale: float = Field(0.05, ge=0, description="bound of `uniform`, standard deviation of `normal`")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="type in which values are kept: bfloat16 is rounded up or down by chance, so that small changes "
        "add up; what the optimizer keeps is float32",
    )
    admit_after: int = Field(1, ge=1, description="the update with this number that has a key makes its row")
    evict_after: int | None = Field(
        None, ge=1, description="a row goes after this number of updates without it, at most 256 later; null: never"
    )
    dense_rows: int = Field(0, ge=0, description="each lookup returns the keys 0 to this number - 1, too")
    most_rows: int = Field(0, ge=0, description="maximum number of rows of a rank; 0: what twice its memory would hold")


class EmbeddingsOptions(BaseModel, extra="forbid", allow_inf_nan=False):
    """Options of the workload `embeddings`."""

    tables: dict[str, TableOptions] = Field(min_length=1, description="tables by name")
    folder: str = Field(
        "embeddings",
        min_length=1,
        description="where files with rows are, relative to the run's folder, shared by all nodes",
    )
    file_mb: float = Field(
        4.0, gt=0, description="changed rows, in 10^6 bytes, from which a file is written; more for large tables"
    )
    export: str = Field(
        "export", min_length=1, description="where exports go, relative to the run's folder, shared by all nodes"
    )
    deltas: int = Field(30, ge=0, description="largest number of deltas that follow a base")
    hottest: int = Field(10, ge=0, description="number of the hottest keys that metrics show every 100 updates")
