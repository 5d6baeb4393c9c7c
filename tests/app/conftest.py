import pytest

from flowfabric import App


@pytest.fixture
def app(database_url: str) -> App:
    """An app on the database of this test, not yet open."""
    return App(url=database_url)
