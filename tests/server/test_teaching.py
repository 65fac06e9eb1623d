"""Quality, suggestions, and classifiers as files."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from gpldla.classifier.answers import summarise
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.resolve import resolve_model
from gpldla.server.classifiers import advice
from gpldla.server.settings import Limits
from gpldla.utils.files import tensors_checksum
from tests.server.helpers import client_of, files, new_task, picture, small, teach
from tests.server.test_tasks import is_problem


def classifier_file(tmp_path, *, counts=(3, 3), **options):
    """A classifier by the package itself, and the bytes of its file."""
    pictures = [picture(c, s) for c, count in zip(("black", "white"), counts) for s in range(count)]
    labels = [c for c, count in zip(("black", "white"), counts) for _ in range(count)]
    classifier = resolve_model("pixels").adapt(pictures, labels)
    classifier.save(tmp_path / "own.safetensors", **options)
    return classifier, (tmp_path / "own.safetensors").read_bytes()


def changed(content, change):
    """A classifier's file with other tensors and facts, and the checksum of these."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    info, tensors = json.loads(header["__metadata__"]["info"]), load(content)
    change(tensors, info)
    info["checksum"] = tensors_checksum(tensors, info)
    return save(tensors, {"info": json.dumps(info)})


def upload(client, content, **data):
    sent = {"file": ("birds.safetensors", content, "application/octet-stream")}
    return client.post("/v1/tasks/upload", files=sent, data=data)


def test_quality_is_that_of_leaving_out(client):
    task = new_task(client)
    counts = {"black": 4, "grey": 3, "white": 1}
    for label, count in counts.items():
        teach(client, task, label, count)
    odd = teach(client, task, "grey", 1, seed=77)["examples"][0]["id"]
    client.patch(f"/v1/tasks/{task}/examples/{odd}", json={"label": "black"})  # a mistake
    got = client.get(f"/v1/tasks/{task}/quality").json()

    pictures = [picture(c, s) for c, count in counts.items() for s in range(count)] + [picture("grey", 77)]
    labels = [c for c, count in counts.items() for _ in range(count)] + ["black"]
    classifier = resolve_model("pixels").adapt(pictures, labels)
    proba = classifier.leave_one_out()
    tested = [i for i, label in enumerate(labels) if label != "white"]
    classes = classifier.classes.tolist()
    counted = np.zeros((3, 3), int)
    for i in tested:
        counted[classes.index(labels[i]), proba[i].argmax()] += 1
    assert got["confusion"] == {"labels": classes, "counts": counted.tolist()}
    assert got["tested"] == 8
    assert got["accuracy"] == pytest.approx(np.trace(counted) / 8)
    expected = classifier.expected_accuracy()
    assert got["expected_accuracy"] == pytest.approx(expected.accuracy)
    assert got["interval"] == pytest.approx([expected.low, expected.high])
    assert sum(one["count"] for one in got["reliability"]) == 8
    right = sum(one["accuracy"] * one["count"] for one in got["reliability"])
    assert right == pytest.approx(np.trace(counted))
    sure = sum(one["confidence"] * one["count"] for one in got["reliability"])
    assert sure == pytest.approx(proba[tested].max(1).sum(), abs=1e-3)
    suspects = summarise(classifier, [str(i) for i in range(9)]).suspects
    assert [one.item for one in suspects] == ["8"]
    assert [(one["id"], one["suggested"]) for one in got["suspects"]] == [(odd, "grey")]


def test_quality_needs_a_class_with_two_examples(client):
    task = new_task(client)
    teach(client, task, "black", 1)
    teach(client, task, "white", 1)
    assert is_problem(client.get(f"/v1/tasks/{task}/quality"), 409, "single example")


def test_suggestions_are_those_of_the_package(client, taught):
    pool = [picture(c, 40 + i) for i, c in enumerate(("black", "grey", "white", "grey", "black"))]
    got = client.post(f"/v1/tasks/{taught}/suggest", files=files(*pool)).json()
    pictures = [picture(c, s) for c in ("black", "white") for s in range(3)]
    classifier = resolve_model("pixels").adapt(pictures, ["black"] * 3 + ["white"] * 3)
    chosen = classifier.suggestions(classifier.model.embed(pool), 5)
    assert [one["index"] for one in got["suggestions"]] == chosen.indices.tolist()
    assert [one["score"] for one in got["suggestions"]] == pytest.approx(chosen.gain.tolist(), abs=1e-4)


