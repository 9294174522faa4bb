"""Observers whose extra is not installed name it before the job starts."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from rolemesh.errors import PluginError

CLIENTS = {
    "rolemesh_mlflow:MlflowObserver": ("mlflow", "mlflow"),
    "rolemesh_otel:OtelObserver": ("opentelemetry.proto", "otel"),
    "rolemesh_plot:PlotObserver": ("matplotlib", "plot"),
    "rolemesh_prometheus:PrometheusObserver": ("prometheus_client", "prometheus"),
    "rolemesh_tensorboard:TensorBoardObserver": ("tensorboard", "tensorboard"),
    "rolemesh_trackio:TrackioObserver": ("trackio", "trackio"),
    "rolemesh_wandb:WandbObserver": ("wandb", "wandb"),
}


@pytest.mark.parametrize("target", CLIENTS)
def test_an_observer_without_its_client_names_the_extra(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra = CLIENTS[target]
    package, _, name = target.partition(":")
    observer = getattr(import_module(package), name)
    for missing in (module, module.partition(".")[0]):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(PluginError) as caught:
        observer(observer.Options.model_construct())
    assert caught.value.remedy == f"pip install 'rolemesh-trackers[{extra}]'"
