"""One HTML page of a result, complete in itself: no script, nothing loaded, a policy that says so.

Every plot has its figures in a table beside it. What it holds is in `summary.py` and `sections.py`.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from fleetsim.report import sections, summary
from fleetsim.report.markup import Html, joined, tag
from fleetsim.report.result import Result


def page_of(result: Result) -> str:
    style = files("fleetsim.report").joinpath("page.css").read_text(encoding="utf-8")
    style_hash = b64encode(sha256(style.encode()).digest()).decode()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src 'sha256-{style_hash}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{result.title} · Sluice fleet simulator"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style)),
    )
    body = tag(
        "body",
        summary.header(result),
        tag(
            "main",
            summary.promises(result),
            summary.tiles(result),
            sections.latency(result),
            sections.load(result),
            sections.fairness(result),
            sections.fleet(result),
            sections.degradation(result),
            sections.variants(result),
            summary.requests(result),
        ),
        summary.footer(result),
    )
    return "<!doctype html>\n" + joined(tag("html", head, body, lang="en")) + "\n"
