"""Clients for every way a store is named: one server, a primary with replicas, or behind Sentinels.

    redis://:password@host:6379/0            also rediss://, unix://
    redis://:password@one:6379,two:6379/0    whichever of them is the primary
    redis+sentinel://:password@one:26379,two:26379/service/0

Several hosts share one password; Sentinels are asked without one. Nothing is connected here.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.quotas.bounds import QuotaBounds

_SENTINEL = ("redis+sentinel", "rediss+sentinel")
_PORTS = {"redis": 6379, "rediss": 6379, "redis+sentinel": 26379, "rediss+sentinel": 26379}


class Primaries:
    """Asks every host for its role; stands where redis-py expects the Sentinels."""

    def __init__(self, hosts: Sequence[tuple[str, int]], options: dict[str, Any]) -> None:
        self._clients = {host: Redis(host=host[0], port=host[1], **options) for host in hosts}

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Raises MasterNotFoundError."""
        for host, client in self._clients.items():
            try:
                role: Any = await client.execute_command("ROLE")  # type: ignore[no-untyped-call]
            except (RedisError, OSError):
                continue
            if role[0] in (b"master", "master"):
                return host
        raise MasterNotFoundError(f"none of {len(self._clients)} hosts is a primary {service_name}".strip())

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()


class Addressed:
    """A client, and what finds its server."""

    def __init__(self, client: Redis, finder: Primaries | Sentinel | None = None) -> None:
        self.client = client
        self._finder = finder

    async def close(self) -> None:
        await self.client.aclose()
        await self.client.connection_pool.disconnect()
        if self._finder is not None:
            await self._finder.aclose()


def addressed(url: str, bounds: QuotaBounds) -> Addressed:
    """Raises ValueError; no message holds the password."""
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": bounds.connect_timeout_s,  # a request waits less: `QuotaStore`
        "socket_connect_timeout": bounds.connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    scheme, _, rest = url.partition("://")
    if scheme not in _PORTS or not ("," in rest or scheme in _SENTINEL):
        pool = ConnectionPool.from_url(url, max_connections=bounds.connections, **options)
        return Addressed(Redis.from_pool(pool))
    parts = urlsplit(f"//{rest}")
    login, _, hosts_text = parts.netloc.rpartition("@")
    hosts = [_host(text, _PORTS[scheme]) for text in hosts_text.split(",")]
    user, _, password = login.partition(":")
    options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    path = [part for part in parts.path.split("/") if part]
    service = path.pop(0) if scheme in _SENTINEL and path else ""
    if scheme in _SENTINEL and not service:
        raise ValueError(f"{scheme}:// needs the name of the service: {scheme}://host:26379/service")
    finder: Primaries | Sentinel
    if service:
        asking = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
        finder = Sentinel(hosts, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    else:
        finder = Primaries(hosts, options | {"ssl": scheme == "rediss"})
    chosen = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        service,
        finder,
        ssl=scheme.startswith("rediss"),
        db=int(path[0]) if path else 0,
        max_connections=bounds.connections,
        **options,
    )
    return Addressed(Redis.from_pool(chosen), finder)


def _host(text: str, port: int) -> tuple[str, int]:
    """Raises ValueError."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a store's URL has an empty host")
    return parts.hostname, parts.port or port
