"""How the administration looks: the console's colours, logo, links, as django-unfold takes them. No Django.

The two colour ramps are those of `frontend/static/css/tokens.css`; a test compares them.
"""

from typing import Any

SLATE = {
    "50": "oklch(98.4% .003 252)",
    "100": "oklch(96.6% .004 252)",
    "200": "oklch(92.4% .007 252)",
    "300": "oklch(86.8% .011 252)",
    "400": "oklch(70.6% .018 252)",
    "500": "oklch(54.6% .022 252)",
    "600": "oklch(44.4% .023 252)",
    "700": "oklch(36% .022 252)",
    "800": "oklch(27% .019 252)",
    "900": "oklch(20.6% .016 252)",
    "950": "oklch(16.4% .014 252)",
}

WATER = {
    "50": "oklch(97.4% .018 200)",
    "100": "oklch(94.2% .036 200)",
    "200": "oklch(89.4% .062 202)",
    "300": "oklch(82.8% .092 204)",
    "400": "oklch(75% .112 206)",
    "500": "oklch(64% .108 210)",
    "600": "oklch(52% .094 214)",
    "700": "oklch(45% .082 217)",
    "800": "oklch(38.6% .068 219)",
    "900": "oklch(33% .056 221)",
    "950": "oklch(23.6% .042 223)",
}

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Sluice",
    "SITE_HEADER": "Sluice",
    "SITE_SUBHEADER": "Administration",
    "SITE_URL": "/console/",
    "SITE_ICON": "/static/img/logo.svg",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "/static/img/favicon.svg"}],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "BORDER_RADIUS": "8px",
    "COLORS": {"base": SLATE, "primary": WATER},
    "LOGIN": {"form": "console.forms.AdminLoginForm"},
    "STYLES": ["/static/css/admin.css"],
    "SITE_DROPDOWN": [
        {"icon": "speed", "title": "Fleet now", "link": "/console/"},
        {"icon": "palette", "title": "Components", "link": "/console/components/"},
    ],
    "SIDEBAR": {"show_search": True, "show_all_applications": False},
}
