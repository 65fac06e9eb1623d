"""Requests that nobody meant: none crashes the server, none is answered with a traceback or a path."""

import gzip
import io
import os
import random
import re
import struct
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from PIL import Image

from gpldla.server import schemas as server_schemas
from gpldla.server.app import create_app
from gpldla.server.problems import MEDIA_TYPE
from gpldla.server.settings import Limits
from gpldla.server.storage import NewExample
from tests.server.helpers import client_of, files, letter_counts, new_task, picture, small, teach

LEAKS = ("Traceback", "site-packages", ".py", "/tmp", "/etc", "/root", "/home", "/work", "sqlite", "SELECT ")
PATIENCE = 120  # seconds, for machines that are busy with other work
SETTINGS = small(allowed_hosts=("testserver",))
APP = create_app(SETTINGS)

with letter_counts():  # asking for the schema starts the server, and that is while tests are collected
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", APP)


# Starlette names one of several methods in Allow; and what is right for the schema may be wrong otherwise: an
# unknown id, or bytes that are no picture.
CHECKS = schemathesis.checks.CHECKS
EXCLUDED = [CHECKS.get_one(name) for name in ("allow_header_conformance", "positive_data_acceptance")]


def known_task(kind):
    """A task with examples, as parameters of a path; the application forgets it between tests."""
    store = APP.state.service.store
    network = APP.state.service.networks[kind]
    items = ["aab", "bba", "aaa", "zzz"] if kind == "texts" else [picture(seed=i) for i in range(4)]
    rows = network.embed(items)
    labelled = [
        ("black" if i % 2 else "white", NewExample(f"{i}", rows[i], "a" if kind == "texts" else None))
        for i in range(4)
    ]
    made = store.create_task(kind, "known", network.fingerprint, labelled)
    return {"task_id": made.id, "example_id": store.examples(made.id)[0].id, "label": "black"}


@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_request_of_the_schema_is_a_mistake_of_the_server(case):
    answer = case.call(timeout=PATIENCE)
    assert answer.status_code < 500, answer.text
    case.validate_response(answer, excluded_checks=EXCLUDED)
    if "task_id" in case.path_parameters and "onnx" not in case.query.values():  # which takes seconds
        # Once more, for a task that there is.
        known = known_task("images" if case.media_type == "multipart/form-data" else "texts")
        for name in case.path_parameters:
            case.path_parameters[name] = known[name]
        answer = case.call(timeout=PATIENCE)
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, excluded_checks=[*EXCLUDED, CHECKS.get_one("negative_data_rejection")])


