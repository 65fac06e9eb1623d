"""Tasks and examples over HTTP, each answer compared with the package's own."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.classifier.answer import answer
from gpldla.classifier.resolve import resolve_model
from gpldla.server.problems import MEDIA_TYPE
from gpldla.server.settings import Limits
from tests.server.helpers import client_of, files, new_task, picture, small, teach


def is_problem(response, status, *words):
    """Whether a response is a problem of this status whose detail has these words."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == MEDIA_TYPE
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail"}
    assert body["status"] == status
    for word in words:
        assert word in body["detail"]
    return True


def test_the_server_says_what_it_does(client):
    facts = client.get("/v1/server").json()
    assert facts["kinds"] == ["images", "texts"]
    assert facts["backbones"] == {"images": "pixels", "texts": "letter-counts"}
    assert facts["limits"]["upload_bytes"] == Limits().upload_bytes
    assert not facts["token_required"]
    assert not facts["read_only"]


def test_a_task_is_made_listed_renamed_and_deleted(client):
    made = client.post("/v1/tasks", json={"kind": "images", "name": "  Bïrds "})
    assert made.status_code == 201
    task = made.json()
    assert (task["name"], task["revision"], task["classes"], task["examples"]) == ("Bïrds", 0, [], 0)
    assert task["expires"] > task["created"]
    assert task in client.get("/v1/tasks").json()["tasks"]
    renamed = client.patch(f"/v1/tasks/{task['id']}", json={"name": "鳥"}).json()
    assert (renamed["name"], renamed["revision"]) == ("鳥", 1)
    assert client.delete(f"/v1/tasks/{task['id']}").status_code == 204
    assert is_problem(client.get(f"/v1/tasks/{task['id']}"), 404, "no such task")
    assert is_problem(client.delete(f"/v1/tasks/{task['id']}"), 404)


def test_answers_are_those_of_a_classifier_fitted_to_the_same_pictures(client):
    task = new_task(client)
    added = [
        teach(client, task, label, 3, seed) for label, seed in (("white", 0), ("black", 10), ("grey", 20))
    ]
    assert added[-1]["task"]["revision"] == 3
    assert added[-1]["task"]["classes"] == [
        {"name": name, "examples": 3} for name in ("white", "black", "grey")
    ]
    queries = [picture("grey", 99), picture("black", 98)]
    got = client.post(f"/v1/tasks/{task}/predict", files=files(*queries)).json()
    assert got["revision"] == 3

    pictures = [picture(c, s + i) for c, s in (("white", 0), ("black", 10), ("grey", 20)) for i in range(3)]
    model = resolve_model("pixels")
    classifier = model.adapt(pictures, [c for c in ("white", "black", "grey") for _ in range(3)])
    proba, none = classifier.predict_proba(queries), classifier.none_of_these(queries, prevalence=PREVALENCE)
    expected = answer(proba, none, ["a", "b"], classifier.classes.tolist(), MAX_ERROR)
    for shown, one in zip(got["predictions"], expected):
        assert shown["label"] == one.label
        assert shown["unsure"] == one.unsure
        assert shown["none_of_these"] == pytest.approx(one.none_of_these, abs=1e-4)
        probabilities = {entry["label"]: entry["probability"] for entry in shown["probabilities"]}
        assert probabilities == pytest.approx(one.probabilities, abs=1e-4)
        assert [*probabilities.values()] == sorted(probabilities.values(), reverse=True)
    rows = model.embed([*pictures, queries[0]])
    phi = classifier.task.in_chunks(rows, classifier.posterior.representation).numpy()
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    cosine = phi[:-1] @ phi[-1]
    listed = client.get(f"/v1/tasks/{task}/examples").json()["examples"]
    nearest = got["predictions"][0]["nearest"]
    assert [one["id"] for one in nearest] == [listed[i]["id"] for i in np.argsort(-cosine)[:5]]
    assert [one["similarity"] for one in nearest] == pytest.approx(
        np.sort(cosine)[::-1][:5].tolist(), abs=1e-4
    )


