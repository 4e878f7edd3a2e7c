"""HTML and SVG from Python: elements whose text and attributes are escaped. Knows no page and no plot."""

from html import escape

VOID = frozenset({"link", "meta"})


class Html(str):
    """Markup, as opposed to text that must be escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Html:
    """An element. `class_` is the attribute `class`, `text_anchor` is `text-anchor`; what is None is left
    out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str | None) -> Html:
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(child, quote=False)
            for child in children
            if child is not None
        )
    )


def _value(value: str | float) -> str:
    """Numbers with as many digits as a drawing shows."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
