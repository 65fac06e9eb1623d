"""Who may ask, and what every answer says to a browser."""

import json
import logging

import pytest

from gpldla.server.logs import JsonLines, TextLines
from tests.server.helpers import client_of, files, new_task, picture, small, teach
from tests.server.test_tasks import is_problem

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def guarded():
    with client_of(small(token=TOKEN, allowed_origins=("https://lab.example",))) as client:
        yield client


@pytest.fixture(scope="module")
def public():
    settings = small(host="0.0.0.0", token=TOKEN, allowed_hosts=("Birds.example",))
    with client_of(settings) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


class TestToken:
    @pytest.mark.parametrize(
        "header",
        [
            None,
            "",
            "Bearer",
            "Bearer ",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            TOKEN,
            "Bearer é",
        ],
    )
    @pytest.mark.parametrize(
        "path", ["/v1/server", "/v1/tasks", "/v1/openapi.json", "/metrics", "/v1/nothing"]
    )
    def test_is_needed(self, guarded, header, path):
        headers = {} if header is None else {"Authorization": header.encode()}
        answer = guarded.get(path, headers=headers)
        assert is_problem(answer, 401, "Bearer")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "gpldla_" not in answer.text

    def test_lets_in(self, guarded):
        for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
            answer = guarded.get("/v1/server", headers={"Authorization": header})
            assert answer.json()["token_required"]

    def test_is_not_needed_for_signs_of_life(self, guarded):
        assert guarded.get("/healthz").json() == {"status": "ok"}
        assert guarded.get("/readyz").json() == {"status": "ready"}
        assert guarded.get("/").status_code != 401


class TestHost:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("127.0.0.1:8000", 200),
            ("localhost", 200),
            ("LOCALHOST:9", 200),
            ("[::1]:8000", 200),
            ("evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("localhost.evil.example", 421),
            ("10.0.0.1", 421),  # cannot be reached by it
            ("", 421),
            ("[::1", 200),
        ],
    )
    def test_of_another_name_is_not_answered(self, client, host, status):
        answer = client.get("/v1/server", headers={"Host": host})
        assert answer.status_code == status, answer.text

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("birds.example", 200),
            ("birds.example:443", 200),
            ("birds.example.", 200),
            ("192.168.1.7:8000", 200),
            ("notbirds.example", 421),
            ("birds.example.evil.example", 421),
        ],
    )
    def test_of_a_public_server_is_one_that_it_was_told(self, public, host, status):
        assert public.get("/v1/server", headers={"Host": host}).status_code == status


