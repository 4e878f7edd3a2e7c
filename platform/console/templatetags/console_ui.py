"""Template helpers of the design system: icons, meters, times."""

from datetime import UTC, datetime

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.formats import percent_text

register = template.Library()


@register.simple_tag
def icon(name: str, modifier: str = "") -> SafeString:
    """A decorative icon of the sprite; the text beside it carries the meaning."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        modifier,
        static("img/icons.svg"),
        name,
    )


@register.filter
def hundredths(share: float) -> str:
    """0.6243 → 62.43, for the width of a meter."""
    return f"{max(0.0, min(1.0, share)) * 100:.2f}"


@register.filter
def percent(share: float) -> str:
    """0.624 → 62 %."""
    return percent_text(share)


@register.filter
def meter_level(share: float) -> str:
    """From where on a meter warns: the colour changes, the figure beside it says it too."""
    return "full" if share >= 0.95 else "high" if share >= 0.8 else "normal"


@register.filter
def iso_time(at_ms: int) -> str:
    """Unix milliseconds → 2026-01-31T12:04:31+00:00, for <time datetime>."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


@register.filter
def utc_clock(at_ms: int) -> str:
    """Unix milliseconds → 12:04:31 UTC; the browser replaces it with the viewer's own time."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S UTC")
