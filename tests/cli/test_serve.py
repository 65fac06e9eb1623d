"""The command `gpldla serve`, as processes that are started, asked and stopped."""

import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server.helpers import files, picture
from tests.server.processes import SMALL, serving

TOKEN = "0123456789abcdef0123"


def taught_task(client):
    task = client.post("/v1/tasks", json={"kind": "images"}).json()["id"]
    for label in ("black", "white"):
        sent = files(*[picture(label, seed) for seed in range(3)])
        assert client.post(f"/v1/tasks/{task}/examples", data={"label": label}, files=sent).status_code == 201
    return task


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--host", "::"], "--no-token"),
        (["--allowed-host", "birds.example.org"], "Through a proxy"),
        (["--workers", "2"], "--data-dir"),
        (["--limit", "pixel=3"], "did you mean 'pixels'"),
        (["--limit", "pixels=0"], "pixels must be a whole number"),
        (["--limit", "pixels=-1"], "NAME=NUMBER"),
        (["--limit", "pixels=999999999"], "pixels"),
        (["--allow-origin", "example.org"], "no origin"),
        (["--allow-origin", "https://example.org/path"], "no origin"),
        (["--log-format", "xml"], "text or json"),
        (["--image-model", "none", "--text-model", "none"], "No model"),
        (["--image-model", "pixel"], "did you mean 'pixels'"),
        (["--text-model", "pixels"], "reads pictures"),
        (["missing.safetensors"], "There is no file"),
        (["missing.safetensors", "--data-dir", "x"], "read-only"),
        (["--database", "nonsense"], "database"),
        (["--database", "sqlite:////dev/null/tasks.sqlite"], "cannot be opened"),
        (["--host", "256.1.1.1", "--no-token"], "cannot listen"),
        (["--token-file", "missing"], "cannot be read"),
    ],
)
def test_wrong_settings_end_with_a_sentence(refused, monkeypatch, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPLDLA_TOKEN", raising=False)
    assert words in refused("serve", *SMALL, *arguments)  # of an option given twice the last counts


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "with space " * 3, "ü" * 20])
def test_a_weak_token_is_refused(refused, monkeypatch, token):
    monkeypatch.setenv("GPLDLA_TOKEN", token)
    line = refused("serve", "--host", "0.0.0.0", *SMALL)
    assert "at least 16" in line
    assert not token or token not in line


def test_a_port_in_use_is_named(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in refused("serve", "--port", port, *SMALL)


def test_what_is_under_way_is_finished_when_it_is_stopped(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "tasks"
    with serving(log, "--data-dir", folder, "--log-format", "json") as (process, client):
        task = taught_task(client)
        request = client.build_request("POST", f"/v1/tasks/{task}/predict", files=files(picture()))
        body, stopped = request.read(), threading.Event()

        def slowly():
            yield body[:100]
            stopped.wait(20)
            yield body[100:]

        def ask():
            with httpx.Client(base_url=client.base_url, timeout=30) as own:
                headers = {"Content-Type": request.headers["content-type"]}
                return own.post(request.url, content=slowly(), headers=headers)

        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert process.poll() is None
            with pytest.raises(httpx.TransportError), httpx.Client(base_url=client.base_url) as late:
                late.get("/healthz")
            stopped.set()
            assert asked.result().status_code == 200
        process.wait(20)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(line.get("path", "").endswith("/predict") for line in lines) == 1
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    with serving(log, "--data-dir", folder) as (process, client):
        assert [one["id"] for one in client.get("/v1/tasks").json()["tasks"]] == [task]
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_several_workers_share_a_folder(tmp_path):
    arguments = ("--workers", 2, "--data-dir", tmp_path / "tasks", "--log-format", "text")
    with serving(tmp_path / "log", *arguments, environment={"GPLDLA_TOKEN": TOKEN}) as (_, client):
        assert client.get("/v1/tasks").status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        task = taught_task(client)

        def ask(seed):
            with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=30) as own:
                return own.post(f"/v1/tasks/{task}/predict", files=files(picture("white", 9))).json()

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(40)))
        assert all(one == answers[0] for one in answers)
        rows = client.get("/metrics").text.splitlines()
        counted = [row for row in rows if row.startswith("gpldla_requests_total") and "/predict" in row]
        assert [float(row.split()[-1]) for row in counted] == [40.0]  # of both workers together
