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

    def command(self, port: int) -> list[str]:
        arguments = self.arguments.format(port=port).split()
        return [sys.executable, "-m", self.name, *arguments, APPLICATION]


UVICORN = Server(
    "uvicorn",
    "--host 127.0.0.1 --port {port} --loop uvloop --http gateway.http_protocol:BoundedHttpProtocol"
    " --ws websockets-sansio --no-server-header --no-access-log --timeout-graceful-shutdown 10",
    has_lifespan=True,
    drains=True,
)
DAPHNE = Server(
    "daphne",
    "--bind 127.0.0.1 --port {port} --no-server-name --verbosity 0",
    has_lifespan=False,
    drains=False,
)
GRANIAN = Server(
    "granian",
    "--interface asgi --host 127.0.0.1 --port {port} --loop uvloop --http 1 --workers-kill-timeout 15",
    has_lifespan=True,
    drains=True,
)
SERVERS = (UVICORN, DAPHNE, GRANIAN)
