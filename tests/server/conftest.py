import pytest

from tests.server.helpers import client_of, letter_counts, new_task, teach


@pytest.fixture(scope="module", autouse=True)
def texts():
    with letter_counts():
        yield


@pytest.fixture(scope="module")
def client():
    with client_of() as client:
        yield client


@pytest.fixture
def taught(client):
    """The id of a task with three examples of two classes each."""
    task = new_task(client)
    teach(client, task, "black")
    teach(client, task, "white")
    return task
