"""Pushes the fleet's state to operators' browsers over a WebSocket.

Only staff: everybody else is refused before the handshake completes. The session is read again while the
socket is open, so that a log-out, an expiry, a new password or a lost staff flag ends the stream too.
"""

import asyncio
import logging
import time
from importlib import import_module
from typing import Any

import msgspec
from channels.auth import get_user
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError

from console.contracts import FleetUnavailable
from console.selectors import fleet_read_async
from modelsvc.fleet_contracts import FLEET_GROUP

FORBIDDEN = 4403
TRY_AGAIN = 1013  # IANA registry of WebSocket close codes: try again later
RECHECK_S = 15.0

logger = logging.getLogger(__name__)


def _now_ms() -> int:
    """Sent along, so that a browser can tell the age of a state whatever its own clock says."""
    return time.time_ns() // 1_000_000


class FleetConsumer(AsyncJsonWebsocketConsumer):
    """Latest state and history on connect, then every state the controller publishes to the group."""

    recheck: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        if not await self._is_staff():
            await self.close(code=FORBIDDEN)
            return
        await self.channel_layer.group_add(FLEET_GROUP, self.channel_name)
        await self.accept()
        self.recheck = asyncio.create_task(self._recheck())
        await self._send_snapshot()

    async def disconnect(self, code: int) -> None:
        if self.recheck is not None:
            self.recheck.cancel()
        await self.channel_layer.group_discard(FLEET_GROUP, self.channel_name)

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: object
    ) -> None:
        """A browser only ever asks whether the line is up; anything else is ignored."""
        if text_data == "ping":
            await self.send(text_data="pong")

    async def fleet_state(self, event: dict[str, Any]) -> None:
        """Group message {"type": "fleet.state", "state": …}."""
        await self.send_json({"type": "state", "now_ms": _now_ms(), "state": event["state"]})

    async def _send_snapshot(self) -> None:
        try:
            state, history = await fleet_read_async()
        except FleetUnavailable as error:
            await self.send_json({"type": "unavailable", "now_ms": _now_ms(), "message": str(error)})
            return
        message = {"type": "snapshot", "now_ms": _now_ms(), "state": state, "history": history}
        await self.send(text_data=msgspec.json.encode(message).decode())

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            try:
                allowed = await self._is_staff()
            except DatabaseError:  # cannot tell: the browser comes back and is looked at anew
                logger.exception("a viewer's session could not be checked")
                await self.close(code=TRY_AGAIN)
                return
            if not allowed:
                await self.close(code=FORBIDDEN)
                return

    async def _is_staff(self) -> bool:
        """By the session as it is stored now, not as it was when the socket was opened."""
        key = self.scope["session"].session_key
        if key is None:
            return False
        stored = import_module(settings.SESSION_ENGINE).SessionStore(key)
        user = await get_user({"session": stored})  # type: ignore[typeddict-item]  # it reads no other key
        return user.is_active and getattr(user, "is_staff", False)
