"""FSDP2 training of Hugging Face causal language models as a rolemesh role. Importing this imports no torch."""

from rolemesh_fsdp.contract import LossContext, LossFunction, LossOutput
from rolemesh_fsdp.options import FSDPOptions
from rolemesh_fsdp.workload import FSDPWorkload

__all__ = ["FSDPOptions", "FSDPWorkload", "LossContext", "LossFunction", "LossOutput"]
