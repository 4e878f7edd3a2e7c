"""Under every server the pages answer beside the API, and each side keeps its own paths."""

import httpx
import pytest

from tests.conformance.fronts import Front

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.parametrize(
    ("path", "status", "content_type"),
    [
        ("/console/login/", 200, "text/html"),
        ("/static/css/base.css", 200, "text/css"),
        ("/nowhere", 404, "text/html"),
        ("/v1/nowhere", 404, "application/json"),
        ("/v1/openapi.json", 200, "application/json"),
        ("/info", 200, "application/json"),
        ("/metrics", 200, "text/plain"),
    ],
)
async def test_path(front: Front, path: str, status: int, content_type: str) -> None:
    async with httpx.AsyncClient(base_url=front.url) as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (status, content_type)
