import json
import math
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gpldla.classifier import model_files
from gpldla.classifier.calibration import apply_temperature
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import CONFIG, WEIGHTS, FewShotModel
from gpldla.classifier.shipped import shipped_models
from gpldla.data.augment.transforms import evaluation_images
from gpldla.data.episodes import fold_indices
from gpldla.utils.errors import UserError
from tests.helpers import tiny_set


@pytest.fixture
def model():
    torch.manual_seed(0)
    return FewShotModel("conv4s", temperature=1.5, info={"recipe": {"ways": 3}}).eval()


@pytest.fixture
def colour_model():
    torch.manual_seed(0)
    return FewShotModel("conv4").eval()


def pictures(counts=(2, 2, 2), side=40, seed=0):
    """A few grey images a class, sorted by class, as arrays [side, side]."""
    return list(tiny_set(counts, size=side, seed=seed).images[:, 0])


def save_as_before(model, folder, config=None):
    """Write a folder as before there were checksums; config: another configuration than the model's."""
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(model.config() if config is None else config))


LABELS = ["cat", "cat", "dog", "dog", "ant", "ant"]


class TestSaving:
    def test_a_loaded_model_predicts_the_same(self, model, tmp_path):
        model.save(tmp_path / "model")
        loaded = FewShotModel.from_pretrained(tmp_path / "model")
        queries = pictures(seed=1)
        np.testing.assert_array_equal(
            loaded.adapt(pictures(), LABELS).predict_proba(queries),
            model.adapt(pictures(), LABELS).predict_proba(queries),
        )

    @pytest.mark.parametrize("array", [np.array, torch.tensor])
    def test_options_may_be_numbers_and_arrays(self, tmp_path, array):
        options = {"n_samples": np.int64(3), "beta": np.float32(0.5), "priors": array([0.25, 0.75])}
        FewShotModel("conv4s", head_options=options).save(tmp_path)
        assert FewShotModel.from_pretrained(tmp_path).head_options == {
            "n_samples": 3,
            "beta": 0.5,
            "priors": [0.25, 0.75],
        }

    def test_everything_but_the_weights_comes_back(self, tmp_path):
        model = FewShotModel("conv4s", head_options={"n_samples": 3}, temperature=0.7, info={"note": "Ω"})
        model.save(tmp_path)
        assert FewShotModel.from_pretrained(tmp_path).config() == model.config()

    def test_learned_priors_come_back_exactly(self, model, tmp_path):
        with torch.no_grad():
            model.head.log_beta.fill_(0.1)
        model.save(tmp_path)
        assert FewShotModel.from_pretrained(str(tmp_path)).head.log_beta.item() == 0.1

    def test_a_loaded_model_is_ready_for_evaluation(self, model, tmp_path):
        model.train().save(tmp_path)
        assert not FewShotModel.from_pretrained(tmp_path).training

    def test_saving_again_replaces_the_model(self, model, tmp_path):
        model.save(tmp_path)
        model.temperature = 2.5
        model.save(tmp_path)
        assert FewShotModel.from_pretrained(tmp_path).temperature == 2.5
        assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]


def images_like(model, n=6, seed=0):
    size, channels = model.preprocessing.size, model.preprocessing.channels
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(seed))


