"""The observer `mlflow`. Importing this package does not import MLflow."""

from rolemesh_mlflow.observer import MlflowObserver, MlflowOptions

__all__ = ["MlflowObserver", "MlflowOptions"]
