import json
import math
import signal
from contextlib import contextmanager, nullcontext
from io import StringIO
from itertools import chain

import pytest
import torch
from lightning_fabric import Fabric
from rich.console import Console

from gpldla.classifier.model import FewShotModel
from gpldla.data import Part
from gpldla.training import run as training
from gpldla.training.base_stage import BaseStage
from gpldla.training.checkpoint import TrainingState
from gpldla.training.episode_stage import EpisodeStage
from gpldla.training.metrics import METRICS
from gpldla.training.recipe import BaseSettings, flatten, make_recipe
from gpldla.training.run import train
from gpldla.training.stage import StageContext
from gpldla.utils.errors import UserError
from tests.helpers import tiny_protocol, tiny_recipe, tiny_set, whole

IMAGES, BATCHES, EPISODES = 30, 6, 4  # of the base classes; of the whole base stage; after it
PRIOR = {"m", "log_kappa", "log_excess", "log_diagonal", "below_diagonal"}  # what MetaQDA learns


@pytest.fixture(autouse=True, scope="module")
def tiny_data():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "load_protocol", tiny_protocol)
        yield


def short_recipe(**settings):
    """Three epochs of two batches, and, for heads that have them, four episodes."""
    defaults = {"base.epochs": 3, "base.batch": 16, "base.validate_every": 1}
    return tiny_recipe(**{**defaults, "episodes": EPISODES, "validation.every": 2, **settings})


def run(recipe, folder, **options):
    return train(recipe, folder, accelerator="cpu", **{"show_progress": False, **options})


def metrics(folder, *keys):
    """Return the recorded rows that have all of `keys`."""
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [row for row in rows if row.keys() >= {*keys}]