def test_a_downloaded_classifier_answers_alike_everywhere(client, taught, tmp_path):
    query = picture("white", 31)
    before = client.post(f"/v1/tasks/{taught}/predict", files=files(query)).json()["predictions"]
    client.patch(f"/v1/tasks/{taught}", json={"name": 'Löwe / "x"\u2028'.strip()})
    answer = client.get(f"/v1/tasks/{taught}/classifier")
    assert answer.headers["content-disposition"].startswith('attachment; filename="L-we-x.safetensors"')
    (tmp_path / "a.safetensors").write_bytes(answer.content)
    own = FewShotClassifier.load(tmp_path / "a.safetensors").predict_proba([query])[0]
    shown = {one["label"]: one["probability"] for one in before[0]["probabilities"]}
    assert shown == pytest.approx(dict(zip(["black", "white"], own.tolist())), abs=1e-4)

    task = upload(client, answer.content, name="Again").json()
    assert (task["name"], task["examples"], task["revision"]) == ("Again", 6, 0)
    after = client.post(f"/v1/tasks/{task['id']}/predict", files=files(query)).json()["predictions"]
    for one in (*before, *after):
        for near in one["nearest"]:
            near.pop("id"), near.pop("thumbnail")
    assert after == before
    # It goes on to be taught.
    assert teach(client, task["id"], "grey")["task"]["examples"] == 9


def test_a_downloaded_graph_gives_the_same_probabilities(client, taught):
    runtime = pytest.importorskip("onnxruntime")
    content = client.get(f"/v1/tasks/{taught}/classifier?format=onnx").content
    session = runtime.InferenceSession(content)
    model = resolve_model("pixels")
    from gpldla.data.pictures import picture_tensor

    pixels = picture_tensor(picture("black", 8), model.preprocessing).permute(1, 2, 0)[None].numpy()
    (proba,) = session.run(["probabilities"], {"images": pixels})
    got = client.post(f"/v1/tasks/{taught}/predict", files=files(picture("black", 8))).json()["predictions"]
    shown = {one["label"]: one["probability"] for one in got[0]["probabilities"]}
    assert shown == pytest.approx(dict(zip(["black", "white"], proba[0].tolist())), abs=1e-3)
    assert is_problem(client.get(f"/v1/tasks/{taught}/classifier?format=pickle"), 422, "format")


def test_texts_come_back(client):
    task = new_task(client, "texts")
    for label, texts in (("a", ["aa/b", "aaac"]), ("z", ["zzzy", "zz z"])):
        client.post(f"/v1/tasks/{task}/examples", json={"label": label, "texts": texts})
    content = client.get(f"/v1/tasks/{task}/classifier").content
    back = upload(client, content).json()
    assert (back["kind"], back["name"]) == ("texts", "birds")
    listed = client.get(f"/v1/tasks/{back['id']}/examples").json()["examples"]
    assert [one["text"] for one in listed] == ["aa/b", "aaac", "zzzy", "zz z"]


def test_what_unlabelled_pictures_taught_is_kept(client, tmp_path):
    pool = [picture(c, 60 + i) for c in ("black", "white") for i in range(20)]
    classifier = resolve_model("pixels").adapt(
        [picture("black"), picture("white")], ["black", "white"], unlabelled=pool
    )
    classifier.save(tmp_path / "a.safetensors")
    task = upload(client, (tmp_path / "a.safetensors").read_bytes()).json()["id"]
    got = client.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9))).json()["predictions"]
    shown = {one["label"]: one["probability"] for one in got[0]["probabilities"]}
    own = classifier.predict_proba([picture("white", 9)])[0].tolist()
    assert shown == pytest.approx(dict(zip(["black", "white"], own)), abs=1e-4)


