"""Django middleware: static files, the content security policy, the operators' role for staff pages."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile

from tenants.scoping import operator_scope

_COMMON = (
    "default-src 'none'; img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
PAGE_POLICY = f"{_COMMON}; script-src 'self'; style-src 'self'"
# The admin's theme is built on Alpine, which evaluates expressions, and on inline scripts and styles.
ADMIN_POLICY = f"{_COMMON}; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'"

ADMIN_PATH = "/admin/"
STAFF_PATHS = (ADMIN_PATH, "/console/")


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # whitenoise is untyped
    """Answers with whole files: streamed ones are synchronous, which Django warns of under ASGI, each time.

    Ours are small, and validators, ranges and cache headers stay whitenoise's.
    """

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        answer = static_file.get_response(request.method, request.META)
        content = b""
        if answer.file is not None:
            with answer.file:
                content = answer.file.read()
        return HttpResponse(content, status=int(answer.status), headers=dict(answer.headers))


class ContentSecurityPolicyMiddleware:
    """No inline script on our own pages; a looser policy for the admin alone."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        policy = ADMIN_POLICY if request.path.startswith(ADMIN_PATH) else PAGE_POLICY
        response.headers.setdefault("Content-Security-Policy", policy)
        return response


class OperatorScopeMiddleware:
    """Under the staff pages, signed-in staff work as the operators' role; everybody else as a tenant."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(STAFF_PATHS) and request.user.is_authenticated and request.user.is_staff:
            with operator_scope():
                return self.get_response(request)
        return self.get_response(request)