class TestWhatIsSeenOutsideOfTraining:
    """Zoom and mirror images."""

    @pytest.fixture
    def mirrored(self):
        torch.manual_seed(0)
        return FewShotModel("conv4s", zoom=1.5, mirrored=True).eval()

    def test_features_are_the_mean_over_both_views(self, mirrored):
        images = images_like(mirrored)
        with torch.no_grad():
            expected = (mirrored.backbone(images) + mirrored.backbone(images.flip(-1))) / 2
            torch.testing.assert_close(mirrored.represent(images), expected)
            # The symmetry that it is for, which the network itself does not have:
            torch.testing.assert_close(mirrored.represent(images.flip(-1)), expected)
            assert not torch.allclose(mirrored.backbone(images.flip(-1)), mirrored.backbone(images), rtol=0.1)

    def test_training_sees_images_as_they_are(self, mirrored):
        images = images_like(mirrored)
        expected = FewShotModel("conv4s").train()
        expected.load_state_dict(mirrored.state_dict())
        torch.testing.assert_close(mirrored.train().represent(images), expected.represent(images))

    @pytest.mark.parametrize(("zoom", "side"), [(1.0, 28), (1.15, 32), (1.5, 42), (2.0, 56)])
    def test_zoom_shows_the_centre(self, zoom, side):
        model = FewShotModel("conv4s", zoom=zoom)
        assert model.preprocessing.resized == side
        pixels = torch.randint(0, 256, (2, 1, side, side), dtype=torch.uint8)
        margin = (side - 28) // 2
        centre = pixels[..., margin : margin + 28, margin : margin + 28]
        torch.testing.assert_close(
            evaluation_images(pixels, model.preprocessing),
            (centre / 255 - model.preprocessing.mean[0]) / model.preprocessing.std[0],
        )

    def test_other_models_stay_as_they_are(self, mirrored):
        assert FewShotModel("conv4s").preprocessing == type(mirrored.backbone).preprocessing
        assert FewShotModel("conv4s").preprocessing.resized == 32

    def test_is_saved_and_loaded(self, mirrored, tmp_path):
        mirrored.save(tmp_path)
        loaded = FewShotModel.from_pretrained(tmp_path)
        assert (loaded.preprocessing.zoom, loaded.preprocessing.mirrored) == (1.5, True)
        expected = mirrored.adapt(pictures(), LABELS).predict_proba(pictures(seed=1))
        np.testing.assert_array_equal(
            loaded.adapt(pictures(), LABELS).predict_proba(pictures(seed=1)), expected
        )
        usual = FewShotModel("conv4s").eval()
        usual.load_state_dict(mirrored.state_dict())
        assert not np.allclose(
            usual.adapt(pictures(), LABELS).predict_proba(pictures(seed=1)), expected, atol=1e-3
        )

    def test_features_are_remembered_apart(self, mirrored):
        usual = FewShotModel("conv4s")
        usual.load_state_dict(mirrored.state_dict())
        assert usual.backbone.fingerprint() != mirrored.backbone.fingerprint()

    @pytest.mark.parametrize(
        "facts", [{"zoom": "far"}, {"zoom": 0.5}, {"zoom": True}, {"mirrored": 1}, {"interpolation": "cubic"}]
    )
    def test_a_wrong_one_in_a_file_is_named(self, mirrored, tmp_path, facts):
        config = mirrored.config()
        config["preprocessing"] |= facts
        save_as_before(mirrored, tmp_path, config)
        with pytest.raises(UserError, match=f"config.json: {next(iter(facts))} must be "):
            FewShotModel.from_pretrained(tmp_path)

    @pytest.mark.parametrize("head", ["relationnet", "maml"])
    def test_heads_without_features_have_no_mirror(self, head):
        with pytest.raises(UserError, match=f"Head '{head}' consumes .* set mirrored to false"):
            FewShotModel("conv4snp", head, mirrored=True)


class TestLoadingWhatIsNoModel:
    @pytest.mark.parametrize("name", ["none", "file", "empty"])
    def test_a_folder_without_a_model_is_named(self, tmp_path, name):
        (tmp_path / "file").write_text("text")
        (tmp_path / "empty").mkdir()
        with pytest.raises(UserError, match=rf"{tmp_path / name} is not a model: .*gpldla train"):
            FewShotModel.from_pretrained(tmp_path / name)

    @pytest.mark.parametrize("content", [[], "text", {}, {"model_type": "bert"}, {"format": 99}], ids=str)
    def test_a_foreign_configuration_is_named(self, model, tmp_path, content):
        save_as_before(model, tmp_path, content)
        with pytest.raises(UserError, match=f"{tmp_path / CONFIG} is not a model configuration of format 1"):
            FewShotModel.from_pretrained(tmp_path)

    def test_a_configuration_that_is_no_json_is_named(self, tmp_path):
        (tmp_path / CONFIG).write_text("{")
        with pytest.raises(UserError, match=f"{tmp_path / CONFIG} is not readable JSON"):
            FewShotModel.from_pretrained(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            {"backbone": None},
            {"backbone": 4},
            {"head": ["gpldla"]},
            {"head_options": [1]},
            {"temperature": "warm"},
            {"temperature": None},
            {"temperature": 0},
            {"temperature": -1.0},
            {"temperature": float("nan")},
            {"info": [1]},
        ],
        ids=str,
    )
    def test_a_configuration_with_a_wrong_value_is_named(self, model, tmp_path, change):
        save_as_before(model, tmp_path, {**model.config(), **change})
        with pytest.raises(UserError, match=str(tmp_path / CONFIG)):
            FewShotModel.from_pretrained(tmp_path)

    @pytest.mark.parametrize("key", ["backbone", "head", "head_options", "temperature", "info"])
    def test_a_configuration_with_a_missing_value_is_named(self, model, tmp_path, key):
        save_as_before(model, tmp_path, {k: v for k, v in model.config().items() if k != key})
        with pytest.raises(
            UserError, match=f"{tmp_path / CONFIG} is an incomplete model configuration.*{key}"
        ):
            FewShotModel.from_pretrained(tmp_path)

    @pytest.mark.parametrize("kind", ["backbone", "head"])
    def test_one_of_a_missing_plugin_says_what_to_do(self, model, tmp_path, kind):
        save_as_before(model, tmp_path, {**model.config(), kind: "of-a-plugin"})
        message = rf"no {kind} 'of-a-plugin'.* If another package has this {kind}, install .* with --import\."
        with pytest.raises(UserError, match=message):
            FewShotModel.from_pretrained(tmp_path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"backbone": "conv5"}, "There is no backbone 'conv5'; did you mean 'conv4'"),
            ({"head": "gplda"}, "There is no head 'gplda'; did you mean 'gpldla'"),
            ({"head_options": {"n_sample": 3}}, "no option 'n_sample'; did you mean 'n_samples'"),
            ({"head_options": {"n_samples": 0}}, "n_samples must be"),
        ],
    )
    def test_unknown_names_suggest_the_nearest(self, model, tmp_path, change, message):
        save_as_before(model, tmp_path, {**model.config(), **change})
        with pytest.raises(UserError, match=message):
            FewShotModel.from_pretrained(tmp_path)

    def test_missing_weights_are_named(self, model, tmp_path):
        model.save(tmp_path)
        (tmp_path / WEIGHTS).unlink()
        with pytest.raises(UserError, match=f"There is no file {tmp_path / WEIGHTS}"):
            FewShotModel.from_pretrained(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps([1])], ids=["empty", "text", "pickle"])
    def test_damaged_weights_are_named(self, model, tmp_path, content):
        model.save(tmp_path)
        (tmp_path / WEIGHTS).write_bytes(content)
        with pytest.raises(UserError, match=f"{tmp_path / WEIGHTS} is not a readable safetensors file"):
            FewShotModel.from_pretrained(tmp_path)

    def test_truncated_weights_are_named(self, model, tmp_path):
        model.save(tmp_path)
        whole = (tmp_path / WEIGHTS).read_bytes()
        (tmp_path / WEIGHTS).write_bytes(whole[:-100])
        with pytest.raises(UserError, match=f"{tmp_path / WEIGHTS} is not a readable safetensors file"):
            FewShotModel.from_pretrained(tmp_path)

    def test_weights_of_another_network_are_named(self, model, colour_model, tmp_path):
        save_as_before(colour_model, tmp_path, model.config())
        with pytest.raises(UserError, match=f"{tmp_path / WEIGHTS} does not fit conv4s with gpldla"):
            FewShotModel.from_pretrained(tmp_path)