class TestOtherSites:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:3000"},  # another program on this machine
            {"Origin": "http://localhost"},
            {"Origin": "chrome-extension://127.0.0.1:8000"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
        ],
    )
    def test_cannot_change_anything(self, client, headers):
        before = client.get("/v1/tasks").json()
        assert is_problem(client.post("/v1/tasks", json={"kind": "texts"}, headers=headers), 403)
        assert client.get("/v1/tasks").json() == before

    def test_the_own_page_can(self, client):
        for origin in ("http://127.0.0.1:8000", "https://127.0.0.1:8000"):
            headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
            assert client.post("/v1/tasks", json={"kind": "texts"}, headers=headers).status_code == 201

    def test_cannot_read(self, client):
        answer = client.get("/v1/server", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
        assert is_problem(client.get("/v1/tasks", headers={"Sec-Fetch-Site": "cross-site"}), 403)
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        assert client.options("/v1/tasks", headers=preflight).status_code == 405
        # A link from elsewhere may lead to the page.
        assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code != 403

    def test_that_are_allowed_can(self, guarded):
        origin = {"Origin": "https://lab.example", "Sec-Fetch-Site": "cross-site"}
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = guarded.options("/v1/tasks", headers=origin | asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://lab.example"
        assert "access-control-allow-credentials" not in preflight.headers
        sent = guarded.post(
            "/v1/tasks", json={"kind": "texts"}, headers=origin | {"Authorization": f"Bearer {TOKEN}"}
        )
        assert sent.status_code == 201
        assert sent.headers["access-control-allow-origin"] == "https://lab.example"
        assert guarded.post("/v1/tasks", json={"kind": "texts"}, headers=origin).status_code == 401
        near = {"Origin": "https://lab.example.evil.example", "Authorization": f"Bearer {TOKEN}"}
        assert guarded.post("/v1/tasks", json={"kind": "texts"}, headers=near).status_code == 403


class TestEveryAnswer:
    @pytest.mark.parametrize("path", ["/", "/v1/server", "/v1/nothing", "/static/x", "/healthz"])
    def test_tells_browsers_what_it_may_not_do(self, client, path):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers

    @pytest.mark.parametrize("path", ["/", "/static/app.js", "/healthz", "/readyz"])
    def test_can_be_asked_for_its_head(self, client, path):
        answer = client.head(path)
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (200, "nosniff")

    def test_has_an_id_that_is_in_the_log(self, client, caplog):
        with caplog.at_level(logging.INFO, logger="gpldla.access"):
            given = client.get("/v1/server", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"]
            made = client.get("/healthz", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"]
        assert given == "abc-1"
        assert len(made) == 32
        assert [record.facts["path"] for record in caplog.records] == ["/v1/server", "/healthz"]
        assert caplog.records[0].facts["status"] == 200

    def test_a_mistake_of_the_server_is_a_problem_without_a_traceback(self, client, monkeypatch, caplog):
        def fail(*args):
            raise RuntimeError("secret /etc/shadow")

        monkeypatch.setattr(client.app.state.service.store, "tasks", fail)
        answer = client.get("/v1/tasks", headers={"X-Request-ID": "mine"})
        assert is_problem(answer, 500, "mine")
        assert "secret" not in answer.text
        assert "nosniff" in answer.headers["x-content-type-options"]
        assert any("secret" in (record.exc_text or str(record.exc_info)) for record in caplog.records)

    def test_the_log_does_not_say_what_somebody_teaches(self, client, taught, caplog):
        with caplog.at_level(logging.INFO, logger="gpldla.access"):
            client.patch(f"/v1/tasks/{taught}/classes/black", json={"name": "secret"})
            client.delete(f"/v1/tasks/{taught}/classes/secret")
            client.delete("/v1/tasks/x/classes/secret")
        lines = [JsonLines().format(record) for record in caplog.records]
        assert len(lines) == 3
        assert not any("black" in line or "secret" in line for line in lines)

    def test_lines_of_the_log_cannot_be_forged(self, client, caplog):
        with caplog.at_level(logging.INFO, logger="gpldla.access"):
            client.get("/v1/%0Aforged%1b[31m")
        record = caplog.records[-1]
        assert "\n" not in TextLines().format(record)
        assert "\x1b" not in TextLines().format(record)
        assert json.loads(JsonLines().format(record))["path"] == "/v1/\nforged\x1b[31m"
        assert "\n" not in JsonLines().format(record)


def test_measurements_count_what_happened(client):
    def value(line):
        found = [row for row in client.get("/metrics").text.splitlines() if row.startswith(line + " ")]
        return float(found[0].split()[-1]) if found else 0.0

    line = 'gpldla_requests_total{method="POST",route="/v1/tasks/{task_id}/predict",status="200"}'
    items = 'gpldla_batch_items_sum{kind="images"}'
    task = new_task(client)
    before = value(line), value(items)
    teach(client, task, "black", 2)
    teach(client, task, "white", 2)
    client.post(f"/v1/tasks/{task}/predict", files=files(picture()))
    assert (value(line), value(items)) == (before[0] + 1, before[1] + 5)
    assert client.get("/v1/nothing/at/all").status_code == 404
    assert client.request("ODD", "/healthz").status_code == 405
    told = client.get("/metrics").text
    assert "/v1/nothing" not in told  # or anyone could fill the memory with names
    assert "ODD" not in told
