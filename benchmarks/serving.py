"""What `gpldla serve` answers under load, beside `ImageEmbedder.transform` on the same bytes in the same run.

    python -m benchmarks.serving [--requests 10000] [--connections 64] [--json results/serving.json]

Every request holds one JPEG of 224 px and is answered with probabilities and the most similar examples. The
load generator runs on the same machine and takes time from the server. It is as small as can be: bytes that
were made before, over connections that stay open. The embedder alone, in a process of its own, is timed
before and after, so that other load affects both. Memory is that of the server's process. Processor time
depends less on other load than pictures per second do.
"""

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gpldla.utils.process import prepare_process
from gpldla.utils.provenance import provenance

HOST = "127.0.0.1"
SIDE, CLASSES, SHOTS = 224, 5, 5
BOUNDARY = "gpldla-benchmark"
WARM_UP = 0.2  # of the requests, before which memory is not compared


def pictures(count: int, seed: int) -> list[bytes]:
    """Return JPEGs with the frequencies of photographs: noise whose amplitude falls with the frequency."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None, :])
    files = []
    for _ in range(count):
        spectrum = np.fft.rfft2(rng.normal(size=(3, SIDE, SIDE))) / (frequency + 1 / SIDE)
        pixels = np.fft.irfft2(spectrum, s=(SIDE, SIDE)).transpose(1, 2, 0)
        pixels = 128 + 50 * pixels / pixels.std()
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def form(files: list[bytes], label: str | None = None) -> bytes:
    """Return the body of a form."""
    parts = []
    if label is not None:
        parts.append(
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="label"\r\n\r\n{label}\r\n'.encode()
        )
    for file in files:
        disposition = 'Content-Disposition: form-data; name="files"; filename="a.jpg"'
        parts += [f"--{BOUNDARY}\r\n{disposition}\r\n\r\n".encode(), file, b"\r\n"]
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


def request_bytes(path: str, body: bytes) -> bytes:
    """Return a whole HTTP request."""
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Load:
    """What a load generator has seen: seconds of each request, statuses, and megabytes of the server."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    duration: float = 0.0
    server_cpu: float = 0.0
    own_cpu: float = 0.0