def test_texts_are_taught_and_answered(client):
    task = new_task(client, "texts")
    for label, texts in (("a", ["aaab", "aaac", "aaaa a"]), ("z", ["zzzy", "zzxz", "zz z"])):
        body = {"label": label, "texts": texts}
        assert client.post(f"/v1/tasks/{task}/examples", json=body).status_code == 201
    listed = client.get(f"/v1/tasks/{task}/examples").json()["examples"]
    assert [(one["label"], one["text"], one["thumbnail"]) for one in listed][2] == ("a", "aaaa a", None)
    got = client.post(f"/v1/tasks/{task}/predict", json={"texts": ["zzzz", "aaa"]}).json()
    assert [one["label"] for one in got["predictions"]] == ["z", "a"]
    assert got["predictions"][0]["nearest"][0]["label"] == "z"


def test_one_class_is_not_enough(client):
    task = new_task(client)
    assert is_problem(
        client.post(f"/v1/tasks/{task}/predict", files=files(picture())), 409, "at least two classes"
    )
    shown = teach(client, task, "black")["task"]
    assert "second class, besides black" in shown["advice"]
    refused = client.post(f"/v1/tasks/{task}/predict", files=files(picture()))
    assert is_problem(refused, 409, "second class")


def test_an_example_is_relabelled_removed_and_restored(client, taught):
    listed = client.get(f"/v1/tasks/{taught}/examples").json()["examples"]
    path = f"/v1/tasks/{taught}/examples/{listed[0]['id']}"

    def answers():
        return client.post(f"/v1/tasks/{taught}/predict", files=files(picture("black", 50))).json()

    before = answers()
    relabelled = client.patch(path, json={"label": "white"}).json()
    assert relabelled["example"]["label"] == "white"
    assert {one["name"]: one["examples"] for one in relabelled["task"]["classes"]} == {"white": 4, "black": 2}
    assert answers()["predictions"] != before["predictions"]
    client.patch(path, json={"label": "black"})
    removed = client.delete(path).json()
    assert removed["task"]["examples"] == 5
    assert len(client.get(f"/v1/tasks/{taught}/examples").json()["examples"]) == 5
    assert is_problem(client.delete(path), 404)
    assert is_problem(client.patch(path, json={"label": "white"}), 404)
    restored = client.post(f"{path}/restore").json()
    assert restored["example"] == listed[0]
    assert client.get(f"/v1/tasks/{taught}/examples").json()["examples"] == listed
    assert answers()["predictions"] == before["predictions"]  # undone: the very same classifier
    assert is_problem(client.post(f"{path}/restore"), 404)


def test_classes_are_renamed_merged_and_removed(client, taught):
    teach(client, taught, "grey", 2)
    renamed = client.patch(f"/v1/tasks/{taught}/classes/grey", json={"name": "a/b ü"}).json()
    assert len(renamed["examples"]) == 2
    assert renamed["task"]["classes"][-1] == {"name": "a/b ü", "examples": 2}
    merged = client.patch(f"/v1/tasks/{taught}/classes/a/b%20ü", json={"name": "black"}).json()
    assert {one["name"]: one["examples"] for one in merged["task"]["classes"]} == {"black": 5, "white": 3}
    removed = client.delete(f"/v1/tasks/{taught}/classes/white").json()
    assert removed["task"]["classes"] == [{"name": "black", "examples": 5}]
    assert is_problem(client.delete(f"/v1/tasks/{taught}/classes/white"), 404, "'white'")
    for example in removed["examples"]:
        client.post(f"/v1/tasks/{taught}/examples/{example}/restore")
    assert client.get(f"/v1/tasks/{taught}").json()["examples"] == 8


def test_a_thumbnail_is_small_and_upright(client):
    task = new_task(client)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    wide = picture("black", size=(800, 400), kind="JPEG", exif=exif)
    added = client.post(f"/v1/tasks/{task}/examples", data={"label": "black"}, files=files(wide)).json()
    answer = client.get(added["examples"][0]["thumbnail"])
    assert answer.headers["content-type"] == "image/webp"
    shown = Image.open(BytesIO(answer.content))
    assert shown.size == (80, 160)
    assert not shown.getexif()


def test_adding_is_all_or_nothing(client, taught):
    broken = picture("black", kind="JPEG")[:400]
    sent = [("files", ("good.png", picture(), "image/png")), ("files", ("../bad.jpg", broken, "image/jpeg"))]
    answer = client.post(f"/v1/tasks/{taught}/examples", data={"label": "black"}, files=sent)
    assert is_problem(answer, 422)
    task = client.get(f"/v1/tasks/{taught}").json()
    assert (task["examples"], task["revision"]) == (6, 2)


