"""The process that is measured: `python -m bench.gateway.server gateway|bare FD CORE [PROFILE]`.

uvicorn as in production, on one core. With a PROFILE path cProfile runs around it, and is written there.
"""

import cProfile
import logging
import os
import sys
from typing import Final

import uvicorn

APPLICATIONS: Final = {"gateway": "tests.gateway.server:make", "bare": "bench.gateway.bare:make"}


def main() -> None:
    kind, descriptor, core, *profile = sys.argv[1:]
    logging.getLogger("gateway").setLevel(logging.ERROR)  # PostgreSQL and Valkey are away, as it would say
    os.sched_setaffinity(0, {int(core)})  # before there are threads, which inherit it
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    try:
        uvicorn.run(
            APPLICATIONS[kind],
            factory=True,
            fd=int(descriptor),
            loop="uvloop",
            http="gateway.http.protocol:BoundedHttpProtocol",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=2,
        )
    finally:
        if profile:
            profiler.disable()
            profiler.dump_stats(profile[0])


if __name__ == "__main__":
    main()
