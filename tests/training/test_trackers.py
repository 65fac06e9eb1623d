"""Metrics in MLflow or Weights & Biases: as in the folder, in one run however often it is resumed."""

import sys
from types import ModuleType

import pytest

from gpldla.training.metrics import read_metrics
from gpldla.training.run import train
from gpldla.utils.errors import UserError
from tests.helpers import tiny_protocol, tiny_recipe


class StandIn:
    """A logger of Lightning that keeps what it is given, by the id of its run."""

    runs: dict = {}

    def __init__(self, *names, run_id=None, id=None, **where):
        self.run_id = run_id or id or f"run {len(self.runs) + 1}"
        self.experiment = self
        self.id = self.run_id
        self.run = self.runs.setdefault(self.run_id, {"settings": {}, "metrics": [], "ended": []})

    def log_hyperparams(self, settings):
        self.run["settings"] = settings

    def log_metrics(self, metrics, step):
        self.run["metrics"].append((step, metrics))

    def finalize(self, status):
        self.run["ended"].append(status)


@pytest.fixture
def runs(monkeypatch):
    module = ModuleType("pytorch_lightning")
    module.loggers = ModuleType("pytorch_lightning.loggers")
    module.loggers.MLFlowLogger = module.loggers.WandbLogger = StandIn
    monkeypatch.setitem(sys.modules, "pytorch_lightning", module)
    monkeypatch.setitem(sys.modules, "pytorch_lightning.loggers", module.loggers)
    monkeypatch.setattr(StandIn, "runs", {})
    return StandIn.runs


def run(folder, **settings):
    recipe = tiny_recipe(**settings)
    return train(recipe, folder, accelerator="cpu", protocol=tiny_protocol(), show_progress=False)


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_gets_the_metrics_and_settings(runs, tmp_path, tracker):
    run(tmp_path / "run", tracker=tracker, ways=2)
    [[_, one]] = runs.items()
    recorded = read_metrics(tmp_path / "run")
    assert one["metrics"] == [(line.pop("episode"), line) for line in recorded]
    assert one["settings"]["ways"] == 2
    assert one["ended"] == ["success"]


def test_a_resumed_training_goes_on_in_its_run(runs, tmp_path, monkeypatch):
    from gpldla.training import run as training

    calls = []

    def stops_at_the_fourth(*args):  # as Ctrl-C does
        calls.append(args)
        return len(calls) >= 4

    with monkeypatch.context() as patch:
        patch.setattr(training, "stop_signals", lambda: _Entered(stops_at_the_fourth))
        assert not run(tmp_path / "run", tracker="mlflow").finished
    assert run(tmp_path / "run", tracker="mlflow").finished
    [one] = runs.values()
    assert one["ended"] == ["success", "success"]
    assert {step for step, _ in one["metrics"]} == {2, 4, 6, 8, 10, 12}


class _Entered:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *error):
        return None


def test_a_missing_package_is_named_before_anything_is_trained(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(
        UserError, match=r"tracker = 'wandb' needs a package .*pip install 'gpldla\[trackers\]'"
    ):
        run(tmp_path / "run", tracker="wandb")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_mlflow_itself(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("pytorch_lightning")
    server = f"sqlite:///{tmp_path / 'server.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    run(tmp_path / "run", tracker="mlflow")
    client = mlflow.MlflowClient(server)
    [found] = client.search_runs([each.experiment_id for each in client.search_experiments()])
    accuracy = [line["validation_accuracy"] for line in read_metrics(tmp_path / "run") if len(line) == 2]
    assert found.data.metrics["validation_accuracy"] == pytest.approx(accuracy[-1])
    assert found.info.status == "FINISHED"
