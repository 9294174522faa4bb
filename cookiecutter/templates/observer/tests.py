"""Each metric becomes a line, once, also when the master dies in between."""

from pathlib import Path

from rolemesh import RunInfo, StepMetrics
from rolemesh_testing import ObserverConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(ObserverConformance):
    """The tests that every observer must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"file": "../metrics.csv"}, {"metrics": 3})


def started(folder: Path, **options: object) -> {{ cookiecutter.__class }}:
    chosen = {{ cookiecutter.__class }}.Options.model_validate(options)
    observer = {{ cookiecutter.__class }}(chosen)
    observer.job_started(RunInfo("job", str(folder), 9, {"a": 1}, ("a.run",)))
    return observer


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, 0.0, values, {}, {})


def test_each_metric_of_a_step_is_a_line(tmp_path: Path) -> None:
    started(tmp_path).steps_finished((line(0, loss=0.5, reward=1), line(1, loss=0.25)))
    assert (tmp_path / "metrics.csv").read_text() == "step,metric,value\n0,loss,0.5\n0,reward,1\n1,loss,0.25\n"


def test_only_the_chosen_metrics_are_written(tmp_path: Path) -> None:
    started(tmp_path, file="loss.csv", metrics=["loss", "never"]).steps_finished((line(0, loss=0.5, reward=1),))
    assert (tmp_path / "loss.csv").read_text() == "step,metric,value\n0,loss,0.5\n"


def test_after_a_restart_of_the_master_no_line_is_there_twice_or_torn(tmp_path: Path) -> None:
    started(tmp_path).steps_finished((line(0, loss=0.5), line(1, loss=0.25)))
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("2,lo")
    started(tmp_path).steps_finished((line(1, loss=0.25), line(2, loss=0.125)))
    assert (tmp_path / "metrics.csv").read_text() == "step,metric,value\n0,loss,0.5\n1,loss,0.25\n2,loss,0.125\n"
