"""GET /v1/openapi.json and GET /docs: the API's reference, for machines and for people. Needs no key."""

import asyncio
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
    data = await asyncio.to_thread(document_bytes)  # the first time it takes tens of milliseconds
    await exchange.respond(200, data, [*JSON_HEADERS, _CACHED])


async def docs_page(_: Gateway, exchange: Exchange) -> None:
    await exchange.respond(200, await asyncio.to_thread(page_bytes), _PAGE_HEADERS)


@cache
def document_bytes() -> bytes:
    return msgspec.json.encode(document_make())


@cache
def page_bytes() -> bytes:
    return page_render(document_make()).encode()
