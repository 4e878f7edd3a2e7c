"""The routes as the gateway reads them: one statement on its own connection. No Django here."""

from collections.abc import Iterable, Mapping

import psycopg
from psycopg.rows import class_row

from modelsvc.contracts import ModelRoute

_ROUTES = """
SELECT m.slug, v.digest, v.max_context_tokens, m.owned_by, m.created_at, r.revision,
       r.max_output_tokens, coalesce(s.slug, '') AS smaller
FROM modelsvc_modelroute r
JOIN modelsvc_modelversion v ON v.id = r.version_id
JOIN modelsvc_model m ON m.id = r.model_id
LEFT JOIN modelsvc_model s ON s.id = r.smaller_id
ORDER BY m.slug
"""


_REVISIONS = "SELECT coalesce(sum(revision), 0) FROM modelsvc_modelroute"


async def routes_load(conn: psycopg.AsyncConnection) -> list[ModelRoute]:
    """Every model that can be asked for. The caller keeps the copy with the highest revision per slug."""
    async with conn.cursor(row_factory=class_row(ModelRoute)) as cursor:
        await cursor.execute(_ROUTES)
        return await cursor.fetchall()


async def routes_revision(conn: psycopg.AsyncConnection) -> int:
    """A number that is another after every change of a route."""
    cursor = await conn.execute(_REVISIONS)
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


def routes_merge(known: Mapping[str, ModelRoute], loaded: Iterable[ModelRoute]) -> dict[str, ModelRoute]:
    """By slug. A route never goes back to an older revision, whatever a server that lags says."""
    routes = {route.slug: route for route in loaded}
    newer = {slug: route for slug, route in known.items() if _is_newer(route, routes.get(slug))}
    return routes | newer


def _is_newer(known: ModelRoute, loaded: ModelRoute | None) -> bool:
    return loaded is not None and known.revision > loaded.revision
