"""What a response says outside its body."""

from typing import Any

Headers = dict[str, dict[str, Any]]

EVERY: Headers = {
    "X-Request-Id": {"schema": {"type": "string", "format": "uuid"}, "description": "Names the request."},
    "OpenAI-Processing-Ms": {
        "schema": {"type": "integer", "minimum": 0},
        "description": "Until the response began.",
    },
}
REPLAYED: Headers = {
    "Idempotent-Replayed": {
        "schema": {"type": "string", "enum": ["true"]},
        "description": "The answer is another request's, with the same idempotency key.",
    }
}
RETRY: Headers = {
    "Retry-After": {
        "schema": {"type": "integer", "minimum": 1, "maximum": 60},
        "description": "Seconds to wait before the next attempt.",
    },
    "Retry-After-Ms": {
        "schema": {"type": "integer", "minimum": 1, "maximum": 60_000},
        "description": "The same in milliseconds.",
    },
    "X-Sluice-Limit": {
        "schema": {"type": "string"},
        "description": "The body's `limit` object: which limit, whose, how much is used, when it clears.",
    },
}
UPGRADE: Headers = {
    "Upgrade": {
        "schema": {"type": "string", "enum": ["websocket"]},
        "description": "What the connection has to be upgraded to.",
    }
}
CHALLENGE: Headers = {
    "WWW-Authenticate": {
        "schema": {"type": "string", "enum": ["Bearer"]},
        "description": "How to send a key.",
    }
}


def _quota(unit: str) -> Headers:
    """Of the tightest quota that counts this unit; absent where none does."""
    return {
        f"X-RateLimit-Limit-{unit.title()}": {
            "schema": {"type": "integer", "minimum": 0},
            "description": f"How many {unit} fit into the quota that is closest to its end.",
        },
        f"X-RateLimit-Remaining-{unit.title()}": {
            "schema": {"type": "integer", "minimum": 0},
            "description": f"How many {unit} are left of it, after this request.",
        },
        f"X-RateLimit-Reset-{unit.title()}": {
            "schema": {"type": "string"},
            "description": "Until it is full again, as in `1s` or `6m0s`.",
        },
    }


QUOTA: Headers = {
    **_quota("requests"),
    **_quota("tokens"),
    "RateLimit-Policy": {
        "schema": {"type": "string"},
        "description": "The same quotas as the IETF's draft says them: size and window in seconds.",
    },
    "RateLimit": {"schema": {"type": "string"}, "description": "What is left of them, and until when."},
}
DEGRADED: Headers = {
    "X-Degraded": {
        "schema": {"type": "string"},
        "description": "What this request gave up under pressure: `max_tokens`, `model`.",
    },
    "X-Model-Served": {
        "schema": {"type": "string"},
        "description": "The smaller model that answered, where another one was asked for.",
    },
}