def differing(one, other, prefix):
    """Return the names, after the prefix, of tensors that are not the same in both."""
    names = {name for name in one if name.startswith(prefix)}
    assert names == {name for name in other if name.startswith(prefix)} != set()
    return {name.removeprefix(prefix) for name in names if not torch.equal(one[name], other[name])}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train by `short_recipe`, once for the same settings; return the folder and the result."""
    runs = {}

    def trained_once(**settings):
        key = json.dumps(settings)
        if key not in runs:
            folder = tmp_path_factory.mktemp("run")
            runs[key] = folder, run(short_recipe(**settings), folder)
        return runs[key]

    return trained_once


@contextmanager
def stop_after(steps, *, kill=False):
    """Let training be asked to stop, or be killed, once so many steps of whatever stage are done."""
    done = 0

    def counted(take_step):
        def update(stage):
            nonlocal done
            if kill and done == steps:
                raise Killed
            take_step(stage)
            done += 1

        return update

    with pytest.MonkeyPatch.context() as patch:
        for kind in (BaseStage, EpisodeStage):
            patch.setattr(kind, "update", counted(kind.update))
        if not kill:
            patch.setattr(training, "stop_signals", lambda: nullcontext(lambda: done >= steps))
        yield


class Killed(BaseException):
    pass


# ---- whole trainings


@pytest.mark.parametrize("head", ["simpleshot", "feature-transfer", "baseline++", "metaqda", "gpldla-auto"])
def test_methods_with_a_base_stage_learn(trained, head):
    folder, result = trained(head=head)
    assert result.finished
    accuracies = [row["accuracy"] for row in metrics(folder, "base_batch", "accuracy")]
    assert accuracies[-1] > accuracies[0] + 20
    looks = metrics(folder, "validation_accuracy")
    assert result.model.info["validation_accuracy"] == max(row["validation_accuracy"] for row in looks)
    assert result.model.info["validation_accuracy"] > 80  # chance is 33 %
    model = FewShotModel.from_pretrained(folder)
    pictures = [image[0] for image in tiny_set((9, 9, 9), seed=5).images]
    classifier = model.adapt(pictures[::9], ["a", "b", "c"])
    assert (classifier.predict(pictures) == [*("a" * 9), *("b" * 9), *("c" * 9)]).mean() > 0.8


def test_the_base_stage_is_recorded_apart(trained):
    folder, _ = trained(head="metaqda")
    steps = [next(iter(row.items())) for row in metrics(folder)]
    assert steps == sorted(steps), "base batches, then episodes"
    assert [row["base_batch"] for row in metrics(folder, "base_batch", "loss", "accuracy")] == [2, 4, 6]
    assert [row["base_batch"] for row in metrics(folder, "base_batch", "validation_accuracy")] == [2, 4, 6]
    assert metrics(folder, "base_batch", "kappa") == []
    assert [row["episode"] for row in metrics(folder, "episode", "loss", "kappa")] == [2, 4]
    rates = [row["learning_rate"] for row in metrics(folder, "episode", "loss")]
    after_one_of_four = (1 + math.cos(math.pi / 4)) / 2
    assert rates[0] == pytest.approx(0.005 * after_one_of_four), "that of the head, which alone learns"
    assert list((folder / "tensorboard" / "base_batch").glob("events*"))
    assert list((folder / "tensorboard").glob("events*"))


@pytest.mark.parametrize("head", ["feature-transfer", "simpleshot", "baseline++", "gpldla-auto"])
def test_a_head_without_parameters_has_no_episodes(trained, head):
    folder, result = trained(head=head)
    assert result.model.info["episodes"] == result.episodes == 0
    assert all("base_batch" in row for row in metrics(folder))
    assert metrics(folder)[-1]["base_batch"] == BATCHES
    assert result.model.temperature != 1.0, "it is fitted all the same"


@pytest.mark.parametrize(
    ("settings", "layer"),
    [
        ({"head": "simpleshot"}, {"weight", "bias"}),
        ({"head": "gpldla-auto"}, {"weight", "bias"}),
        ({"head": "baseline++"}, {"directions", "norms"}),
        ({"head": "simpleshot", "base.classifier": "cosine"}, {"directions", "norms"}),
    ],
)
def test_the_classifier_is_what_the_head_asks_for_unless_the_recipe_names_one(trained, settings, layer):
    folder, _ = trained(**settings)
    assert TrainingState.read(folder).tensors["stage"].keys() == layer


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_base_mean_is_the_mean_feature_of_all_base_images(trained, ema):
    folder, _ = trained(head="simpleshot", ema=ema)
    model = FewShotModel.from_pretrained(folder)
    images = tiny_protocol().part("base").image_set.images
    assert len(images) == IMAGES
    mean = model.embed([image[0] for image in images]).double().mean(0)
    assert mean.abs().max() > 0.1
    torch.testing.assert_close(model.head.base_mean.double(), mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "simpleshot", "base.epochs": 10},
        {"head": "gpldla", "episodes": 20},
        {"head": "gpldla", "episodes": 40, "episodes_per_update": 2},
    ],
)
def test_averaged_weights_forget_the_first_ones_of_a_short_training(trained, settings):
    """In 20 updates they reach back over four of them, a fifth, or over less if the recipe says so."""
    long, fitting, short = (
        TrainingState.read(trained(**settings, ema=ema)[0]).tensors["averaged"] for ema in (0.9999, 0.75, 0.5)
    )
    assert not differing(long, fitting, "backbone.")
    assert differing(fitting, short, "backbone.")


def test_a_few_updates_are_not_averaged(trained):
    folder, _ = trained(head="gpldla", episodes=3, ema=0.9)
    tensors = TrainingState.read(folder).tensors
    assert not differing(tensors["averaged"], tensors["model"], "backbone.")


@pytest.mark.parametrize("head", ["simpleshot", "metaqda"])
def test_a_head_that_centres_on_the_base_classes_needs_a_network_that_knows_them(tmp_path, head):
    with pytest.raises(
        UserError, match=f"'{head}' needs a network that was trained on the base classes first"
    ):
        run(short_recipe(head=head, base__classifier="none"), tmp_path)


def test_a_head_that_does_not_centre_looks_at_no_base_mean(trained):
    folder, _ = trained(head="simpleshot", head__transform="l2n")
    assert not FewShotModel.from_pretrained(folder).head.base_mean.any()


def test_metaqda_trains_its_prior_on_a_frozen_network(tmp_path):
    before, after = before_and_after_episodes(short_recipe(head="metaqda"), tmp_path)
    assert differing(before, after, "backbone.") == set(), "neither weights nor BatchNorm's statistics"
    assert differing(before, after, "head.") == PRIOR
    untrained = FewShotModel("conv4s", "metaqda").state_dict()
    assert differing(before, untrained, "head.") == {"base_mean"}, "the base stage leaves the prior alone"


def test_any_head_may_have_a_base_stage_as_a_start(tmp_path):
    recipe = short_recipe(head="gpldla", base__classifier="linear")
    before, after = before_and_after_episodes(recipe, tmp_path)
    assert {"blocks.0.0.weight", "blocks.3.1.running_mean"} <= differing(before, after, "backbone.")
    assert differing(before, after, "head.")
    assert len(metrics(tmp_path, "base_batch", "loss")) == 3
    assert len(metrics(tmp_path, "episode", "loss")) == 2


def before_and_after_episodes(recipe, folder):
    """Return what the episodes start from, the best of the base stage, and the weights at their end."""
    with stop_after(BATCHES):
        run(recipe, folder)
    state = TrainingState.read(folder)
    assert (state.values["stage"], state.values["done"]) == (0, BATCHES)
    assert differing(state.tensors["best"], state.tensors["model"], "backbone."), "the best is not the last"
    assert run(recipe, folder).episodes == EPISODES
    return state.tensors["best"], TrainingState.read(folder).tensors["model"]


def test_without_its_base_stage_a_head_learns_by_episodes(trained):
    folder, result = trained(head="simpleshot", head__transform="un", base__classifier="none", ema=0.0)
    assert result.episodes == EPISODES
    assert all("episode" in row for row in metrics(folder))
    torch.manual_seed(0)
    untrained = FewShotModel("conv4s", "simpleshot").state_dict()
    learned = TrainingState.read(folder).tensors["model"]
    assert "blocks.0.0.weight" in differing(untrained, learned, "backbone.")


def test_averaging_starts_anew_in_each_stage(tmp_path):
    with stop_after(BATCHES + 1):
        run(short_recipe(head="gpldla", base__classifier="linear", ema=0.9), tmp_path)
    tensors = TrainingState.read(tmp_path).tensors
    averaged = {name.removeprefix("module."): t for name, t in tensors["averaged"].items()}
    assert differing(tensors["model"], averaged, "backbone.") == set()


def test_a_loss_that_is_not_finite_names_the_rate_of_the_base_stage(tmp_path):
    with pytest.raises(UserError, match=r"after \d batches; use a smaller base\.learning_rate or"):
        run(short_recipe(head="simpleshot", base__learning_rate=1e30), tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base.classifier", "quadratic"),
        ("base.epochs", 0),
        ("base.batch", 1),
        ("base.optimizer", "lbfgs"),
        ("base.learning_rate", 0.0),
        ("base.weight_decay", -0.1),
        ("base.schedule", "linear"),
        ("base.validate_every", -1),
    ],
)
def test_an_impossible_setting_of_the_base_stage_is_named(key, value):
    with pytest.raises(UserError, match=f"Recipe setting {key} = .* must be "):
        make_recipe({key: value})


def test_episodes_that_the_base_classes_cannot_fill_are_refused_at_once(tmp_path):
    with pytest.raises(UserError, match="An episode of 5 ways needs 5 classes"):
        run(short_recipe(head="metaqda", ways=5), tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- the base stage alone


def base_stage(classifier="linear", part=None, **settings):
    recipe = short_recipe(head="simpleshot", **settings)
    model = FewShotModel(recipe.backbone, recipe.head.name)
    fabric = Fabric(accelerator="cpu", devices=1)
    return BaseStage(StageContext(recipe, model, part or whole(tiny_set()), fabric), classifier)


def visited(**settings):
    """Return the numbers of the images of each batch, epoch by epoch."""
    stage, seen = base_stage(base__batch=8, **settings), []
    draw = stage.context.sample_augmentations
    stage.context.sample_augmentations = lambda numbers, keys: (
        seen.append(numbers.tolist()) or draw(numbers, keys)
    )
    while stage.done < stage.total:
        stage.update()
    return [seen[i : i + 4] for i in range(0, len(seen), 4)]


@pytest.fixture(scope="module")
def epochs():
    return visited()


class TestBatches:
    def test_each_epoch_visits_every_image_once(self, epochs):
        assert len(epochs) == 3
        for epoch in epochs:
            assert sorted(chain(*epoch)) == list(range(IMAGES))

    def test_batches_are_as_alike_as_possible(self, epochs):
        assert [[len(batch) for batch in epoch] for epoch in epochs] == [[8, 8, 7, 7]] * 3

    def test_each_epoch_shuffles_anew(self, epochs):
        orders = [tuple(chain(*epoch)) for epoch in epochs]
        assert len({*orders, tuple(range(IMAGES))}) == 4

    def test_the_seed_alone_decides(self, epochs):
        torch.manual_seed(7)
        assert visited() == epochs
        assert visited(seed=1, base__epochs=1) != epochs[:1]

    def test_a_part_of_an_epoch(self):
        assert [len(epoch) for epoch in visited(base__epochs=1.5)] == [4, 2]

    def test_labels_are_places_in_the_part(self):
        stage = base_stage(part=Part(tiny_set(), (3, 1)))  # nine images and seven
        assert stage.class_of_image.tolist() == [0] * 9 + [1] * 7
        assert len(stage.network.layer.weight) == 2


class TestRates:
    @pytest.mark.parametrize(
        ("schedule", "factors"),
        [
            ("constant", [1, 1, 1, 1, 1, 1, 1, 1]),
            ("step", [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]),
            ("cosine", [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)]),
        ],
    )
    def test_follow_the_schedule(self, schedule, factors):
        stage = base_stage(base__epochs=4, base__schedule=schedule, base__learning_rate=0.3)
        rates = []
        while stage.done < stage.total:
            stage.update()
            rates.append(stage.optimizer.param_groups[0]["lr"])
        assert rates == pytest.approx([0.3 * factor for factor in factors])

    @pytest.mark.parametrize(
        ("name", "kind", "momentum"),
        [("sgd", torch.optim.SGD, {"momentum": 0.9, "nesterov": False}), ("adam", torch.optim.Adam, {})],
    )
    def test_the_optimizer_is_the_one_asked_for(self, name, kind, momentum):
        stage = base_stage(base__optimizer=name, base__learning_rate=0.02, base__weight_decay=0.003)
        assert isinstance(stage.optimizer, kind)
        (group,) = stage.optimizer.param_groups
        assert group.items() >= {"lr": 0.02, "weight_decay": 0.003, **momentum}.items()
        learned = {id(parameter) for parameter in group["params"]}
        assert learned == {id(p) for p in stage.network.parameters()}
        assert learned > {id(p) for p in stage.context.model.backbone.parameters()}

    def test_a_step_of_descent_on_the_cross_entropy(self):
        """The first step of SGD is plain: p − rate·(gradient + decay·p)."""
        stage = base_stage(base__batch=IMAGES, base__learning_rate=0.05, base__weight_decay=0.01)
        network, labels = stage.network.train(), [0] * 6 + [1] * 7 + [2] * 8 + [3] * 9
        before = [p.detach().clone() for p in network.parameters()]
        images = stage.context.images[torch.arange(IMAGES)]
        scores = network(stage.context.apply_augmentations(images, torch.empty(IMAGES, 0)))
        loss = -scores.log_softmax(1)[torch.arange(IMAGES), labels].mean()
        slopes = torch.autograd.grad(loss, list(network.parameters()))
        stage.update()
        for p, start, slope in zip(network.parameters(), before, slopes):
            torch.testing.assert_close(p, start - 0.05 * (slope + 0.01 * start), rtol=1e-3, atol=1e-5)
        assert stage.window.means()["loss"] == pytest.approx(loss.item(), rel=1e-4)


class TestCosineLayer:
    @pytest.mark.parametrize(("classes", "scale"), [(2, 2), (200, 2), (201, 10)])
    def test_is_scaled_norms_times_cosines(self, classes, scale):
        layer = base_stage("cosine", part=whole(tiny_set((1,) * classes, size=8))).network.layer
        torch.nn.init.uniform_(layer.norms, 0.5, 2)
        features = torch.randn(3, 64)
        with torch.no_grad():
            scores = layer(features)
        assert scores.shape == (3, classes)
        for i, x in enumerate(features.tolist()):
            for j in (0, classes - 1):
                v, g = layer.directions[j].tolist(), layer.norms[j].item()
                cosine = sum(a * b for a, b in zip(v, x)) / math.hypot(*v) / math.hypot(*x)
                assert scores[i, j].item() == pytest.approx(scale * g * cosine, abs=1e-5)

    def test_norms_start_as_those_of_the_directions(self):
        layer = base_stage("cosine").network.layer
        assert layer.norms.tolist() == pytest.approx([math.hypot(*v) for v in layer.directions.tolist()])

    def test_a_zero_feature_scores_zero(self):
        assert base_stage("cosine").network.layer(torch.zeros(1, 64)).tolist() == [[0.0] * 4]


# ---- resuming

VARIANTS = {
    "metaqda": {"head": "metaqda"},
    "start": {
        "head": "gpldla",
        "base.classifier": "cosine",
        "base.optimizer": "adam",
        "base.learning_rate": 0.001,
        "augment": "characters",
        "ema": 0.0,
    },
    "simpleshot": {"head": "simpleshot"},
}


def assert_ends_like(folder, result, uninterrupted):
    whole_folder, whole_result = uninterrupted
    assert result.finished
    assert result.episodes == whole_result.episodes
    assert differing(result.model.state_dict(), whole_result.model.state_dict(), "") == set()
    assert result.model.temperature == whole_result.model.temperature
    last, whole_last = (TrainingState.read(f).tensors for f in (folder, whole_folder))
    assert differing(last["model"], whole_last["model"], "") == set(), "where the best is not the last"
    assert metrics(folder) == metrics(whole_folder)


@pytest.mark.parametrize(
    ("variant", "steps"),
    [
        *(("metaqda", steps) for steps in range(1, BATCHES + EPISODES)),
        *(("start", steps) for steps in (3, BATCHES, BATCHES + 1)),
        *(("simpleshot", steps) for steps in (3, BATCHES - 1)),
    ],
)
def test_a_stopped_run_ends_with_the_same_numbers(tmp_path, trained, variant, steps):
    recipe = short_recipe(**VARIANTS[variant])
    with stop_after(steps):
        part = run(recipe, tmp_path)
    assert not part.finished
    assert part.episodes == part.model.info["episodes"] == max(0, steps - BATCHES)
    assert_ends_like(tmp_path, run(recipe, tmp_path), trained(**VARIANTS[variant]))


@pytest.mark.parametrize("steps", [3, 5, BATCHES, BATCHES + 2])
def test_a_killed_run_ends_with_the_same_numbers(tmp_path, trained, steps):
    """Before the first checkpoint, after it, between the stages, and before a checkpoint of the episodes."""
    recipe = short_recipe(head="metaqda")
    with stop_after(steps, kill=True), pytest.raises(Killed):
        run(recipe, tmp_path)
    assert_ends_like(tmp_path, run(recipe, tmp_path), trained(head="metaqda"))


def test_ctrl_c_between_the_stages_stops_after_one_episode(tmp_path, trained, monkeypatch):
    begin = training._Run._begin_stage

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        begin(*args)

    monkeypatch.setattr(training._Run, "_begin_stage", interrupted)
    part = run(short_recipe(head="metaqda"), tmp_path)
    assert (part.finished, part.episodes) == (False, 1)
    monkeypatch.undo()
    assert_ends_like(tmp_path, run(short_recipe(head="metaqda"), tmp_path), trained(head="metaqda"))


def test_messages_count_batches_in_the_base_stage(tmp_path):
    said = StringIO()
    for steps in (3, 1):
        with stop_after(steps):
            run(
                short_recipe(head="simpleshot"),
                tmp_path,
                console=Console(file=said, width=300),
                show_progress=True,
            )
    assert "base batch 2: validation accuracy" in said.getvalue()
    assert "Stopped after 3 batches; the same command goes on from here." in said.getvalue()
    assert f"Going on in {tmp_path} after 3 batches." in said.getvalue()


def test_a_finished_base_stage_stays_as_it_is(tmp_path):
    run(short_recipe(head="simpleshot"), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    assert run(short_recipe(head="simpleshot"), tmp_path).finished
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before


OLD_NAMES = {"head.name": "head", "folds": "turns", "validation.every": "validate_every"}
OLD_NAMES |= {"validation.temperature_episodes": "temperature_episodes"}


def test_a_checkpoint_with_the_older_names_of_settings_resumes(tmp_path, trained):
    recipe = short_recipe(**VARIANTS["start"])
    with stop_after(BATCHES + 1):
        run(recipe, tmp_path)
    state = TrainingState.read(tmp_path)
    settings = flatten(recipe.as_dict())
    flat = {OLD_NAMES.get(name, name.replace(".", "_")): value for name, value in settings.items()}
    assert flat["head"] == "gpldla"
    assert flat["base_classifier"] == "cosine"
    state.values["recipe"] = flat
    state.write(tmp_path)
    assert_ends_like(tmp_path, run(recipe, tmp_path), trained(**VARIANTS["start"]))


def test_a_checkpoint_from_before_there_were_stages_resumes(tmp_path, trained):
    unused = {f"base.{key}": getattr(BaseSettings, key) for key in ("epochs", "batch", "validate_every")}
    recipe = short_recipe(head="gpldla", **unused)  # as they were before anyone could set them
    with stop_after(3):
        run(recipe, tmp_path)
    state = TrainingState.read(tmp_path)
    del state.values["stage"]
    state.values["recipe"] = {
        OLD_NAMES.get(key, key.replace(".", "_")): value
        for key, value in flatten(recipe.as_dict()).items()
        if not key.startswith("base.")
    }
    state.write(tmp_path)
    assert_ends_like(tmp_path, run(recipe, tmp_path), trained(head="gpldla"))


@pytest.mark.parametrize(("smallest_crop", "colour_jitter"), [(1.0, 0.4), (0.08, 0.0)])
def test_how_much_photographs_change_is_said_by_the_recipe(smallest_crop, colour_jitter):
    recipe = tiny_recipe(augment="photographs", smallest_crop=smallest_crop, colour_jitter=colour_jitter)
    fabric = Fabric(accelerator="cpu", devices=1)
    context = StageContext(recipe, FewShotModel("conv4s"), whole(tiny_set()), fabric)
    numbers = torch.arange(IMAGES)
    changes = context.sample_augmentations(numbers, numbers)
    extents, factors = changes[:, 2:4], changes[:, 5:]
    height, width = context.images.stored_shape
    assert (extents == torch.tensor([height, width])).all() == (smallest_crop == 1)
    assert (factors == 1).all() == (colour_jitter == 0)
