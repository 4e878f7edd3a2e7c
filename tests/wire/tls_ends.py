"""Two ends of wire connections, and certificates for them; whatever was opened is closed at the end."""

import asyncio
import socket
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from devservices.wire_certificates import certificates_make
from gpuworker.wire.connection import Connection, connect, listen
from gpuworker.wire.messages import AnyMessage, Cancel
from gpuworker.wire.tls import WireTls, tls_load

ROW = Cancel(sid=1)


def tls_of(folder: Path, name: str, *, days: int = 1) -> WireTls:
    """With a certificate of the authority in the folder."""
    (path,) = certificates_make(folder, [name], valid=timedelta(days=days))
    loaded = tls_load(str(path), str(path.with_suffix(".key")), str(folder / "ca.pem"))
    assert loaded is not None
    return loaded


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class Side:
    """What one end sees."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[AnyMessage] = asyncio.Queue()
        self.closed: asyncio.Queue[str] = asyncio.Queue()
        self.opened: asyncio.Queue[Connection] = asyncio.Queue()

    def message(self, connection: Connection, message: AnyMessage) -> None:
        self.messages.put_nowait(message)

    def close(self, connection: Connection, cause: str) -> None:
        self.closed.put_nowait(cause)


class Ends(AsyncExitStack):
    async def listen(self, side: Side, address: str, tls: WireTls | None) -> asyncio.AbstractServer:
        def opened(connection: Connection) -> None:
            self.callback(connection.abort, "over")
            side.opened.put_nowait(connection)

        listening = await listen(address, side.message, side.close, opened, tls=tls)
        self.push_async_callback(asyncio.sleep, 0.01)  # event loops close sockets in their next round
        self.callback(listening.close)
        return listening

    async def dial(
        self, side: Side, address: str, tls: WireTls | None, role: str = "worker", name: str = ""
    ) -> Connection:
        connection = await connect(address, side.message, side.close, tls=tls, role=role, name=name)
        self.callback(connection.abort, "over")
        return connection
