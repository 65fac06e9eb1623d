"""Connections: how long a client may take to say what it wants, and what nobody should send."""

import socket
import threading
import time

import pytest
import uvicorn

from gpldla.server.app import create_app
from gpldla.server.connections import Connection
from tests.server.helpers import small
from tests.server.processes import free_port

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"kind": "images"}'
HEAD = b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST = HEAD + b"Content-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def port():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpldla.server.connections.SECONDS_FOR_HEADERS", 0.5)
        config = uvicorn.Config(create_app(small()), port=free_port(), http=Connection, log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield config.port
        server.should_exit = True
        thread.join(20)


def told(port, *pieces, pause=0.0):
    """Send pieces with pauses between them; return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for number, piece in enumerate(pieces):
            time.sleep(pause if number else 0)
            connection.sendall(piece)
        answer = b""
        while more := connection.recv(4096):
            answer += more
        return answer


def test_headers_that_do_not_come_are_not_waited_for(port):
    assert told(port) == b""
    assert told(port, WHOLE[:20]) == b""
    assert told(port, WHOLE, WHOLE[:20], pause=0.2).startswith(b"HTTP/1.1 200")
    with pytest.raises(OSError, match=r"reset|pipe"):  # each byte is no new patience
        told(port, *[WHOLE[i : i + 1] for i in range(20)], pause=0.1)


def test_a_body_may_come_later(port):
    assert told(port, POST % len(BODY), BODY, pause=0.8).startswith(b"HTTP/1.1 201")


def test_a_refused_body_is_not_read_for_ever(port):
    refused = (POST % 30_000_000).replace(b"localhost", b"evil.example")
    with pytest.raises(OSError, match=r"reset|pipe"):
        told(port, refused, *[b" "] * 20, pause=0.1)


def test_two_lengths_of_one_body_are_refused(port):
    """A proxy may believe one of them, and the server the other: then a second request hides in the body."""
    both = POST.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") % 5
    answer = told(port, both + b"0\r\n\r\n" + WHOLE)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
