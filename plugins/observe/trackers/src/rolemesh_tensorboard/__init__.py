"""The observer `tensorboard`. Importing this package does not import TensorBoard."""

from rolemesh_tensorboard.observer import TensorBoardObserver, TensorBoardOptions

__all__ = ["TensorBoardObserver", "TensorBoardOptions"]
