"""Both clients against a server in this process."""

import asyncio
import inspect
from pathlib import Path

import httpx
import pytest

from gpldla.client import AsyncClient, Client, ServerError
from gpldla.utils.errors import UserError
from tests.server.helpers import client_of, picture, small

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def app():
    with client_of(small(token=TOKEN)) as client:
        yield client


@pytest.fixture
def client(app):
    with Client("http://127.0.0.1", token=TOKEN, transport=through(app)) as client:
        yield client


def through(app):
    """A transport to a server in this process."""

    def handle(request):
        sent = app.request(
            request.method, str(request.url), content=request.read(), headers=dict(request.headers)
        )
        return httpx.Response(sent.status_code, headers=dict(sent.headers), content=sent.content)

    return httpx.MockTransport(handle)


def answers(*responses):
    """A transport that gives these responses in turn, and counts."""
    waiting = list(responses)

    def handle(request):
        return waiting.pop(0)

    return httpx.MockTransport(handle), waiting


def test_a_whole_visit(client, tmp_path):
    facts = client.server()
    assert facts.token_required
    assert facts.limits["items"] == 2000
    task = client.create_task("images", "Shades")
    (tmp_path / "b 1.png").write_bytes(picture("black", 1))
    given = [tmp_path / "b 1.png", str(tmp_path / "b 1.png"), picture("black", 2)]
    added = client.add(task.id, "a/b", pictures=given)
    assert [one.name for one in added] == ["b 1.png", "b 1.png", "picture 3"]
    client.add(task.id, "white", pictures=[picture("white", seed) for seed in range(3)])
    shown = client.rename_class(task.id, "a/b", "black ü")
    assert shown.classes == {"black ü": 3, "white": 3}
    assert client.thumbnail(task.id, added[0].id)[8:12] == b"WEBP"
    assert client.relabel(task.id, added[0].id, "white").classes == {"black ü": 2, "white": 4}
    assert client.remove(task.id, added[0].id).examples == 5
    assert client.restore(task.id, added[0].id).examples == 6
    assert client.relabel(task.id, added[0].id, "black ü").revision == 7
    (one,) = client.predict(task.id, pictures=[picture("white", 9)])
    assert one.label == "white"
    assert sum(one.probabilities.values()) == pytest.approx(1)
    assert len(one.nearest) == 5
    quality = client.quality(task.id)
    assert quality.labels == ["black ü", "white"]
    assert quality.tested == sum(map(sum, quality.confusion)) == 6
    ranked = client.suggest(task.id, pictures=[picture("grey", 3), picture("white", 4)])
    assert sorted(one.index for one in ranked) == [0, 1]
    content = client.download(task.id)
    (tmp_path / "c.safetensors").write_bytes(content)
    for file in (content, tmp_path / "c.safetensors"):
        again = client.upload(file, "Again")
        assert (again.name, again.classes) == ("Again", {"black ü": 3, "white": 3})
    assert {one.name for one in client.tasks()} == {"Shades", "Again"}
    assert client.rename_task(task.id, "Tints").name == client.task(task.id).name == "Tints"
    assert client.remove_class(task.id, "white").classes == {"black ü": 3}
    assert len(client.examples(task.id)) == 3
    client.delete_task(task.id)
    with pytest.raises(ServerError, match="no such task") as refused:
        client.task(task.id)
    assert refused.value.status == 404
    assert refused.value.request_id


def test_a_visit_that_does_not_wait(app):
    async def visit():
        transport = httpx.ASGITransport(app.app)
        async with AsyncClient("http://127.0.0.1", token=TOKEN, transport=transport) as client:
            task = await client.create_task("texts")
            texts = {"a": ["aab", "aac"], "z": ["zzy", "zz z"]}
            await asyncio.gather(*(client.add(task.id, label, texts=some) for label, some in texts.items()))
            got = await asyncio.gather(*(client.predict(task.id, texts=[text]) for text in ("aaa", "zzz")))
            with pytest.raises(ServerError, match="takes texts"):
                await client.predict(task.id, pictures=[picture()])
            return [answer[0].label for answer in got]

    assert asyncio.run(visit()) == ["a", "z"]


def test_both_have_the_same_methods():
    def methods(kind):
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(function) for name, function in found if name[0] != "_"}

    assert methods(Client) == methods(AsyncClient)
    assert len(methods(Client)) == 20
    public = {name for name in methods(Client) if name != "close"}
    assert all(inspect.iscoroutinefunction(getattr(AsyncClient, name)) for name in public)


def test_a_wrong_token_is_refused(app):
    with Client("http://127.0.0.1", token="wrong", transport=through(app)) as client:
        with pytest.raises(ServerError, match="token") as refused:
            client.tasks()
        assert refused.value.status == 401


def test_a_busy_server_is_asked_again(monkeypatch):
    slept = []
    monkeypatch.setattr("gpldla.client.synchronous.time.sleep", slept.append)
    busy = httpx.Response(429, headers={"Retry-After": "2"}, json={"detail": "busy"})
    transport, left = answers(busy, busy, httpx.Response(200, json={"tasks": []}))
    assert Client(transport=transport).tasks() == []
    assert (slept, left) == ([2.0, 2.0], [])
    transport, left = answers(*[busy] * 5)
    with pytest.raises(ServerError, match="busy"):
        Client(transport=transport, retries=3).tasks()
    assert len(left) == 1
    for headers in ({}, {"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}, {"Retry-After": "86400"}):
        transport, left = answers(httpx.Response(429, headers=headers, json={"detail": "busy"}), busy)
        with pytest.raises(ServerError):
            Client(transport=transport).tasks()
        assert len(left) == 1


@pytest.mark.parametrize("response", [httpx.Response(502, text="<html>"), httpx.Response(500, json=["a"])])
def test_what_a_proxy_answers_is_an_error_too(response):
    with pytest.raises(ServerError, match=f"answered {response.status_code}"):
        Client(transport=answers(response)[0]).tasks()


def test_fields_of_later_servers_do_no_harm():
    facts = {
        **dict.fromkeys(("id", "kind", "name", "created", "expires", "advice"), "x"),
        **{"revision": 0, "examples": 0, "classes": [], "colour": "blue"},
    }
    assert Client(transport=answers(httpx.Response(200, json=facts))[0]).task("x").advice == "x"


def test_wrong_input_is_refused_before_anything_is_sent():
    client = Client(transport=answers()[0])
    for options in ({}, {"pictures": [b"x"], "texts": ["x"]}, {"texts": "x"}, {"pictures": Path("x")}):
        with pytest.raises(UserError, match="Give"):
            client.predict("x", **options)
    with pytest.raises(UserError, match="no pictures"):
        client.add("x", "a", pictures=[])
    with pytest.raises(UserError, match=r"missing\.png cannot be read"):
        client.add("x", "a", pictures=["missing.png"])