def png_chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, data=b"", *, extra=b""):
    """A PNG file whose header says what it wants."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    end = png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + extra + end


def bombs():
    """Files that are small and want to become large."""
    wide = zlib.compress(bytes(30_000_000), 9)
    yield png(30_000, 30_000, wide)
    yield png(2**31 - 1, 2**31 - 1)
    yield png(10, 10, wide)
    yield png(0, 0)
    text = png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(50_000_000), 9))
    yield png(10, 10, zlib.compress(bytes(310)), extra=text)
    yield png(10, 10, zlib.compress(bytes(310)), extra=png_chunk(b"iCCP", b"a\0\0" + wide))
    buffer = io.BytesIO()
    Image.new("1", (13_000, 13_000)).save(buffer, "WEBP", lossless=True)
    yield buffer.getvalue()
    yield b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(20)
    yield b"BM" + struct.pack(
        "<IHHIIiiHHIIiiII", 100, 0, 0, 54, 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 0, 0, 0, 0
    )
    yield b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + bytes(40)
    slip = io.BytesIO()
    with zipfile.ZipFile(slip, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../../../tmp/slipped", bytes(1_000_000))
    yield slip.getvalue()
    yield gzip.compress(bytes(10_000_000))
    yield b"\0\0\0\x20ftypavif" + bytes(100)
    yield b"II*\0" + bytes(100)
    yield b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"


def malformed(rng, classifier):
    """One file that is not what it says: truncated, changed, extended, mixed, or a bomb."""
    kind = rng.choice(["PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF"])
    whole = picture("black", rng.randrange(5), size=(24, 20), kind=kind)
    way = rng.randrange(6)
    if way == 0:
        return whole[: rng.randrange(len(whole))]
    if way == 1:
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 20)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if way == 2:
        other = picture("white", 1, kind=rng.choice(["PNG", "JPEG", "GIF"]))
        return whole[: rng.randrange(30)] + other[rng.randrange(30) :]
    if way == 3:
        return rng.randbytes(rng.randrange(300))
    if way == 4:
        changed = bytearray(classifier)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.5 else changed)
    return rng.choice(list(BOMBS))


BOMBS = list(bombs())
NAMES = (
    "a.png",
    "../../etc/passwd",
    "C:\\x\\y.jpg",
    "a\\0.png",
    "x" * 5000,
    "ünï.webp",
    "'; DROP TABLE tasks;--",
    "",
)


def send_malformed(client, count, seed=0):
    """Send so many malformed uploads in turn to every path that takes files; return the statuses."""
    rng = random.Random(seed)
    task = new_task(client)
    teach(client, task, "black", 2)
    teach(client, task, "white", 2)
    classifier = client.get(f"/v1/tasks/{task}/classifier").content
    statuses = []
    for number in range(count):
        content, name = malformed(rng, classifier), rng.choice(NAMES)
        way = number % 5
        headers = {}
        if way == 4:  # the form itself is broken
            boundary = rng.choice(["x", "", "x" * 200, 'x"y'])
            headers["Content-Type"] = f"multipart/form-data; boundary={boundary}"
            part = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n' + content
            headers["X-Long"] = "y" * rng.choice([10, 10_000])
            sent = {"content": part + rng.choice([b"", b"\r\n--x--", b"\r\n--x--\r\n" * 50])}
            path = f"/v1/tasks/{task}/predict"
        elif way == 3:
            path, sent = "/v1/tasks/upload", {"files": {"file": (name, content)}}
        else:
            path = f"/v1/tasks/{task}/{('predict', 'suggest', 'examples')[way]}"
            good = files(picture()) if rng.random() < 0.3 else []
            sent = {"files": [("files", (name, content)), *good], "data": {"label": "grey"}}
        answer = client.post(path, headers=headers, **sent)
        assert answer.status_code < 500, (number, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == MEDIA_TYPE, (number, answer.text)
            assert not [leak for leak in LEAKS if leak in answer.text], (number, answer.text)
        statuses.append(answer.status_code)
    assert client.get("/readyz").status_code == 200
    assert client.post(f"/v1/tasks/{task}/predict", files=files(picture())).status_code == 200
    return statuses


def check_malformed(count, capsys):
    with client_of(small(limits=Limits(items=5000))) as client:
        statuses = send_malformed(client, count)
    refused = {status: statuses.count(status) for status in sorted(set(statuses))}
    with capsys.disabled():
        print(f"\n{count} malformed uploads: {refused}")
    assert sum(status >= 400 for status in statuses) > 0.6 * count  # some changes leave a picture a picture


def test_malformed_uploads_are_refused(capsys):
    check_malformed(200, capsys)


@pytest.mark.long
def test_two_thousand_malformed_uploads_are_refused(capsys):
    check_malformed(2000, capsys)


@contextmanager
def peak_memory():
    """Yield a function that returns by how many MiB the process has grown at most in the block."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not os.access(reset, os.W_OK):
        pytest.skip("needs Linux")

    def value(name):
        return int(re.search(rf"^{name}:\s+(\d+) kB", status.read_text(), re.M)[1]) >> 10

    reset.write_text("5")  # the peak begins anew
    before = value("VmRSS")
    yield lambda: value("VmHWM") - before


@pytest.mark.parametrize("index", range(len(BOMBS)))
def test_a_bomb_is_refused_in_little_memory(client, taught, index):
    with peak_memory() as grown:
        answer = client.post(f"/v1/tasks/{taught}/predict", files=files(BOMBS[index]))
        assert grown() < 100
    assert answer.status_code in (200, 413, 415, 422), answer.text  # 200: it never becomes large


@pytest.mark.long
def test_pictures_just_below_the_limit_are_decoded_one_after_the_other(client, taught):
    """Each takes half a gigabyte while it is decoded, whatever the size of its file."""
    buffer = io.BytesIO()
    Image.new("RGB", (7000, 7000), "white").save(buffer, "WEBP", lossless=True)
    assert len(buffer.getvalue()) < 100_000
    with peak_memory() as grown:
        sent = files(*[buffer.getvalue()] * 8)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(client.post, f"/v1/tasks/{taught}/predict", files=sent) for _ in range(4)]
        assert grown() < 1000  # all 32 at a time would take 18,000
    assert [one.result().status_code for one in asked] == [200] * 4


def test_the_examples_of_the_document_are_examples():
    schemas = APP.openapi()["components"]["schemas"]
    shown = {name: facts["examples"] for name, facts in schemas.items() if "examples" in facts}
    assert {"NewTask", "Renamed", "Relabelled", "Task", "Prediction"} <= shown.keys()
    for name, examples in shown.items():
        for example in examples:
            getattr(server_schemas, name).model_validate(example)
