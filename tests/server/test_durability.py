"""A server that is killed in the middle of writes has lost nothing that it had acknowledged."""

import random
import sqlite3
import threading
import time
from contextlib import closing

import httpx
import pytest

from tests.server.helpers import files, picture
from tests.server.processes import serving

WRITERS = 4


def write_until_killed(url, task, seed, acknowledged):
    """Add, relabel and remove examples; remember what was answered: {id: label, or None if removed}."""
    rng = random.Random(seed)
    own = {}
    with httpx.Client(base_url=url, timeout=30) as client:
        try:
            while True:
                label = rng.choice(["black", "white", "grey"])
                sent = files(*[picture(label, rng.randrange(1000)) for _ in range(rng.randint(1, 3))])
                answer = client.post(f"/v1/tasks/{task}/examples", data={"label": label}, files=sent)
                added = [example["id"] for example in answer.json()["examples"]]
                own |= dict.fromkeys(added, label)
                acknowledged.update(own)
                chosen = rng.choice(added)
                # What is not acknowledged may have been written or not: until then it is left out.
                path, before = f"/v1/tasks/{task}/examples/{chosen}", acknowledged.pop(chosen)
                del own[chosen]
                if rng.random() < 0.5:
                    client.patch(path, json={"label": "black"}).raise_for_status()
                    acknowledged[chosen] = "black"
                else:
                    client.delete(path).raise_for_status()
                    acknowledged[chosen] = None
                assert before == label
        except httpx.TransportError:
            return


def kill_while_writing(folder, kills, seed=0):
    """Kill a server so many times; return how many examples were acknowledged, and which are not as told."""
    rng, acknowledged, wrong = random.Random(seed), {}, []
    task = None
    for round_ in range(kills + 1):
        with serving(folder / "log", "--data-dir", folder / "tasks", "--limit", "items=100000") as (
            process,
            client,
        ):
            if task is None:
                task = client.post("/v1/tasks", json={"kind": "images"}).json()["id"]
            stored = client.get(f"/v1/tasks/{task}/examples").json()["examples"]
            labels = {one["id"]: one["label"] for one in stored}
            wrong += [one for one, label in acknowledged.items() if labels.get(one) != label]
            if round_ == kills:
                break
            writers = [
                threading.Thread(
                    target=write_until_killed, args=(client.base_url, task, 100 * round_ + i, acknowledged)
                )
                for i in range(WRITERS)
            ]
            known = len(acknowledged)
            for writer in writers:
                writer.start()
            while len(acknowledged) == known and any(writer.is_alive() for writer in writers):
                time.sleep(0.01)  # a busy machine may take a while to acknowledge the first one
            time.sleep(rng.uniform(0, 0.5))
            process.kill()
            for writer in writers:
                writer.join(40)
                assert not writer.is_alive()
    with closing(sqlite3.connect(folder / "tasks" / "tasks.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    return len(acknowledged), wrong


def check(folder, kills, capsys):
    count, wrong = kill_while_writing(folder, kills)
    with capsys.disabled():
        print(f"\n{kills} kills in the middle of writes: {count} acknowledged, {len(wrong)} lost")
    assert count >= kills
    assert wrong == []


def test_a_killed_server_loses_nothing(tmp_path, capsys):
    check(tmp_path, 2, capsys)


@pytest.mark.long
def test_a_server_that_is_killed_a_hundred_times_loses_nothing(tmp_path, capsys):
    check(tmp_path, 100, capsys)
