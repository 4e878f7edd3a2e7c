"""One generation over HTTP, from its headers to its end: accept, authenticate, serve, deliver."""

from gateway.access.auth import SCOPE_COMPLETIONS, scope_require
from gateway.answers.delivery import Delivery
from gateway.dialects.base import Dialect
from gateway.endpoints.watching import Watch
from gateway.errors import ApiError
from gateway.http.exchange import Exchange
from gateway.runtime import Gateway
from gateway.serving.admission import key_authenticate, slot
from gateway.serving.serve import serve
from gateway.serving.submission import Call
from tenants.contracts import KeyGrant

_QUOTA_HEADER = b"ratelimit"


async def generate(dialect: Dialect, gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError while the status is still open."""
    grant = key_authenticate(gateway, exchange.headers)
    scope_require(grant, SCOPE_COMPLETIONS)
    with slot(gateway, grant):
        body = await gateway.bodies.read(exchange)
        size = len(body)
        call = Call(
            dialect, grant, exchange.headers, body, exchange.path, exchange.request_id, exchange.started_at
        )
        watch = Watch(exchange)
        try:
            served = await serve(gateway, call, is_gone=lambda: watch.has_left)
        except BaseException as error:
            watch.close()
            if isinstance(error, ApiError):
                _quotas_say(gateway, grant, error)
            raise
        finally:
            del body, call
            gateway.bodies.release(size)
        exchange.request_id = served.request_id
        exchange.headers_forget()
        with watch.delivering(gateway, served):
            try:
                await Delivery(exchange, served.answer, gateway.limits, served.headers).run()
            except ApiError as error:
                error.headers += served.headers
                raise


def _quotas_say(gateway: Gateway, grant: KeyGrant, error: ApiError) -> None:
    """A refusal says what is left, too, even where nothing was reserved yet."""
    if all(name != _QUOTA_HEADER for name, _ in error.headers):
        error.headers += gateway.quotas.headers(grant)
