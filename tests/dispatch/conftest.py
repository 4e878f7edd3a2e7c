"""A dispatcher with one gateway, for every test that asks."""

import pytest

from tests.dispatch.scene import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()