@pytest.mark.parametrize(
    ("label", "word"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("a\nb", "control"),
        ("x" * 101, "101"),
        ("unsure", "marks unsure"),
        (None, "label"),
    ],
)
def test_labels_that_cannot_be_are_refused(client, taught, label, word):
    data = {} if label is None else {"label": label}
    answer = client.post(f"/v1/tasks/{taught}/examples", data=data, files=files(picture()))
    assert is_problem(answer, 422, word)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 415),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 415),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415),
        (b"PK\x03\x04" + bytes(100), 415),
        (b"\x89PNG\r\n\x1a\n", 422),
        (b"\xff\xd8\xff" + bytes(50), 422),
    ],
)
def test_what_is_no_picture_is_refused(client, taught, content, status):
    answer = client.post(f"/v1/tasks/{taught}/predict", files=files(content, name="../../etc/x.png"))
    assert is_problem(answer, status, "x.png")
    assert "etc" not in answer.text


def test_bodies_of_the_wrong_type_are_refused(client, taught):
    assert is_problem(client.post(f"/v1/tasks/{taught}/predict", json={"texts": ["a"]}), 415, "form")
    texts = new_task(client, "texts")
    for label in ("a", "b"):
        client.post(f"/v1/tasks/{texts}/examples", json={"label": label, "texts": [label]})
    assert is_problem(client.post(f"/v1/tasks/{texts}/predict", files=files(picture())), 415, "JSON")
    for body in (
        {},
        {"texts": []},
        {"texts": [""]},
        {"texts": "a"},
        {"texts": ["a\0"]},
        {"texts": ["a"], "x": 1},
    ):
        assert is_problem(client.post(f"/v1/tasks/{texts}/predict", json=body), 422)
    for raw in (b"", b"{", b"[" * 100_000, b'{"texts": ["\\ud800"]}', b"\xff"):
        sent = client.post(
            f"/v1/tasks/{texts}/predict", content=raw, headers={"Content-Type": "application/json"}
        )
        assert is_problem(sent, 422)
    for raw in (b"", b"--x\r\n", b"--x\r\nContent-Disposition: form-data\r\n\r\n"):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        sent = client.post(f"/v1/tasks/{taught}/predict", content=raw, headers=headers)
        assert sent.status_code in (400, 422), sent.text
    assert is_problem(client.post("/v1/tasks", json={"kind": "sounds"}), 422, "kind")
    assert is_problem(client.get("/v1/tasks/..%2F..%2Fetc%2Fpasswd"), 404)
    for path in ("nothing.js", "..%2Fapp.py", "../app.py", "%2e%2e/app.py", "/etc/passwd", "a%00"):
        assert is_problem(client.get(f"/static/{path}"), 404)
    assert is_problem(client.put("/v1/tasks"), 405)


