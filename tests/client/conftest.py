import pytest

from tests.server.helpers import letter_counts


@pytest.fixture(scope="module", autouse=True)
def texts():
    with letter_counts():
        yield
