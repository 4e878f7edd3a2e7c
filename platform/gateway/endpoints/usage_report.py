"""GET /v1/usage/{request_id}: what one of the tenant's requests used and cost, from the ledger's own rows."""

from typing import Any
from uuid import UUID

import msgspec

from billing.connections import StoreUnavailable
from billing.usage_lookup import UsageRow, usage_find
from gateway.errors import ApiError, LimitDetail, overloaded
from gateway.http.exchange import Exchange, request_id_parse
from gateway.runtime import Gateway
from gateway.serving.admission import key_authenticate

PREFIX = "/v1/usage/"


async def usage_get(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError; a request of another tenant looks like none."""
    grant = key_authenticate(gateway, exchange.headers)
    request_id = request_id_parse(exchange.path.removeprefix(PREFIX))
    rows = await _rows(gateway, grant.tenant_id, request_id)
    job = gateway.job_find(grant.tenant_id, request_id)
    if not rows and job is None:
        message = f"no usage is recorded for the request {request_id}; it appears some moments after its end"
        raise ApiError("request_not_found", message)
    is_running = job is not None and all(row.attempt < job.attempt for row in rows)
    body = {
        "object": "usage",
        "request_id": str(request_id),
        "status": "in_progress" if is_running else "recorded",
        "prompt_tokens": sum(row.billable_prompt_tokens + row.billable_cached_tokens for row in rows),
        "completion_tokens": sum(row.billable_output_tokens for row in rows),
        "cost_micro_usd": sum(row.cost_micro_usd for row in rows),
        "records": [_record(row) for row in rows],
    }
    await exchange.respond(200, msgspec.json.encode(body))


async def _rows(gateway: Gateway, tenant_id: UUID, request_id: UUID) -> list[UsageRow]:
    """Empty where there are none of exactly this id. Raises ApiError."""
    try:
        async with gateway.lookups.transaction() as conn:
            rows = await usage_find(conn, tenant_id, request_id)
    except StoreUnavailable as error:
        limit = LimitDetail(name="usage_records", scope="gateway", subject=gateway.settings.gateway_id)
        raise overloaded("the usage records cannot be reached now", 5_000, limit=limit) from error
    return rows if rows and rows[0].request_id == request_id else []


def _record(row: UsageRow) -> dict[str, Any]:
    return msgspec.to_builtins(row)  # type: ignore[no-any-return]