@pytest.mark.parametrize("part", [b"[],", b'"",', b'{"a":1},'])
def test_a_small_body_cannot_take_long(client, part):
    """Each of a million faults would be described, for minutes, while nobody else is answered."""
    task = new_task(client, "texts")
    raw = b'{"texts": [' + part * (1_000_000 // len(part)) + b'""]}'
    started = time.process_time()
    sent = client.post(f"/v1/tasks/{task}/predict", content=raw, headers={"Content-Type": "application/json"})
    assert is_problem(sent, 413, "texts; send at most 256")
    raw = b"{" + b",".join(b'"%d": 1' % i for i in range(100_000)) + b"}"
    sent = client.post(f"/v1/tasks/{task}/predict", content=raw, headers={"Content-Type": "application/json"})
    assert is_problem(sent, 422, "other fields")
    assert time.process_time() - started < 10
    sent = client.patch(f"/v1/tasks/{task}", content=bytes(5 << 20))
    assert is_problem(sent, 413, "bytes")


def test_limits_hold():
    limits = Limits(
        upload_bytes=60_000,
        pixels=10_000,
        items=6,
        items_per_request=4,
        classes=2,
        tasks=2,
        text_characters=5,
    )
    with client_of(small(limits=limits)) as client:
        task = new_task(client)
        teach(client, task, "black")
        teach(client, task, "white", 2)

        def add(label, *pictures):
            return client.post(f"/v1/tasks/{task}/examples", data={"label": label}, files=files(*pictures))

        assert is_problem(add("grey", picture()), 409, "at most 2 classes")
        assert is_problem(add("black", picture(), picture()), 409, "at most 6 examples")
        assert is_problem(add("black", *[picture()] * 5), 400, "files")
        assert is_problem(add("black", picture(size=(200, 100))), 413, "200 × 100")
        assert is_problem(add("black", bytes(70_000)), 413, "60000 bytes")
        chunks = (bytes(1000) for _ in range(70))  # announces no length
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        sent = client.post(f"/v1/tasks/{task}/predict", content=chunks, headers=headers)
        assert is_problem(sent, 413)
        assert client.get(f"/v1/tasks/{task}").json()["examples"] == 5
        # Removed examples make room for others.
        one = client.get(f"/v1/tasks/{task}/examples").json()["examples"][0]["id"]
        client.delete(f"/v1/tasks/{task}/examples/{one}")
        assert add("black", picture(), picture()).status_code == 201
        texts = new_task(client, "texts")
        assert is_problem(client.post(f"/v1/tasks/{texts}/predict", json={"texts": ["abc"]}), 409)
        long = {"label": "a", "texts": ["abcdef"]}
        assert is_problem(client.post(f"/v1/tasks/{texts}/examples", json=long), 413, "6 characters")
        many = {"label": "a", "texts": ["a"] * 5}
        assert is_problem(client.post(f"/v1/tasks/{texts}/examples", json=many), 413, "5 texts")
        assert is_problem(client.post("/v1/tasks", json={"kind": "texts"}), 409, "delete one")


def test_a_task_ends_when_its_time_is_over():
    with client_of(small(limits=Limits(lifetime_s=1))) as client:
        task = new_task(client)
        assert client.get(f"/v1/tasks/{task}").status_code == 200
        service = client.app.state.service
        with service.store._writing() as connection:
            connection.exec_driver_sql("UPDATE tasks SET expires = expires - 2")
        assert is_problem(client.get(f"/v1/tasks/{task}"), 404)
        assert client.get("/v1/tasks").json() == {"tasks": []}
        assert is_problem(client.patch(f"/v1/tasks/{task}", json={"name": "a"}), 404)
        assert service.store.delete_expired() == 1


def test_many_clients_at_once_lose_nothing(client):
    task = new_task(client)

    def add(number):
        return teach(client, task, ("black", "white")[number % 2], 2, seed=2 * number)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(add, range(16)))
    assert sorted(one["task"]["revision"] for one in answers) == list(range(1, 17))
    ids = {example["id"] for one in answers for example in one["examples"]}
    assert ids == {one["id"] for one in client.get(f"/v1/tasks/{task}/examples").json()["examples"]}
    assert len(ids) == 32


def test_a_folder_keeps_tasks_for_the_next_server_and_for_another_process(tmp_path):
    database = f"sqlite:///{tmp_path / 'tasks.sqlite'}"
    with client_of(small(database=database)) as client:
        task = new_task(client)
        teach(client, task, "black")
        teach(client, task, "white")
        before = client.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9))).json()
        with client_of(small(database=database)) as other:
            assert other.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9))).json() == before
            teach(other, task, "grey")
            after = other.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9))).json()
        # The first one has another classifier in memory, and must see that it is of the past.
        assert client.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9))).json() == after
        assert after["revision"] == 3
    with client_of(small(database=database)) as client:
        assert client.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9))).json() == after
    with client_of(small(database=database, image_model="omniglot-emnist-conv4s-5shot")) as client:
        refused = client.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9)))
        assert is_problem(refused, 409, "another network")
        added = client.post(f"/v1/tasks/{task}/examples", data={"label": "a"}, files=files(picture()))
        assert is_problem(added, 409, "another network")


