"""DeepSpeed ZeRO training of Hugging Face models as a rolemesh role. Importing this imports no torch."""

from rolemesh_deepspeed.options import DeepSpeedOptions
from rolemesh_deepspeed.workload import DeepSpeedWorkload

__all__ = ["DeepSpeedOptions", "DeepSpeedWorkload"]