class TestFilesThatChanged:
    """A damaged or half-written folder is refused or is a model that was saved, never a mixture."""

    def test_a_folder_from_before_checksums_is_read(self, model, tmp_path):
        save_as_before(model, tmp_path)
        loaded = FewShotModel.from_pretrained(tmp_path)
        assert loaded.temperature == 1.5
        assert all(torch.equal(t, model.state_dict()[name]) for name, t in loaded.state_dict().items())

    @pytest.mark.parametrize("place", [0.05, 0.3, 0.9, 0.999])
    def test_a_flipped_bit_of_the_weights_is_refused(self, model, tmp_path, place):
        model.save(tmp_path)
        content = bytearray((tmp_path / WEIGHTS).read_bytes())
        start = 8 + int.from_bytes(content[:8], "little")
        content[start + int(place * (len(content) - start))] ^= 4
        (tmp_path / WEIGHTS).write_bytes(content)
        with pytest.raises(UserError, match=f"{tmp_path / WEIGHTS} is damaged: its checksum does not match"):
            FewShotModel.from_pretrained(tmp_path)

    def test_a_changed_configuration_is_refused(self, model, tmp_path):
        model.save(tmp_path)
        config = (tmp_path / CONFIG).read_text()
        (tmp_path / CONFIG).write_text(config.replace('"temperature": 1.5', '"temperature": 1.6'))
        with pytest.raises(UserError, match=f"{tmp_path / CONFIG} was changed or damaged.*; delete it"):
            FewShotModel.from_pretrained(tmp_path)
        (tmp_path / CONFIG).unlink()
        assert FewShotModel.from_pretrained(tmp_path).temperature == 1.5

    @pytest.mark.parametrize("first", [True, False], ids=["new folder", "old folder"])
    def test_a_save_that_stops_between_its_files_leaves_one_whole_model(
        self, model, tmp_path, monkeypatch, first
    ):
        if not first:
            FewShotModel("conv4s", temperature=0.7).save(tmp_path)
        monkeypatch.setattr(model_files, "write_json", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model.save(tmp_path)
        loaded = FewShotModel.from_pretrained(tmp_path)
        assert loaded.temperature == 1.5
        assert all(torch.equal(t, model.state_dict()[name]) for name, t in loaded.state_dict().items())

    @pytest.mark.parametrize("with_checksum", [True, False])
    def test_weights_that_are_not_finite_are_refused(self, model, tmp_path, with_checksum):
        with torch.no_grad():
            next(model.parameters()).view(-1)[3] = math.nan
        model.save(tmp_path) if with_checksum else save_as_before(model, tmp_path)
        with pytest.raises(UserError, match=r"model.safetensors is damaged: its tensor .* infinite or NaN"):
            FewShotModel.from_pretrained(tmp_path)

    @pytest.mark.parametrize("head", ["gpldla", "relationnet"])
    def test_a_network_that_gives_nan_is_an_error_and_no_doubt(self, head):
        model = FewShotModel("conv4snp", head)
        with torch.no_grad():
            next(model.backbone.parameters()).fill_(math.nan)
        with pytest.raises(UserError, match=r"(?i)conv4snp gives features that are infinite or NaN"):
            model.embed(pictures())
        pixels = [np.zeros((28, 28, 1), np.uint8)] * 2
        with pytest.raises(UserError, match=r"(?i)conv4snp gives features that are infinite or NaN"):
            model.embed_pixels(pixels, 2)

    def test_an_answer_that_is_nan_is_an_error_and_no_doubt(self, model):
        classifier = model.adapt(pictures(), LABELS)
        classifier.task.posterior.weight_mean.fill_(math.nan)
        for answers in (classifier.predict_proba, classifier.uncertainty):
            with pytest.raises(UserError, match=r"6 of 6 answers are NaN: .* fit it again"):
                answers(pictures())

    def test_shipped_models_name_the_checksum_of_their_files(self, tmp_path):
        name = sorted(shipped_models())[0]
        for changed in (WEIGHTS, CONFIG):
            folder = shutil.copytree(shipped_models()[name], tmp_path / changed)
            content = bytearray((folder / changed).read_bytes())
            if changed == WEIGHTS:
                content[-9] ^= 1
            else:
                content = content.replace(b'"ways": 5', b'"ways": 6', 1)
            (folder / changed).write_bytes(content)
            with pytest.raises(UserError, match="is damaged: its checksum does not match"):
                FewShotModel.from_pretrained(folder)


class TestImages:
    def test_pictures_paths_and_arrays_give_the_same(self, model, tmp_path):
        arrays = pictures()
        paths = [tmp_path / f"{number}.png" for number in range(len(arrays))]
        for path, array in zip(paths, arrays):
            Image.fromarray(array).save(path)
        forms = {
            "arrays": arrays,
            "one array": np.stack(arrays),
            "floats": [array / 255 for array in arrays],
            "whole numbers": [array.astype(np.int64) for array in arrays],
            "pictures": [Image.fromarray(array) for array in arrays],
            "paths": paths,
            "strings": [str(path) for path in paths],
            "mixed": [*paths[:3], *arrays[3:]],
        }
        expected = model.adapt(arrays, LABELS).predict_proba(arrays)
        for name, images in forms.items():
            answers = model.adapt(images, LABELS).predict_proba(images)
            np.testing.assert_array_equal(answers, expected, err_msg=name)

    def test_images_of_any_size(self, model):
        rng = np.random.default_rng(0)
        shapes = [(32, 32), (5, 90), (300, 200), (1, 1)]
        images = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
        assert model.embed(images).shape == (4, 64)

    def test_grey_and_colour_images_reach_both_kinds_of_network(self, model, colour_model):
        grey = np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)
        colour = np.stack([grey] * 3, -1)
        for each in (model, colour_model):
            features = each.embed([grey, colour])
            torch.testing.assert_close(features[0], features[1])

    def test_stored_images_and_files_are_prepared_alike(self, model):
        """What evaluation does with a packed store and what a user gets for the same picture."""
        stored = tiny_set((3, 3), size=model.preprocessing.resized).images
        with torch.inference_mode():
            expected = model.represent(evaluation_images(torch.from_numpy(stored), model.preprocessing))
        torch.testing.assert_close(model.embed(list(stored[:, 0])), expected)

    def test_transparent_paper_is_white(self, model, tmp_path):
        ink = np.zeros((32, 32), np.uint8)
        ink[10:20, 5:25] = 255
        black = np.zeros_like(ink)
        Image.fromarray(np.stack([black, black, black, ink], -1)).save(tmp_path / "drawing.png")
        torch.testing.assert_close(model.embed([tmp_path / "drawing.png"]), model.embed([255 - ink]))

    def test_pictures_of_16_bits_keep_their_greys(self, model, tmp_path):
        grey = pictures((1,))[0]
        Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
        torch.testing.assert_close(model.embed([tmp_path / "deep.png"]), model.embed([grey]))

    def test_a_palette_is_looked_up(self, model):
        grey = Image.fromarray(np.where(pictures((1,))[0] > 128, 255, 0).astype(np.uint8))
        torch.testing.assert_close(model.embed([grey.convert("P")]), model.embed([grey]))

    def test_black_and_white_arrays(self, model):
        mask = pictures((1,))[0] > 128
        torch.testing.assert_close(model.embed([mask]), model.embed([mask.astype(np.uint8) * 255]))

    def test_batches_do_not_matter(self, model):
        images = pictures((5, 5))
        torch.testing.assert_close(model.embed(images, batch_size=3), model.embed(images))

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (np.zeros(5), r"must be \[h, w\] or \[h, w, 3\], not \[5\]"),
            (np.zeros((3, 32, 32)), r"not \[3, 32, 32\]"),
            (np.zeros((0, 32)), r"not \[0, 32\]"),
            (np.full((4, 4), 200.0), "must hold values from 0 to 1, not 200.0 to 200.0"),
            (np.full((4, 4), 300), "must hold values from 0 to 255, not 300 to 300"),
            (np.full((4, 4), -5), "must hold values from 0 to 255, not -5 to -5"),
            (np.full((4, 4), np.nan), "must hold values from 0 to 1, not nan to nan"),
            (np.array([["a"]]), "must hold numbers"),
            (Image.new("L", (0, 0)), "has no pixels"),
            (torch.zeros(4, 4), "a picture, a path or an array, not Tensor"),
            (None, "a picture, a path or an array, not NoneType"),
        ],
    )
    def test_what_is_no_image_is_named(self, model, image, message):
        with pytest.raises(UserError, match=message):
            model.embed([image])

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("text.png", b"this is text"),
            ("empty.png", b""),
            ("broken.gif", b"GIF89a"),
            ("page.jpg", b"<html></html>"),
        ],
    )
    def test_an_unreadable_file_is_named(self, model, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{tmp_path / name} cannot be read as an image \("):
            model.adapt([tmp_path / name, *pictures((1,))], ["a", "b"])

    def test_a_damaged_picture_is_named(self, model, tmp_path):
        Image.fromarray(pictures((1,))[0]).save(tmp_path / "whole.png")
        content = bytearray((tmp_path / "whole.png").read_bytes())
        for start in range(8, len(content), 37):
            damaged = content.copy()
            damaged[start : start + 8] = b"\x15!7w\xff\x00\xc9\xe4"
            (tmp_path / "damaged.png").write_bytes(damaged[: max(start + 8, len(damaged) // 2)])
            with pytest.raises(UserError, match=r"damaged\.png cannot be read as an image"):
                model.embed([tmp_path / "damaged.png"])

    @pytest.mark.parametrize("name", ["none.png", "folder"])
    def test_a_missing_file_and_a_folder_are_named(self, model, tmp_path, name):
        (tmp_path / "folder").mkdir()
        with pytest.raises(UserError, match=f"{tmp_path / name} cannot be read as an image"):
            model.embed([tmp_path / name])


class TestLabels:
    @pytest.mark.parametrize(
        ("labels", "classes"),
        [
            (["cat", "dog", "ant"], ["ant", "cat", "dog"]),
            ([7, 3, 10], [3, 7, 10]),
            ([0.5, 0.25, 1.5], [0.25, 0.5, 1.5]),
            (["ქ", "a", "Ω"], ["a", "Ω", "ქ"]),
            ([("a", 2), ("a", 1), ("b", 0)], [("a", 1), ("a", 2), ("b", 0)]),
            (["1", 1, ()], ["1", 1, ()]),
        ],
    )
    def test_of_any_type_come_back_sorted_where_they_sort(self, model, labels, classes):
        images = pictures((1, 1, 1))
        classifier = model.adapt(images, labels)
        assert classifier.classes.tolist() == classes
        assert classifier.predict(images).tolist() == labels

    @pytest.mark.parametrize("make", [np.array, torch.tensor, tuple], ids=["array", "tensor", "tuple"])
    def test_in_any_container(self, model, make):
        images = pictures((1, 1, 1))
        classifier = model.adapt(images, make([2, 0, 1]))
        assert classifier.predict(images).tolist() == [2, 0, 1]

    def test_two_classes_of_bool(self, model):
        assert model.adapt(pictures((1, 1)), [True, False]).classes.tolist() == [False, True]

    def test_predictions_of_strings_are_an_array_of_strings(self, model):
        assert model.adapt(pictures(), LABELS).predict(pictures()).dtype.kind == "U"

    def test_columns_follow_the_classes(self, model):
        images = pictures((1, 1, 1))
        probabilities = model.adapt(images, ["c", "a", "b"]).predict_proba(images)
        assert probabilities.argmax(1).tolist() == [2, 0, 1]

    def test_one_class_only_is_refused(self, model):
        with pytest.raises(UserError, match="All examples are of class 'cat'; give examples of at least two"):
            model.adapt(pictures((2,)), ["cat", "cat"])

    @pytest.mark.parametrize("count", [0, 5, 7])
    def test_another_number_than_images_is_refused(self, model, count):
        with pytest.raises(
            UserError, match=f"There are 6 images and {count} labels; give one label per image."
        ):
            model.adapt(pictures(), (LABELS * 2)[:count])

    @pytest.mark.parametrize("labels", ["abcdef", 3, np.array(3)])
    def test_a_single_one_is_refused(self, model, labels):
        with pytest.raises(UserError, match="Give a list of labels, not a single one"):
            model.adapt(pictures(), labels)

    def test_lists_as_labels_are_refused(self, model):
        with pytest.raises(UserError, match="Labels must be values"):
            model.adapt(pictures((1, 1)), [["a"], ["b"]])


class TestPredicting:
    def test_probabilities_sum_to_one(self, model):
        probabilities = model.adapt(pictures(), LABELS).predict_proba(pictures(seed=1))
        assert probabilities.shape == (6, 3)
        assert (probabilities >= 0).all()
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)

    def test_the_temperature_is_applied(self, model):
        queries = pictures(seed=1)
        tempered = model.adapt(pictures(), LABELS).predict_proba(queries)
        model.temperature = 1.0
        plain = torch.from_numpy(model.adapt(pictures(), LABELS).predict_proba(queries))
        np.testing.assert_allclose(tempered, apply_temperature(plain.log(), 1.5).exp().numpy(), rtol=1e-4)
        assert tempered.max() < plain.max()

    def test_the_most_probable_class_is_predicted(self, model):
        classifier, queries = model.adapt(pictures(), LABELS), pictures(seed=1)
        best = classifier.predict_proba(queries).argmax(1)
        assert classifier.predict(queries).tolist() == classifier.classes[best].tolist()

    def test_one_image_is_answered_as_among_others(self, model):
        classifier, queries = model.adapt(pictures(), LABELS), pictures(seed=1)
        np.testing.assert_allclose(
            classifier.predict_proba(queries[:1]), classifier.predict_proba(queries)[:1], rtol=1e-4
        )

    def test_a_model_left_in_training_mode_predicts_as_in_evaluation_mode(self, model):
        queries = pictures(seed=1)
        expected = model.adapt(pictures(), LABELS).predict_proba(queries)
        np.testing.assert_array_equal(
            model.train().adapt(pictures(), LABELS).predict_proba(queries), expected
        )

    @pytest.mark.parametrize("method", ["predict", "predict_proba"])
    def test_no_images_are_refused(self, model, method):
        with pytest.raises(UserError, match="There are no pictures"):
            getattr(model.adapt(pictures(), LABELS), method)([])

    def test_adapting_to_no_images_is_refused(self, model):
        with pytest.raises(UserError, match="There are no pictures"):
            model.adapt([], [])

    @pytest.mark.parametrize("image", ["picture.png", Image.new("L", (32, 32))], ids=["path", "picture"])
    def test_a_single_image_is_refused(self, model, image):
        with pytest.raises(UserError, match="Give a list of pictures, not a single one"):
            model.adapt(pictures(), LABELS).predict(image)

    @pytest.mark.parametrize(
        "labels", [[2**62 + 1, 2**63 + 5], [2**53, 2**53 + 1, 2**63], ["a", "a\0"], [1, 10**30]]
    )
    def test_labels_that_numpy_would_change_come_back_as_they_are(self, model, labels, tmp_path):
        classifier = model.adapt(list(tiny_set().images[: len(labels), 0]), labels)
        classifier.save(tmp_path / "one.safetensors")
        for one in (classifier, FewShotClassifier.load(tmp_path / "one.safetensors")):
            assert one.classes.tolist() == labels
            assert set(one.predict(list(tiny_set().images[:5, 0])).tolist()) <= set(labels)

    def test_a_model_in_training_mode_answers_as_in_evaluation_and_learns_nothing(self):
        model = FewShotModel("conv4snp", "relationnet").train()
        pictures = list(tiny_set().images[:, 0])
        classifier = model.adapt(pictures[:4], [0, 1, 0, 1])
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        together = classifier.predict_proba(pictures[4:9])
        one_by_one = np.concatenate([classifier.predict_proba(pictures[i : i + 1]) for i in range(4, 9)])
        np.testing.assert_allclose(one_by_one, together, atol=1e-5)
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert model.training


class TestAdding:
    def test_equals_adapting_to_all(self, model):
        images, queries = pictures(), pictures(seed=1)
        added = model.adapt(images[:4], LABELS[:4]).add(images[4:], LABELS[4:])
        whole = model.adapt(images, LABELS)
        assert added.classes.tolist() == whole.classes.tolist() == ["ant", "cat", "dog"]
        np.testing.assert_allclose(added.predict_proba(queries), whole.predict_proba(queries), rtol=1e-5)

    def test_leaves_the_classifier_as_it_was(self, model):
        classifier, queries = model.adapt(pictures((2, 2)), LABELS[:4]), pictures(seed=1)
        before = classifier.predict_proba(queries)
        classifier.add(pictures((1,), seed=2), ["owl"])
        assert classifier.classes.tolist() == ["cat", "dog"]
        np.testing.assert_array_equal(classifier.predict_proba(queries), before)

    def test_a_label_of_another_type_changes_no_label(self, model):
        classifier = model.adapt(pictures((1, 1)), [1, 2]).add(pictures((1,), seed=2), ["owl"])
        assert classifier.classes.tolist() == [1, 2, "owl"]

    def test_mismatched_labels_are_refused(self, model):
        with pytest.raises(UserError, match="There are 1 images and 2 labels"):
            model.adapt(pictures((1, 1)), [1, 2]).add(pictures((1,)), [1, 2])


class TestHeadOptions:
    def test_change_the_head_and_keep_what_it_learned(self, model):
        with torch.no_grad():
            model.head.log_beta.fill_(0.7)
        model.set_head_options({"predictive": "mc", "n_samples": 4})
        assert (model.head.predictive, model.head.n_samples) == ("mc", 4)
        assert model.head.log_beta.item() == pytest.approx(0.7)
        assert model.config()["head_options"] == {"predictive": "mc", "n_samples": 4}

    def test_none_leaves_an_option(self, model):
        model.set_head_options({"n_samples": 4})
        model.set_head_options({"predictive": "probit", "n_samples": None})
        assert model.head_options == {"n_samples": 4, "predictive": "probit"}

    def test_where_learning_started_cannot_be_changed(self, model):
        with pytest.raises(UserError, match="beta of head 'gpldla' changes its learned parameters"):
            model.set_head_options({"beta": 50.0})
        assert "beta" not in model.head_options

    def test_nothing_given_keeps_the_head(self, model):
        head = model.head
        model.set_head_options({"predictive": None})
        assert model.head is head

    @pytest.mark.parametrize("training", [True, False])
    def test_the_mode_stays(self, model, training):
        model.train(training)
        model.set_head_options({"n_samples": 4})
        assert model.head.training is training

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"predictive": "mcc"}, r"There is no predictive 'mcc'; did you mean 'mc'\?"),
            ({"n_samples": -1}, "n_samples must be a whole number of at least 1, not -1"),
            ({"samples": 3}, r"has no option 'samples'; did you mean 'n_samples'\?"),
        ],
    )
    def test_a_wrong_one_leaves_the_model_as_it_was(self, model, options, message):
        before, head = model.config(), model.head
        with pytest.raises(UserError, match=message):
            model.set_head_options(options)
        assert model.config() == before
        assert model.head is head

    @pytest.mark.parametrize("make", [list, tuple, np.array], ids=["list", "tuple", "array"])
    def test_priors_may_be_any_row_of_numbers(self, model, make):
        model.set_head_options({"priors": make([0.98, 0.01, 0.01])})
        assert model.adapt(pictures(), LABELS).predict_proba(pictures(seed=1))[:, 0].mean() > 0.5

    @pytest.mark.parametrize("priors", ["even", ["a", "b", "c"], [1, -1, 1], [1, np.nan, 1], [1, np.inf, 1]])
    def test_priors_that_are_not_positive_are_refused(self, model, priors):
        with pytest.raises(UserError, match="priors must be 'uniform' or one positive number per class"):
            model.set_head_options({"priors": priors})

    def test_priors_of_another_number_of_classes_are_refused(self, model):
        model.set_head_options({"priors": [0.5, 0.5]})
        with pytest.raises(UserError, match="priors must be 3 positive numbers, one per class"):
            model.adapt(pictures(), LABELS)

    def test_monte_carlo_comes_near_the_deterministic_predictive(self, model):
        queries = pictures(seed=1)
        exact = model.adapt(pictures(), LABELS).predict_proba(queries)
        model.set_head_options({"predictive": "mc", "n_samples": 4000})
        torch.manual_seed(0)
        sampled = model.adapt(pictures(), LABELS).predict_proba(queries)
        assert np.abs(exact - sampled).max() < 0.03


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UserError, match=r"There is no backbone 'conv4x'; did you mean 'conv4s?'\?"):
        FewShotModel("conv4x")
    with pytest.raises(UserError, match=r"There is no head 'proto'; did you mean 'protonet'\?"):
        FewShotModel("conv4s", "proto")


