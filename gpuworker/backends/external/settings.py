"""Which server an external replica stands for, and how long it is waited for."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """`model` is the server's own name for it; `revision`, where the server tells one, must agree. `key` is
    sent as a bearer token and never shown."""

    url: str
    model: str
    flavour: str = "generic"
    revision: str = ""
    key: str = field(default="", repr=False)
    connect_s: float = 3.0
    first_token_s: float = 30.0
    silence_s: float = 20.0  # between tokens
    check_s: float = 10.0  # between looks at what model is served
