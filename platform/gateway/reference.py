"""GET /v1/openapi.json and GET /docs: the API's reference, for machines and for people. Needs no key."""

from functools import cache

import msgspec

from gateway.http import JSON_HEADERS, Exchange, HeaderList
from gateway.openapi.document import document_make
from gateway.openapi.page import CONTENT_SECURITY_POLICY, page_render
from gateway.runtime import Gateway

_CACHED = (b"cache-control", b"public, max-age=300")
_PAGE_HEADERS: HeaderList = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    _CACHED,
]


async def openapi_document(_: Gateway, exchange: Exchange) -> None:
    await exchange.respond(200, document_bytes(), [*JSON_HEADERS, _CACHED])


async def docs_page(_: Gateway, exchange: Exchange) -> None:
    await exchange.respond(200, page_bytes(), _PAGE_HEADERS)


@cache
def document_bytes() -> bytes:
    return msgspec.json.encode(document_make())


@cache
def page_bytes() -> bytes:
    return page_render(document_make()).encode()