def test_a_model_without_parameters_has_a_device():
    assert FewShotModel("pixels", "protonet").device == torch.device("cpu")


def test_a_model_of_another_backbone_version_is_refused(tmp_path):
    model = FewShotModel("conv4s")
    config = model.config()
    config["preprocessing"]["mean"] = [0.5]
    save_as_before(model, tmp_path, config)
    with pytest.raises(UserError, match="other preprocessing of conv4s than is installed"):
        FewShotModel.from_pretrained(tmp_path)


def test_a_photograph_turned_by_its_exif_note_is_turned(tmp_path):
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    upright.rotate(90).save(tmp_path / "turned.png", exif=exif)
    upright.save(tmp_path / "upright.png")
    model = FewShotModel("pixels", "protonet")
    turned, straight = model.embed([tmp_path / "turned.png", tmp_path / "upright.png"])
    torch.testing.assert_close(turned, straight)


@pytest.mark.parametrize("head", ["gpldla", "protonet", "gpdkt", "laplace", "relationnet", "maml"])
@pytest.mark.parametrize("episodes", [1, 2])
def test_the_loss_with_turns_is_the_mean_of_their_losses(head, episodes):
    """Evaluation mode: BatchNorm, which sees all images of an episode together in any order, is left out."""
    torch.manual_seed(0)
    options = {"predictive": "probit"} if head in ("gpldla", "laplace") else {}
    backbone = "conv4snp" if head == "relationnet" else "conv4s"
    model = FewShotModel(backbone, head=head, head_options=options).double().eval()
    ways, shots, queries = 3, 2, 2
    labels, query_labels = (torch.arange(ways).repeat_interleave(k) for k in (shots, queries))
    turns = fold_indices(ways, shots, queries, 4)
    images = torch.rand(episodes, 12, 1, model.preprocessing.size, model.preprocessing.size).double()
    loss, seen = model(images.flatten(0, 1), labels, query_labels, ways, episodes, turns)
    alone = [model(images[e, turn], labels, query_labels, ways) for e in range(episodes) for turn in turns]
    torch.testing.assert_close(loss, torch.stack([loss for loss, _ in alone]).mean())
    torch.testing.assert_close(seen if episodes == 1 else seen[0], alone[0][1])


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan")])
def test_a_missing_label_is_no_class(model, missing):
    with pytest.raises(UserError, match=r"labels\[1\] is missing"):
        model.adapt(pictures((1, 1, 1)), ["a", missing, "b"])


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_is_positive(temperature):
    with pytest.raises(UserError, match="temperature must be a positive number"):
        FewShotModel("pixels", "gpldla-auto", temperature=temperature)


