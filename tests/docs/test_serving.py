"""What docs/serving.md says is so, and what the container runs works where nothing else is installed."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import venv
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
import uvicorn

from benchmarks import serving
from gpldla.client import Client
from gpldla.server.app import create_app
from gpldla.server.settings import Limits
from tests.server.helpers import letter_counts, picture, small
from tests.server.processes import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text("utf-8")


@pytest.fixture(scope="module", autouse=True)
def texts():
    with letter_counts():
        yield


@pytest.fixture
def server():
    """The address of a server with small networks."""
    config = uvicorn.Config(create_app(small()), port=free_port(), log_level="error")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
        assert thread.is_alive()
    yield f"http://127.0.0.1:{config.port}"
    running.should_exit = True
    thread.join(20)


@pytest.fixture
def birds(tmp_path, monkeypatch):
    """The pictures that the page names."""
    for name, colour, seed in (("wren", "black", 0), ("robin", "white", 5)):
        for number in (1, 2):
            (tmp_path / f"{name}-{number}.jpg").write_bytes(picture(colour, seed + number, kind="JPEG"))
    (tmp_path / "new.jpg").write_bytes(picture("white", 9, kind="JPEG"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_its_curl_lines_work(server, birds):
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 5
    script = "\necho\n".join(["set -euo pipefail", *blocks]).replace("http://127.0.0.1:8000", server)
    script = re.sub(r"^(curl .*)$", r"\1; echo", script, flags=re.M)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr + done.stdout
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers[1]["task"]["classes"] == [{"name": name, "examples": 2} for name in ("wren", "robin")]
    (answer,) = answers[2]["predictions"]
    assert answer["label"] == "robin"
    assert answer["reason"]
    assert answers[3]["tested"] == 4
    assert len(answers[4]["suggestions"]) == 2
    assert answers[5]["name"] == "Birds, again"
    assert [entry["task"]["examples"] for entry in answers[6:]] == [4, 3, 4]
    assert Path("birds.onnx").stat().st_size > 1000


def test_its_python_works(server, birds, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(block.replace("http://127.0.0.1:8000", server), "serving.md", "exec"), {})
    assert capsys.readouterr().out.startswith("robin {'robin': ")


def test_its_limits_are_those_of_the_server():
    table = PAGE.split("<!-- limits -->")[1].split("<!-- end -->")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", table, re.M))
    assert told == {field.name: f"{field.default:,}" for field in fields(Limits)}


def test_its_load_is_the_measured_one():
    results = json.loads((ROOT / "results" / "serving.json").read_text("utf-8"))
    assert "\n".join(serving.table(results)) in PAGE
    assert results["requests"] == 10_000
    assert results["errors"] == 0
    assert results["share_of_embedder"] >= 0.75
    assert results["memory_mb"]["end"] <= 1.05 * results["memory_mb"]["warm"]
    cpu = results["cpu_ms_per_request"]
    assert 1.1 < (cpu["server"] + cpu["load_generator"]) / cpu["embedder_alone"] < 1.25  # "a sixth more"


def test_the_container_is_what_the_page_says():
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.M)[1])[:2] == ["gpldla", "serve"]
    assert "\nUSER gpldla\n" in dockerfile
    compose = (ROOT / "compose.yaml").read_text("utf-8")
    assert '"127.0.0.1:8000:8000"' in compose
    assert '["--token-file", "/run/secrets/token"]' in compose


@pytest.mark.long
@pytest.mark.skipif(find_spec("hatchling") is None, reason="needs hatchling to build a wheel")
def test_the_command_of_the_container_works_in_a_clean_environment(tmp_path):
    """A wheel in an environment of its own; what it depends on comes from this one."""
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("gpldla-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    own = tmp_path / "venv" / "bin"
    install = [own / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    others = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "others.pth").write_text(others + "\n")

    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    command = json.loads(re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.M)[1])
    (tmp_path / "token").write_text("0123456789abcdef\n")
    port = free_port()
    small_networks = ["--image-model", "pixels", "--text-model", "none"]
    replaced = {"/data": str(tmp_path / "data"), "gpldla": str(own / "gpldla")}
    arguments = [replaced.get(one, one) for one in command]
    arguments += ["--token-file", str(tmp_path / "token"), "--port", str(port), *small_networks]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GPLDLA_TOKEN")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(arguments, stderr=log, env=environment, cwd=tmp_path)
    try:
        with Client(f"http://127.0.0.1:{port}", token="0123456789abcdef") as client:
            for _ in range(600):
                assert process.poll() is None, (tmp_path / "log").read_text()
                try:
                    task = client.create_task("images")
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            client.add(task.id, "a", pictures=[picture("black", 1), picture("black", 2)])
            client.add(task.id, "b", pictures=[picture("white", 1), picture("white", 2)])
            assert client.predict(task.id, pictures=[picture("white", 3)])[0].label == "b"
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)
    located = subprocess.run(
        [own / "python", "-c", "import gpldla; print(gpldla.__file__)"],
        **{"capture_output": True, "text": True, "env": environment, "cwd": tmp_path},
    )
    assert str(tmp_path) in located.stdout
