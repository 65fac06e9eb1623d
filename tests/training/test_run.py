import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from lightning_fabric import Fabric
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel
from gpldla.evaluation import PartEvaluator
from gpldla.heads import Head, Posterior, register_head
from gpldla.heads import base as heads_base
from gpldla.training import checkpoint, validation
from gpldla.training import run as training
from gpldla.training.metrics import METRICS
from gpldla.training.run import train
from gpldla.utils.errors import UserError
from gpldla.utils.files import exclusive_lock
from tests.helpers import tiny_protocol, tiny_recipe, tiny_set


@pytest.fixture(autouse=True, scope="module")
def tiny_data():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "load_protocol", tiny_protocol)
        yield


def run(recipe, folder):
    return train(recipe, folder, accelerator="cpu", show_progress=False)


def metrics(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(tiny_recipe(), folder)


def test_leaves_a_model_that_loads(finished):
    folder, result = finished
    assert result.finished
    assert result.episodes == 12
    loaded = FewShotModel.from_pretrained(folder)
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert loaded.temperature == result.model.temperature != 1.0
    assert loaded.info["recipe"]["ways"] == 3


def test_the_prior_keeps_its_digits(finished):
    folder, result = finished
    assert result.model.head.log_beta.dtype == torch.float64
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.get_tensor("head.log_beta").dtype == torch.float64


def test_metrics_are_recorded(finished):
    folder, _ = finished
    rows = metrics(folder)
    assert [row["episode"] for row in rows if "loss" in row] == [2, 4, 6, 8, 10, 12]
    assert [row["episode"] for row in rows if "validation_accuracy" in row] == [4, 8, 12]
    assert {"loss", "beta", "beta_b", "learning_rate"} <= rows[0].keys()
    assert any("accuracy" in row for row in rows)
    assert list((folder / "tensorboard").glob("events*"))


def test_the_best_weights_are_kept(finished):
    folder, result = finished
    best = max(row["validation_accuracy"] for row in metrics(folder) if "validation_accuracy" in row)
    assert result.model.info["validation_accuracy"] == best


def test_of_equally_good_weights_the_first_are_kept(tmp_path, monkeypatch):
    """Those that were trained longer are not better, and their number depends on when validation comes."""
    kept = {}
    for name, accuracies in {"equal": [50, 50, 50], "worse": [50, 40, 30], "better": [50, 60, 70]}.items():
        coming = iter(accuracies)
        monkeypatch.setattr(training, "accuracy_percent", lambda *_, c=coming: torch.tensor([float(next(c))]))
        kept[name] = next(run(tiny_recipe(ema=0.0), tmp_path / name).model.backbone.parameters())
    assert torch.equal(kept["equal"], kept["worse"])
    assert not torch.equal(kept["equal"], kept["better"])


def test_the_temperature_is_not_fitted_on_the_tasks_that_chose_the_weights(monkeypatch):
    fitted_on = []
    monkeypatch.setattr(validation, "fit_temperature", lambda *given: fitted_on.append(given) or 1.0)
    recipe = tiny_recipe()
    assert recipe.validation.episodes == recipe.validation.temperature_episodes
    measured = validation.Validation(recipe, tiny_protocol().part("validation"), Fabric(accelerator="cpu"))
    model = FewShotModel("conv4s")
    measured.temperature(model)
    chosen_on = measured.predictions(model).flat
    assert fitted_on[0][0].shape == chosen_on[0].shape
    assert not torch.equal(fitted_on[0][0], chosen_on[0])


def test_the_kept_model_sees_images_as_validation_did(tmp_path):
    model = run(tiny_recipe(zoom=1.4, mirrored=True), tmp_path / "zoom").model
    assert (model.preprocessing.zoom, model.preprocessing.mirrored) == (1.4, True)
    assert FewShotModel.from_pretrained(tmp_path / "zoom").preprocessing == model.preprocessing


class TestStartingWithAnotherModel:
    @pytest.fixture
    def other(self, tmp_path):
        torch.manual_seed(7)
        FewShotModel("conv4s", "protonet").save(tmp_path / "other")
        return tmp_path / "other"

    def test_the_network_is_the_other_s_and_the_head_is_new(self, other, tmp_path):
        # Steps this small leave every weight where it was; averaged weights begin there, too.
        slow = {"learning_rate": 1e-12, "head_learning_rate": 1e-12, "ema": 0.9}
        model = run(tiny_recipe(start=str(other), **slow), tmp_path / "run").model
        for name, weights in FewShotModel.from_pretrained(other).backbone.named_parameters():
            torch.testing.assert_close(model.backbone.get_parameter(name), weights, msg=name)
        assert model.head.scalars() == pytest.approx(FewShotModel("conv4s").head.scalars())

    def test_a_run_goes_on_where_the_other_is_gone(self, other, tmp_path, monkeypatch):
        recipe = tiny_recipe(start=str(other))
        whole = run(recipe, tmp_path / "whole").model.state_dict()
        monkeypatch.setattr(training, "stop_signals", lambda: StopAfter(5))
        assert not run(recipe, tmp_path / "run").finished
        monkeypatch.undo()
        shutil.rmtree(other)
        resumed = run(recipe, tmp_path / "run").model.state_dict()
        assert all(torch.equal(resumed[name], whole[name]) for name in whole)

    def test_another_network_is_refused(self, other, tmp_path):
        with pytest.raises(UserError, match=r"has the network conv4s, not conv4snp; choose a model"):
            run(tiny_recipe(start=str(other), backbone="conv4snp"), tmp_path / "run")

    def test_a_folder_without_a_model_is_named(self, tmp_path):
        with pytest.raises(UserError, match="nowhere is not a model"):
            run(tiny_recipe(start=str(tmp_path / "nowhere")), tmp_path / "run")


def test_mirror_images_count_in_validation_alone(finished, tmp_path):
    usual, result = finished
    model = run(tiny_recipe(mirrored=True), tmp_path).model
    losses, usual_losses = ([row["loss"] for row in metrics(f) if "loss" in row] for f in (tmp_path, usual))
    assert losses == usual_losses
    assert model.temperature != result.model.temperature  # which validation tasks set


def test_nothing_saved_is_pickled(finished):
    folder, _ = finished
    saved = [p for p in folder.rglob("*") if p.is_file() and "tensorboard" not in p.parts]
    assert {p.suffix for p in saved} == {".safetensors", ".json", ".jsonl"}
    with safe_open(folder / checkpoint.FILE, "pt") as file:
        names = set(file.keys())
    for group in ("model/", "averaged/", "optimizer/", "best/"):
        assert any(name.startswith(group) for name in names)


def test_a_finished_run_stays_as_it_is(finished):
    folder, result = finished
    before = (folder / "model.safetensors").read_bytes()
    again = run(tiny_recipe(), folder)
    assert again.finished
    assert again.episodes == result.episodes
    assert (folder / "model.safetensors").read_bytes() == before


def test_other_settings_in_the_same_folder_are_refused(finished):
    folder, _ = finished
    with pytest.raises(UserError, match=r"other settings: learning_rate \(0.002, now 0.01\)"):
        run(tiny_recipe(learning_rate=0.01), folder)


def test_a_folder_with_a_foreign_model_is_refused(tmp_path):
    FewShotModel("conv4s").save(tmp_path)
    with pytest.raises(UserError, match="already holds a model"):
        run(tiny_recipe(), tmp_path)


@pytest.mark.parametrize("settings", [{}, {"ema": 0.0, "episodes_per_update": 2, "augment": "characters"}])
@pytest.mark.parametrize("stop_after", [3, 4, 5])
def test_resuming_ends_with_the_same_numbers(tmp_path, monkeypatch, settings, stop_after):
    """Stop in the middle of everything: between logs, at a checkpoint, between validations."""
    recipe = tiny_recipe(**settings)
    uninterrupted = run(recipe, tmp_path / "whole")

    monkeypatch.setattr(training, "stop_signals", lambda: StopAfter(stop_after))
    part = run(recipe, tmp_path / "parts")
    assert not part.finished
    assert part.episodes < recipe.episodes
    monkeypatch.undo()
    resumed = run(recipe, tmp_path / "parts")

    assert resumed.finished
    for name, tensor in uninterrupted.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
    assert resumed.model.temperature == uninterrupted.model.temperature
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


def test_averaged_weights_of_an_older_version_resume(tmp_path, monkeypatch, finished):
    """They had other names."""
    monkeypatch.setattr(training, "stop_signals", lambda: StopAfter(5))
    run(tiny_recipe(), tmp_path)
    monkeypatch.undo()
    state = checkpoint.TrainingState.read(tmp_path)
    averaged = {f"module.{name}": tensor for name, tensor in state.tensors["averaged"].items()}
    state.tensors["averaged"] = averaged | {"n_averaged": torch.tensor(5)}
    state.write(tmp_path)
    monkeypatch.setattr(training, "load_protocol", tiny_protocol)
    resumed = run(tiny_recipe(), tmp_path)
    for name, tensor in finished[1].model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("head", "backbone"), [("gpldla", "conv4s"), ("relationnet", "conv4snp"), ("maml", "conv4s")]
)
def test_float64_serves_heads_of_every_kind(tmp_path, head, backbone):
    result = run(tiny_recipe(head=head, backbone=backbone, precision="64-true", episodes=4), tmp_path)
    assert result.finished
    assert {p.dtype for p in result.model.parameters()} == {torch.float64}
    loaded = FewShotModel.from_pretrained(tmp_path)
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    classifier = loaded.adapt(list(tiny_set().images[:4, 0]), [0, 1, 0, 1])
    classifier.save(tmp_path / "classifier.safetensors")
    again = FewShotClassifier.load(tmp_path / "classifier.safetensors")
    pictures = list(tiny_set().images[4:9, 0])
    assert (again.predict_proba(pictures) == classifier.predict_proba(pictures)).all()