@pytest.mark.parametrize("head", ["gpldla", "maml"])
def test_adapting_leaves_training_flags_and_is_an_evaluation(head):
    torch.manual_seed(0)
    model = FewShotModel("conv4s", head).train()
    model.head.eval()
    flags = [module.training for module in model.modules()]
    proba = model.adapt(pictures(), LABELS).predict_proba(pictures(seed=1))
    assert [module.training for module in model.modules()] == flags
    expected = model.eval().adapt(pictures(), LABELS).predict_proba(pictures(seed=1))
    np.testing.assert_allclose(proba, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_numbers_adapt(model, dtype):
    expected = model.adapt(pictures(), LABELS).predict_proba(pictures(seed=1))
    proba = model.to(dtype).adapt(pictures(), LABELS).predict_proba(pictures(seed=1))
    np.testing.assert_allclose(proba, expected, atol=1e-5 if dtype == torch.float64 else 0.1)


@pytest.mark.parametrize("head", ["gpldla", "maml"])
def test_one_colour_picture_is_not_a_list_of_grey_ones(head):
    model = FewShotModel("conv4s", head).eval()
    colour = list(np.repeat(np.stack(pictures())[..., None], 3, -1))
    with pytest.raises(UserError, match="Give a list of pictures, not a single one"):
        model.adapt(colour, LABELS).predict_proba(colour[0])


def test_all_of_an_adapted_network_moves():
    classifier = FewShotModel("conv4s", "maml").eval().adapt(pictures(), LABELS).to("meta")
    assert {weights.device.type for weights in classifier.posterior.weights.values()} == {"meta"}


def test_a_metric_comes_back(tmp_path):
    matrix = torch.eye(784) + 0.01 * torch.rand(784, 784, generator=torch.Generator().manual_seed(0))
    model = FewShotModel("pixels", "gpldla-auto", head_options={"metric": matrix})
    model.save(tmp_path)
    np.testing.assert_array_equal(
        FewShotModel.from_pretrained(tmp_path).adapt(pictures(), LABELS).predict_proba(pictures(seed=1)),
        model.adapt(pictures(), LABELS).predict_proba(pictures(seed=1)),
    )


@pytest.mark.parametrize("head", ["gpldla", "gpldla-auto"])
def test_monte_carlo_draws_are_part_of_a_classifier(tmp_path, head):
    classifier = FewShotModel("pixels", head, head_options={"predictive": "mc"}).adapt(pictures(), LABELS)
    expected = classifier.predict_proba(pictures(seed=1))
    classifier.save(tmp_path / "c.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(pictures(seed=1)), expected)