class TestForeignFiles:
    def test_what_is_no_classifier_is_refused(self, client, tmp_path):
        _, content = classifier_file(tmp_path)
        for wrong in (
            b"",
            b"x",
            bytes(8),
            b"\xff" * 8,
            content[:-1],
            content[:100],
            save({}),
            content + b"x",
        ):
            answer = upload(client, wrong)
            assert is_problem(answer, 422)
            assert "/tmp" not in answer.text
            assert str(tmp_path) not in answer.text

    @pytest.mark.parametrize("bit", [9, 200, -5])
    def test_a_damaged_one_is_refused(self, client, tmp_path, bit):
        content = bytearray(classifier_file(tmp_path)[1])
        content[bit] ^= 1
        assert is_problem(upload(client, bytes(content)), 422)

    def test_one_without_examples_or_with_another_network_is_refused(self, client, tmp_path):
        assert is_problem(
            upload(client, classifier_file(tmp_path, support=False)[1]), 422, "without its examples"
        )
        pictures = [picture(c) for c in ("black", "white")]
        resolve_model("omniglot-emnist-conv4s-1shot").adapt(pictures, ["a", "b"]).save(
            tmp_path / "b.safetensors"
        )
        content = (tmp_path / "b.safetensors").read_bytes()
        assert is_problem(upload(client, content), 422, "another network")

    @pytest.mark.parametrize("name", ["timm:resnet50", "all-minilm-l6-v2", "../../etc"])
    def test_a_network_that_it_names_is_not_loaded(self, client, tmp_path, monkeypatch, name):
        def fail(*args, **options):
            raise AssertionError("loaded")

        content = changed(classifier_file(tmp_path)[1], lambda t, info: info["model"].update(backbone=name))
        monkeypatch.setattr(FewShotClassifier, "load", fail)
        assert is_problem(upload(client, content), 422, "another network")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("support", torch.full((6, 784), float("nan"))),
            ("support", torch.full((6, 784), 1e38)),
            ("support", torch.zeros(6, 784, dtype=torch.int64)),
            ("support", torch.zeros(6, 3)),
            ("support", torch.zeros(0, 784)),
            ("numbers", torch.tensor([0, 0, 0, 1, 1, -1])),
            ("numbers", torch.tensor([0, 0, 0, 1, 1, 5])),
            ("numbers", torch.tensor([0.0, 0, 0, 1, 1, 1])),
            ("numbers", torch.tensor([[0, 0, 0, 1, 1, 1]])),
            ("unlabelled", torch.full((60, 784), float("inf"))),
            ("unlabelled", torch.zeros(60, 784, dtype=torch.bool)),
        ],
    )
    def test_forged_tensors_do_no_harm(self, client, tmp_path, name, value):
        content = changed(classifier_file(tmp_path)[1], lambda tensors, info: tensors.update({name: value}))
        answer = upload(client, content)
        if answer.status_code == 201:  # numbers that are merely absurd
            task = answer.json()["id"]
            for path in ("quality", "classifier"):
                assert client.get(f"/v1/tasks/{task}/{path}").status_code in (200, 409)
            predicted = client.post(f"/v1/tasks/{task}/predict", files=files(picture()))
            assert predicted.status_code in (200, 409)
        else:
            assert is_problem(answer, 422)

    @pytest.mark.parametrize(
        "facts",
        [
            {"classes": ["a", " a "]},
            {"classes": ["", "b"]},
            {"classes": ["unsure", "b"]},
            {"classes": [["a"], "b"]},
            {"classes": 3},
            {"items": ["x"]},
            {"model": []},
            {"model": {"backbone": "pixels"}},
            {"temperature": -1},
            {"novelty": ["a", {}]},
        ],
    )
    def test_forged_facts_are_refused(self, client, tmp_path, facts):
        content = changed(classifier_file(tmp_path)[1], lambda tensors, info: info.update(facts))
        assert is_problem(upload(client, content), 422)

    def test_numbers_become_names(self, client, tmp_path):
        content = changed(classifier_file(tmp_path)[1], lambda t, info: info.update(classes=[1, 2]))
        task = upload(client, content).json()
        assert [one["name"] for one in task["classes"]] == ["1", "2"]

    def test_too_many_examples_are_refused(self, tmp_path):
        with client_of(small(limits=Limits(items=5))) as client:
            assert is_problem(upload(client, classifier_file(tmp_path)[1]), 409, "at most 5")
            assert client.get("/v1/tasks").json() == {"tasks": []}


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, "at least two classes"),
        ({"a": 9}, "a second class, besides a"),
        ({"a": 9, "b": 1}, "a second example of b"),
        ({"a": 4, "b": 3}, "Add to b, which has 3"),
        ({"a": 4, "b": 4}, "Add to each class: 5 texts"),
        ({"a": 5, "b": 9}, "Try new texts"),
    ],
)
def test_advice_names_what_helps_most(counts, words):
    assert words in advice("texts", counts)
