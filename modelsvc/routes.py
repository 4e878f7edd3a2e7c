"""The routes as the gateway reads them: one statement on its own connection. No Django here."""

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


async def routes_load(conn: psycopg.AsyncConnection) -> list[ModelRoute]:
    """Every model that can be asked for. The caller keeps the copy with the highest revision per slug."""
    async with conn.cursor(row_factory=class_row(ModelRoute)) as cursor:
        await cursor.execute(_ROUTES)
        return await cursor.fetchall()
