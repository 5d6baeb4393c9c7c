import pytest

from flowfabric import App


@pytest.fixture
def app(database_url: str) -> App:
    """An app of this test's database, not open yet."""
    return App(url=database_url)
