"""FSDP2 training of Hugging Face models as a rolemesh role. Importing this imports no torch."""

from rolemesh_fsdp.options import FSDPOptions
from rolemesh_fsdp.workload import FSDPWorkload

__all__ = ["FSDPOptions", "FSDPWorkload"]
