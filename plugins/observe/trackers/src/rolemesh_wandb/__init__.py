"""The observer `wandb`. Importing this package does not import the client of Weights & Biases."""

from rolemesh_wandb.observer import WandbObserver, WandbOptions

__all__ = ["WandbObserver", "WandbOptions"]
