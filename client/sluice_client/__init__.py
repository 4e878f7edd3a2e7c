"""Client of a Sluice server: the official `openai` package, with streams that survive a broken connection."""

from sluice_client.answer import Answer, Restarted
from sluice_client.async_client import AsyncSluice
from sluice_client.async_stream import AsyncStream
from sluice_client.client import Sluice
from sluice_client.errors import ConfigurationError, StreamError, StreamLost
from sluice_client.policy import ResumePolicy
from sluice_client.stream import Stream

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncSluice",
    "AsyncStream",
    "ConfigurationError",
    "Restarted",
    "ResumePolicy",
    "Sluice",
    "Stream",
    "StreamError",
    "StreamLost",
]
