"""The HTTP servers that the front door runs under, each with the command of the documentation."""

import sys
from dataclasses import dataclass

APPLICATION = "config.asgi:application"


@dataclass(frozen=True, slots=True)
class Server:
    """`arguments` of `python -m <name>`, with the port still to be filled in."""

    name: str
    arguments: str
    has_lifespan: bool  # it tells the application of its start and stop
    drains: bool  # after SIGTERM what runs may finish
    lingers: bool  # a client that still sends can read why it was refused

    def command(self, port: int) -> list[str]:
        arguments = self.arguments.format(port=port).split()
        return [sys.executable, "-m", self.name, *arguments, APPLICATION]


UVICORN = Server(
    "uvicorn",
    "--host 127.0.0.1 --port {port} --loop uvloop --http gateway.http.protocol:BoundedHttpProtocol"
    " --ws gateway.websocket.server_protocol:BoundedWebSocketProtocol --no-server-header --no-access-log"
    " --timeout-graceful-shutdown 10",
    has_lifespan=True,
    drains=True,
    lingers=True,
)
DAPHNE = Server(
    "daphne",
    "--bind 127.0.0.1 --port {port} --no-server-name --verbosity 0",
    has_lifespan=False,
    drains=False,
    lingers=True,
)
GRANIAN = Server(
    "granian",
    "--interface asgi --host 127.0.0.1 --port {port} --loop uvloop --http 1"
    " --backlog 4096 --backpressure 4096"  # requests served at once: of a worker, and by default 1,024
    " --http1-header-read-timeout 10000 --http1-buffer-size 32768 --workers-kill-timeout 15",
    has_lifespan=True,
    drains=True,
    lingers=False,
)
SERVERS = (UVICORN, DAPHNE, GRANIAN)
