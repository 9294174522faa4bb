"""What trainers share: losses, packing, schedules, batching, state. No entry points.

Importing it imports no torch.
"""

from rolemesh_training.contract import LossContext, LossFunction, LossOutput, Sampler
from rolemesh_training.options import HuggingFaceOptions, TrainerOptions

__all__ = ["HuggingFaceOptions", "LossContext", "LossFunction", "LossOutput", "Sampler", "TrainerOptions"]