def test_what_a_kill_left_of_a_state_goes(tmp_path):
    (tmp_path / f".{checkpoint.FILE}-0123abcd").write_bytes(b"half of one")
    (tmp_path / ".mine").write_text("not ours")
    run(tiny_recipe(), tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == [".mine"]


def test_how_often_is_reported_changes_no_weight(tmp_path):
    seldom, often = (
        run(
            tiny_recipe(head="relationnet", backbone="conv4snp", log_every=every, validation__every=0),
            tmp_path / f"{every}",
        )
        for every in (12, 1)
    )
    for name, tensor in seldom.model.state_dict().items():
        assert torch.equal(often.model.state_dict()[name], tensor), name


class TestWhatValidationCannotDo:
    @pytest.fixture
    def nothing_trained(self, monkeypatch):
        monkeypatch.setattr(training.EpisodeStage, "update", None)

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"validation.ways": 5}, "For .validation. .*ways.*: .* ask for fewer ways"),
            ({"validation.queries": 9}, "For .validation. .*queries.*: .* ask for fewer"),
            ({"head.priors": [0.2, 0.8]}, "priors"),
            ({"head": "maml", "head.ways": 2}, "ways"),
        ],
    )
    def test_is_said_before_the_training(self, tmp_path, nothing_trained, settings, sentence):
        with pytest.raises(UserError, match=sentence):
            run(tiny_recipe(**settings), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_predictions_that_are_no_numbers_are_no_accuracy(self, tmp_path, monkeypatch):
        plain = PartEvaluator.predict

        def spoilt(self, *args, **options):
            predictions = plain(self, *args, **options)
            predictions.log_prob[0, 0] = torch.nan
            return predictions

        monkeypatch.setattr(PartEvaluator, "predict", spoilt)
        with pytest.raises(UserError, match="validation classes are NaN after 4 episodes; use other"):
            run(tiny_recipe(), tmp_path)


def test_a_second_training_in_a_folder_is_refused_while_the_first_goes_on(tmp_path):
    with (
        exclusive_lock(tmp_path / "run", "training"),
        pytest.raises(UserError, match=r"Another training is running in .*run; choose another folder"),
    ):
        run(tiny_recipe(), tmp_path / "run")
    assert run(tiny_recipe(), tmp_path / "run").finished


def files_of(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_a_training_that_loads_while_another_ends_does_not_overwrite_it(tmp_path, monkeypatch, resumed):
    folder, recipe = tmp_path / "run", tiny_recipe()
    if resumed:
        monkeypatch.setattr(training, "stop_signals", lambda: StopAfter(5))
        assert not run(recipe, folder).finished
        monkeypatch.undo()
    left = {}

    def load_slowly(*args, **options):
        monkeypatch.setattr(training, "load_protocol", tiny_protocol)
        assert run(recipe, folder).finished
        left.update(files_of(folder))
        return tiny_protocol()

    monkeypatch.setattr(training, "load_protocol", load_slowly)
    with pytest.raises(UserError, match=r"Another training has written .* meanwhile; run the command again"):
        run(recipe, folder)
    assert files_of(folder) == left


class StopAfter:
    """Stands in for the signal handler: asks to stop once so many updates were done."""

    def __init__(self, updates):
        self.left = updates

    def __enter__(self):
        return self.stopped

    def __exit__(self, *error):
        return False

    def stopped(self):
        self.left -= 1  # the loop asks once an update
        return self.left < 0.5


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path):
    """SIGKILL loses what came after the last checkpoint and nothing else."""
    recipe = tiny_recipe(episodes=40, validation__every=10, checkpoint_every=10)
    code = (
        "from tests.helpers import tiny_protocol, tiny_recipe; from gpldla.training import run as training;"
        "training.load_protocol = tiny_protocol;"
        "training.train(tiny_recipe(episodes=40, validation__every=10, checkpoint_every=10),"
        f" {str(tmp_path / 'killed')!r}, accelerator='cpu', show_progress=False)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    state = tmp_path / "killed" / checkpoint.FILE
    deadline = time.monotonic() + 60
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert checkpoint.TrainingState.read(state.parent).values["done"] % 10 == 0
    resumed = run(recipe, tmp_path / "killed")
    whole = run(recipe, tmp_path / "whole")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    command = [
        sys.executable,
        "-m",
        "gpldla",
        "train",
        "demo",
        "-o",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    log = tmp_path / "run" / METRICS
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from here" in errors
    assert "Traceback" not in errors
    assert checkpoint.TrainingState.read(tmp_path / "run").values["done"] > 0


def test_a_half_written_state_is_named(tmp_path):
    (tmp_path / checkpoint.FILE).write_bytes(b"not tensors")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        run(tiny_recipe(), tmp_path)


def test_training_learns(tmp_path):
    """A few episodes are enough to beat the untrained network by far."""
    run(tiny_recipe(episodes=40, ways=4, queries=5, log_every=10, validation__every=0, ema=0.0), tmp_path)
    losses = [row["loss"] for row in metrics(tmp_path) if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]


# ---- heads that later methods need: their own loss, feature maps, the backbone itself


@pytest.fixture
def passing_heads():
    """Register heads for one test."""
    before = dict(heads_base._HEADS)
    yield
    heads_base._HEADS.clear()
    heads_base._HEADS.update(before)


class MapsHead(Head):
    """Nearest mean of feature maps, with a loss of its own."""

    consumes = "maps"

    def __init__(self, feature_dim=None):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def adapt(self, support, labels, n_way, *, backbone=None):
        assert support.shape[-3:] == (64, 1, 1)
        assert backbone is None
        member = torch.nn.functional.one_hot(labels, n_way).float()
        means = member.mT @ support.flatten(-3) / member.sum(-2).unsqueeze(-1)
        return Answer(lambda query: -self.scale * torch.cdist(query.flatten(-3), means))

    def loss(self, support, labels, query, query_labels, n_way, *, backbone=None):
        log_prob = self.adapt(support, labels, n_way).log_prob(query)
        return 2 * torch.nn.functional.nll_loss(log_prob, query_labels)


class GradientHead(Head):
    """A gradient step on a linear layer and the last block of the network, as MAML takes it."""

    consumes = "backbone"

    def __init__(self, feature_dim=None):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(0.5))

    def adapt(self, support, labels, n_way, *, backbone=None):
        assert support.shape[-3:] == (1, 28, 28)
        episodes = support.flatten(0, -5) if support.ndim > 4 else support.unsqueeze(0)
        adapted = [
            self._adapt_one(s, y, n_way, backbone) for s, y in zip(episodes, labels.view(len(episodes), -1))
        ]

        def scores(query):
            queries = query.flatten(0, -5) if query.ndim > 4 else query.unsqueeze(0)
            answers = torch.stack([self._scores(x, backbone, *a) for x, a in zip(queries, adapted)])
            return answers if query.ndim > 4 else answers[0]

        return Answer(scores)

    def _adapt_one(self, support, labels, n_way, backbone):
        with torch.enable_grad():  # evaluation calls this without gradients
            weights = {n: p for n, p in backbone.named_parameters() if n.startswith("blocks.3")}
            layer = torch.zeros(backbone.feature_dim, n_way, requires_grad=True)
            loss = torch.nn.functional.cross_entropy(self._scores(support, backbone, weights, layer), labels)
            gradients = torch.autograd.grad(loss, [layer, *weights.values()], create_graph=self.training)
            steps = [p - self.rate * g for p, g in zip([layer, *weights.values()], gradients)]
        return dict(zip(weights, steps[1:])), steps[0]

    def _scores(self, images, backbone, weights, layer):
        return torch.func.functional_call(backbone, weights, (images,)) @ layer


class Answer(Posterior):
    def __init__(self, scores):
        self.scores = scores

    def log_prob(self, query):
        return self.scores(query).log_softmax(-1)


@pytest.mark.parametrize("head", [MapsHead, GradientHead])
def test_training_evaluation_and_adaptation_serve_heads_of_every_kind(tmp_path, passing_heads, head):
    register_head("test-kind")(head)
    result = run(tiny_recipe(head="test-kind", ema=0.0, episodes=30, learning_rate=0.01), tmp_path)
    assert result.model.info["validation_accuracy"] > 60  # chance is 33 %
    model = FewShotModel.from_pretrained(tmp_path)
    pictures = [image[0] for image in tiny_set((4, 4), seed=5).images]
    probabilities = model.adapt(pictures, [0] * 4 + [1] * 4).predict_proba(pictures)
    assert probabilities.sum(1) == pytest.approx(1, abs=1e-5)
    assert (probabilities.argmax(1) == [0] * 4 + [1] * 4).mean() > 0.6


def test_the_network_decays_and_the_prior_does_not(tmp_path):
    """One step takes rate × decay of every weight away, beside what the gradient does."""
    settings = {"episodes": 1, "ema": 0.0, "learning_rate": 0.01, "schedule": "constant"}
    plain, decayed = (
        run(tiny_recipe(weight_decay=decay, **settings), tmp_path / str(decay)).model.state_dict()
        for decay in (0.0, 0.5)
    )
    torch.manual_seed(tiny_recipe().seed)
    start = FewShotModel(tiny_recipe().backbone, tiny_recipe().head.name)
    for name, weight in start.backbone.named_parameters():
        name = f"backbone.{name}"
        torch.testing.assert_close(plain[name] - decayed[name], 0.005 * weight.detach(), rtol=1e-3, atol=1e-7)
    assert torch.equal(plain["head.log_beta"], decayed["head.log_beta"])


def test_a_negative_decay_is_refused():
    with pytest.raises(UserError, match=r"weight_decay = -1\.0 must be 0 or more"):
        tiny_recipe(weight_decay=-1.0)


class TestDamagedFolders:
    @pytest.fixture
    def half(self, tmp_path, finished):
        """A training that seems to have stopped after 8 of its 12 episodes."""
        shutil.copytree(finished[0], tmp_path / "run")
        self.change(tmp_path / "run", lambda tensors, numbers: numbers.update(done=8))
        return tmp_path / "run"

    @staticmethod
    def change(folder, changed):
        state = checkpoint.TrainingState.read(folder)
        changed(state.tensors, state.values)
        state.write(folder)

    def test_half_a_line_of_metrics_does_no_harm(self, half):
        with (half / METRICS).open("ab") as file:
            file.write(b'\0\0\0\0\n{"episode": 9, "lo\n[]\n{"episode": 5')
        assert run(tiny_recipe(), half).finished
        assert [row["episode"] for row in metrics(half) if "loss" in row] == [2, 4, 6, 8, 10, 12]

    @pytest.mark.parametrize(
        "changed",
        [
            lambda tensors, numbers: numbers.pop("done"),
            lambda tensors, numbers: numbers.update(done=-5),
            lambda tensors, numbers: numbers.update(done=13),
            lambda tensors, numbers: numbers.update(stage=7),
            lambda tensors, numbers: numbers.update(window=3),
            lambda tensors, numbers: tensors.update(model={"other": torch.zeros(1)}),
        ],
    )
    def test_a_state_that_is_not_whole_is_named(self, half, changed):
        self.change(half, changed)
        with pytest.raises(UserError, match="is not a complete state of this training"):
            run(tiny_recipe(), half)

    @pytest.mark.parametrize("place", [0.1, 0.5, 0.999])
    def test_a_flipped_bit_is_noticed(self, half, place):
        content = bytearray((half / checkpoint.FILE).read_bytes())
        start = 8 + int.from_bytes(content[:8], "little")
        content[start + int(place * (len(content) - start))] ^= 8
        (half / checkpoint.FILE).write_bytes(content)
        with pytest.raises(UserError, match="is damaged: its checksum does not match"):
            run(tiny_recipe(), half)

    def test_a_state_from_before_there_were_checksums_resumes(self, half, finished):
        tensors, info = load_file(half / checkpoint.FILE), checkpoint.TrainingState.read(half).values
        del info["checksum"]
        save_file(tensors, half / checkpoint.FILE, {"info": json.dumps(info)})
        assert run(tiny_recipe(), half).finished

    @pytest.mark.parametrize("numbers", [5, None, {"recipe": "x"}])
    def test_a_state_of_something_else_is_named(self, half, numbers):
        save_file({"weight": torch.ones(1)}, half / checkpoint.FILE, {"info": json.dumps(numbers)})
        with pytest.raises(UserError, match="is not the state of a training"):
            run(tiny_recipe(), half)
