"""Servers as processes of their own, that can be stopped and killed."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx

SMALL = ("--image-model", "pixels", "--text-model", "none", "--device", "cpu")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serving(log, *arguments, environment=None):
    """Start a server that writes its log to a file; yields the process, and a client of it."""
    port = free_port()
    command = [sys.executable, "-m", "gpldla", "serve", "--port", str(port), *SMALL, *map(str, arguments)]
    with log.open("wb") as written:
        process = subprocess.Popen(command, stderr=written, env=os.environ | (environment or {}))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            for _ in range(2400):
                try:
                    if client.get("/readyz").status_code == 200:
                        break
                except httpx.TransportError:
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.05)
            yield process, client
    finally:
        process.terminate()
        process.wait(20)
