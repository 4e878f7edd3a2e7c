"""GET /v1/openapi.json and GET /docs: the API's reference, for machines and for people. Needs no key.

Rendered once; what its examples name is put in for the address that it is asked at.
"""

import asyncio
from functools import cache, lru_cache

import msgspec

from gateway.http.exchange import JSON_HEADERS, Exchange, HeaderList
from gateway.openapi.document import document_make
from gateway.openapi.page import CONTENT_SECURITY_POLICY, page_render
from gateway.openapi.site import Site, site_of
from gateway.runtime import Gateway

# Not for caches that serve several people: one that forgets the host in its key could mix up addresses.
_CACHED = (b"cache-control", b"private, max-age=300")
_PAGE_HEADERS: HeaderList = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    _CACHED,
]
_MAX_SITES = 16  # that are kept: a few hundred kilobytes each


async def openapi_document(gateway: Gateway, exchange: Exchange) -> None:
    # The first time it takes tens of milliseconds.
    data = await asyncio.to_thread(document_bytes, _site(gateway, exchange))
    await exchange.respond(200, data, [*JSON_HEADERS, _CACHED])


async def docs_page(gateway: Gateway, exchange: Exchange) -> None:
    page = await asyncio.to_thread(page_bytes, _site(gateway, exchange))
    await exchange.respond(200, page, _PAGE_HEADERS)


@lru_cache(_MAX_SITES)
def document_bytes(site: Site) -> bytes:
    return site.put_into(_document_rendered())


@lru_cache(_MAX_SITES)
def page_bytes(site: Site) -> bytes:
    return site.put_into(_page_rendered())


@cache
def _document_rendered() -> bytes:
    return msgspec.json.encode(document_make())


@cache
def _page_rendered() -> bytes:
    return page_render(document_make()).encode()


def _site(gateway: Gateway, exchange: Exchange) -> Site:
    return site_of(exchange.scope, exchange.headers, _model(gateway))


def _model(gateway: Gateway) -> str:
    """The default one, else the first that a worker serves now, else the first; empty before any is known."""
    snapshot = gateway.snapshots.current
    if snapshot is None:
        return ""
    if gateway.settings.default_model in snapshot.routes:
        return gateway.settings.default_model
    served = {replica.digest for replica in gateway.upstream.replicas.ready()}
    return min(
        snapshot.routes, key=lambda slug: (snapshot.routes[slug].digest not in served, slug), default=""
    )
