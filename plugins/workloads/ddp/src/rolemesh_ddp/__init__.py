"""Data parallelism for any torch module, as a rolemesh role. Importing this imports no torch."""

from rolemesh_ddp.options import DDPOptions, StageOptions
from rolemesh_ddp.stage import StageWorkload
from rolemesh_ddp.workload import DDPWorkload

__all__ = ["DDPOptions", "DDPWorkload", "StageOptions", "StageWorkload"]