async def send_load(port: int, path: str, files: list[bytes], count: int, connections: int, pid: int) -> Load:
    """Send so many requests over so many connections; each is sent when the one before is answered."""
    requests = [request_bytes(path, form([file])) for file in files]
    load, numbers = Load(), iter(range(count))
    load.memory.append(megabytes(pid))

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        for number in numbers:
            started = time.perf_counter()
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            load.seconds.append(time.perf_counter() - started)
            load.statuses[int(head[9:12])] += 1
            if len(load.seconds) % max(1, count // 50) == 0:
                load.memory.append(megabytes(pid))
        writer.close()

    started, server_cpu, own_cpu = time.perf_counter(), cpu_seconds(pid), time.process_time()
    await asyncio.gather(*(connection() for _ in range(connections)))
    load.duration = time.perf_counter() - started
    load.server_cpu, load.own_cpu = cpu_seconds(pid) - server_cpu, time.process_time() - own_cpu
    return load


def megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, in all its threads."""
    facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def post(port: int, path: str, body: bytes, kind: str) -> Any:
    """Send a request and return the JSON of its answer."""
    sent = urllib.request.Request(f"http://{HOST}:{port}{path}", body, {"Content-Type": kind})
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)


def teach(port: int) -> str:
    """Make a task with examples; return the path at which it answers."""
    task = post(port, "/v1/tasks", b'{"kind": "images"}', "application/json")["id"]
    for number in range(CLASSES):
        body = form(pictures(SHOTS, 1000 + number), f"class {number}")
        post(port, f"/v1/tasks/{task}/examples", body, f"multipart/form-data; boundary={BOUNDARY}")
    return f"/v1/tasks/{task}/predict"


def embedder_alone(count: int, files: int) -> tuple[float, float]:
    """Return pictures per second of `ImageEmbedder.transform` in a process of its own, and CPU seconds."""
    command = [sys.executable, "-m", "benchmarks.serving", "--embed", str(count), "--files", str(files)]
    rate, cpu = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(rate), float(cpu)


def embed(count: int, files: int) -> tuple[float, float]:
    """Time the embedder in this process, after it has been warmed up as the server is."""
    from gpldla import ImageEmbedder
    from gpldla.engines.choice import prepare

    embedder, items = ImageEmbedder(cache=False), pictures(files, 0)
    embedder.transform(items[:64])
    prepare(embedder._network())
    embedder.transform(items[:64])
    chosen = [items[i % len(items)] for i in range(count)]
    started, cpu = time.perf_counter(), time.process_time()
    embedder.transform(chosen)
    return count / (time.perf_counter() - started), (time.process_time() - cpu) / count


def run_server(port: int, log: Path) -> "subprocess.Popen[bytes]":
    """Start a server and wait until it answers."""
    command = [sys.executable, "-m", "gpldla", "serve", "--port", str(port), "--text-model", "none"]
    with log.open("wb") as written:
        process = subprocess.Popen(command, stderr=written)
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/readyz"):
                return process
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(log.read_text()) from None
            time.sleep(0.1)
    raise RuntimeError("The server does not answer.")


def measure(count: int, connections: int, files: int, port: int) -> dict[str, Any]:
    """Time the embedder, the server and the embedder again."""
    alone = [embedder_alone(count // 10, files)]
    with tempfile.TemporaryDirectory() as folder:
        server = run_server(port, Path(folder) / "log")
        try:
            path, items = teach(port), pictures(files, 0)
            asyncio.run(send_load(port, path, items, 4 * connections, connections, server.pid))
            load = asyncio.run(send_load(port, path, items, count, connections, server.pid))
        finally:
            server.terminate()
            server.wait()
    alone.append(embedder_alone(count // 10, files))
    per_second, embedded = count / load.duration, statistics.mean(rate for rate, _ in alone)
    ranked = sorted(load.seconds)
    warm = load.memory[int(WARM_UP * len(load.memory))]
    return {
        "requests": count,
        "connections": connections,
        "errors": count - load.statuses[200],
        "requests_per_second": round(per_second, 1),
        "embedder_pictures_per_second": [round(rate, 1) for rate, _ in alone],
        "share_of_embedder": round(per_second / embedded, 3),
        "cpu_ms_per_request": {
            "server": round(1000 * load.server_cpu / count, 2),
            "load_generator": round(1000 * load.own_cpu / count, 2),
            "embedder_alone": round(1000 * statistics.mean(cpu for _, cpu in alone), 2),
        },
        "p50_ms": round(1000 * ranked[len(ranked) // 2]),
        "p99_ms": round(1000 * ranked[int(0.99 * len(ranked))]),
        "memory_mb": {"start": round(load.memory[0]), "warm": round(warm), "end": round(load.memory[-1])},
    }


def table(results: dict[str, Any]) -> list[str]:
    """Return the lines of docs/serving.md."""
    cpu, memory = results["cpu_ms_per_request"], results["memory_mb"]
    rates = " and ".join(f"{rate:.0f}" for rate in results["embedder_pictures_per_second"])
    rows = {
        "requests, each with one picture": f"{results['requests']:,}",
        "connections": f"{results['connections']}",
        "errors": f"{results['errors']}",
        "answers per second": f"{results['requests_per_second']:.0f}",
        "pictures per second, embedder alone, before and after": rates,
        "share of the embedder's mean": f"{100 * results['share_of_embedder']:.0f} %",
        "processor time per answer, ms, server and load generator": f"{cpu['server']:.1f} and"
        f" {cpu['load_generator']:.1f}",
        "processor time per picture, ms, embedder alone": f"{cpu['embedder_alone']:.1f}",
        "half of the answers within, ms": f"{results['p50_ms']:,}",
        "99 % of the answers within, ms": f"{results['p99_ms']:,}",
        "memory of the server, MB, warm and at the end": f"{memory['warm']} and {memory['end']}",
    }
    return ["| | |", "|---|--:|", *(f"| {name} | {value} |" for name, value in rows.items())]


def main() -> None:
    """Measure, print, and write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--files", type=int, default=256, help="different pictures")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--embed", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_process()
    if options.embed is not None:
        print(*embed(options.embed, options.files))
        return
    facts = measure(options.requests, options.connections, options.files, options.port)
    command = (
        f"python -m benchmarks.serving --requests {options.requests} --connections {options.connections}"
    )
    results = {"command": command, **provenance("cpu"), "picture": f"JPEG, {SIDE} px", **facts}
    print(json.dumps(results, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
