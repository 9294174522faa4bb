"""Shared parts of trainers: losses, packing, schedules, batching, state. No entry points.

Importing this package does not import torch.
"""

from rolemesh_training.contract import LossContext, LossFunction, LossOutput, Sampler
from rolemesh_training.options import HuggingFaceOptions, TrainerOptions

__all__ = ["HuggingFaceOptions", "LossContext", "LossFunction", "LossOutput", "Sampler", "TrainerOptions"]