def test_a_file_is_served_read_only(tmp_path):
    model = resolve_model("pixels")
    pictures = [picture(colour, i) for colour in ("black", "white") for i in range(3)]
    classifier = model.adapt(pictures, ["black"] * 3 + ["white"] * 3)
    classifier.save(tmp_path / "shades.safetensors")
    with client_of(small(file=str(tmp_path / "shades.safetensors"))) as client:
        facts = client.get("/v1/server").json()
        assert (facts["read_only"], facts["classes"], facts["kinds"]) == (
            True,
            ["black", "white"],
            ["images"],
        )
        answer = client.post("/predict", files=files(picture("white", 7))).json()["predictions"][0]
        probabilities = {one["label"]: one["probability"] for one in answer["probabilities"]}
        expected = classifier.predict_proba([picture("white", 7)])[0].tolist()
        assert probabilities == pytest.approx(dict(zip(["black", "white"], expected)), abs=1e-4)
        assert len(answer["nearest"]) == 5
        assert is_problem(client.get("/v1/tasks"), 404)
        assert is_problem(client.post("/predict", files=files(b"x")), 415)
        assert client.get("/readyz").json() == {"status": "ready"}
    classifier.save(tmp_path / "bare.safetensors", support=False)
    with client_of(small(file=str(tmp_path / "bare.safetensors"))) as client:
        answer = client.post("/predict", files=files(picture("white", 7))).json()["predictions"][0]
        assert (answer["label"], answer["nearest"]) == ("white", [])


def test_past_its_bounds_the_server_asks_to_wait(client, taught, monkeypatch):
    service = client.app.state.service

    def refused():
        answer = client.post(f"/v1/tasks/{taught}/predict", files=files(picture()))
        assert is_problem(answer, 429, "busy")
        assert int(answer.headers["Retry-After"]) >= 1

    with monkeypatch.context() as patch:  # too many calls for the threads
        patch.setattr(service._work, "_calls", 10_000)
        refused()
    with monkeypatch.context() as patch:  # too many pictures for the network
        patch.setattr(service.batchers["images"], "_in_work", 10_000)
        refused()
    with monkeypatch.context() as patch:  # too many requests
        patch.setattr("gpldla.server.observing.MOST_UNDER_WAY", 0)
        refused()
    with monkeypatch.context() as patch:  # too many ONNX files
        patch.setattr(service.graphs, "_calls", 10_000)
        answer = client.get(f"/v1/tasks/{taught}/classifier?format=onnx")
        assert is_problem(answer, 429, "busy")
    assert client.post(f"/v1/tasks/{taught}/predict", files=files(picture())).status_code == 200


def test_nobody_waits_for_the_files_of_others(client, taught, monkeypatch):
    may_go_on = threading.Event()

    def slow(taught, form):
        may_go_on.wait(20)
        return b"file"

    monkeypatch.setattr("gpldla.server.routes.files.file_of", slow)
    paths = [f"/v1/tasks/{taught}/classifier{query}" for query in ("", "?format=onnx")]
    with ThreadPoolExecutor(8) as pool:
        files_of_others = [pool.submit(client.get, path) for path in paths * 3]
        answer = client.post(f"/v1/tasks/{taught}/predict", files=files(picture()))
        assert answer.status_code == 200
        assert not any(one.done() for one in files_of_others)
        may_go_on.set()
        assert [one.result().status_code for one in files_of_others] == [200] * 6


def test_all_bodies_together_are_bounded_and_forgotten():
    with client_of(small(limits=Limits(bytes_in_flight=20_000))) as client:
        task = new_task(client)
        large = b"\xff\xd8\xff" + bytes(30_000)
        for _ in range(3):
            answer = client.post(f"/v1/tasks/{task}/examples", data={"label": "a"}, files=files(large))
            assert is_problem(answer, 429)
        teach(client, task, "black", 2)


@pytest.mark.parametrize("chunk", [None, b" "])
def test_a_body_that_comes_too_slowly_is_not_waited_for(monkeypatch, chunk):
    monkeypatch.setattr("gpldla.server.bodies.SECONDS_TO_SEND", 0.05)
    sent = []

    async def ask(app):
        async def receive():
            await asyncio.sleep(10 if chunk is None else 0.01)
            return {"type": "http.request", "body": chunk, "more_body": True}

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            **{"type": "http", "method": "POST", "path": "/v1/tasks", "raw_path": b"/v1/tasks"},
            **{
                "query_string": b"",
                "headers": headers,
                "http_version": "1.1",
                "scheme": "http",
                "root_path": "",
            },
        }
        await app(scope, receive, send)

    with client_of() as client:
        asyncio.run(ask(client.app))
    assert sent[0]["status"] == 408
