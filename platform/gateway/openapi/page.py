"""The OpenAPI document as a page for people. All but the guide comes from the document."""

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup, escape

from gateway.errors import ERRORS
from gateway.openapi.errors import MEANINGS
from gateway.openapi.fields import Body, body_view
from gateway.openapi.site import BASE_URL, MODEL

_STYLE = (files("gateway.openapi") / "page.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_CODE = re.compile(r"`([^`]+)`")


def page_render(document: dict[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gateway.openapi", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["inline_code"] = _inline_code
    environment.filters["pretty"] = _pretty
    environment.filters["counted"] = lambda count: "1 field" if count == 1 else f"{count} fields"
    template = environment.get_template("page.html.jinja")
    return template.render(
        document=document,
        style=Markup(_STYLE),  # noqa: S704 our own file
        base_url=BASE_URL,
        model=MODEL,
        groups=_groups(document),
        errors=[(code, *ERRORS[code], MEANINGS[code]) for code in ERRORS],
    )


def _groups(document: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [{**tag, "operations": []} for tag in document["tags"]]
    by_name = {group["name"]: group for group in groups}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_name[operation["tags"][0]]["operations"].append(_view(document, method, path, operation))
    return groups


def _view(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    components = document["components"]["schemas"]
    parameters = operation.get("parameters", [])
    body: Body | None = None
    if "requestBody" in operation:
        body = body_view(operation["requestBody"]["content"]["application/json"]["schema"], components)
    responses = operation["responses"]
    answer, answer_example, event_example = None, None, None
    for response in responses.values():
        content = response.get("content", {})
        if "x-error-codes" in response or answer is not None:
            continue
        if "application/json" in content:
            answer = body_view(content["application/json"]["schema"], components)
            answer_example = content["application/json"].get("example")
        event_example = content.get("text/event-stream", {}).get("example")
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation["summary"],
        "description": operation.get("description", ""),
        "is_public": operation.get("security") == [],
        "parameters": parameters,
        "parameters_title": "Headers"
        if all(shown["in"] == "header" for shown in parameters)
        else "Parameters",
        "body": body,
        "answer": answer if answer is not None and answer.structs else None,
        "answer_example": answer_example,
        "event_example": event_example,
        "samples": operation["x-codeSamples"],
        "responses": [
            {
                "status": status,
                "is_error": "x-error-codes" in response,
                "description": response["description"],
                "codes": [(code, MEANINGS[code]) for code in response.get("x-error-codes", [])],
                "types": list(response.get("content", {})),
            }
            for status, response in responses.items()
        ],
    }


def _inline_code(text: str) -> Markup:
    """Backquoted words as code; everything else stays text."""
    pieces = _CODE.split(text)
    html = [
        Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece)
        for index, piece in enumerate(pieces)
    ]
    return Markup("").join(html)


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
