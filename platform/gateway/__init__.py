"""The hot path: OpenAI-compatible HTTP and SSE as a raw ASGI application. No Django, no ORM, no pydantic."""
