"""Our Valkey launcher: its password, what outlives a restart, and its end with its owner."""

from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from devservices.processes import ServerError
from devservices.valkey import ValkeyServer
from tests.devservices.processes import gone_within, line_of, script


def test_durable_data_outlives_a_restart(tmp_path: Path) -> None:
    server = ValkeyServer.start(tmp_path)
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "7")
    server.stop()

    again = ValkeyServer.start(tmp_path)

    with redis.Redis.from_url(again.url) as client:
        assert client.get("kept") == b"7"
    again.stop()


def test_data_that_is_not_durable_goes_with_the_server(tmp_path: Path) -> None:
    server = ValkeyServer.start(tmp_path, durable=False)
    with redis.Redis.from_url(server.url) as client:
        assert client.config_get("appendonly") == {"appendonly": "no"}

    server.stop()

    assert not server.home.exists()


def test_nobody_enters_without_the_password(tmp_path: Path) -> None:
    server = ValkeyServer.start(tmp_path, durable=False)

    stranger = redis.Redis(host="127.0.0.1", port=server.port, retry=Retry(NoBackoff(), 0))
    with stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()

    command_line = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert server.url.split(":")[2].split("@")[0].encode() not in command_line
    server.stop()


def test_two_servers_on_one_folder_are_refused(tmp_path: Path) -> None:
    server = ValkeyServer.start(tmp_path, durable=False)

    with pytest.raises(ServerError, match="in use"):
        ValkeyServer.start(tmp_path)

    server.stop()


def test_the_server_ends_with_a_killed_owner(tmp_path: Path) -> None:
    source = """
import sys, time
from pathlib import Path
from devservices.valkey import ValkeyServer
print(ValkeyServer.start(Path(sys.argv[1])).pid, flush=True)
time.sleep(60)
"""
    owner = script(source, str(tmp_path))
    pid = int(line_of(owner))

    owner.kill()
    owner.communicate()

    assert gone_within(pid, 5.0)


def test_a_server_that_outlived_its_owner_is_replaced(tmp_path: Path) -> None:
    server = ValkeyServer.start(tmp_path)
    left_behind = server.pid
    assert server._process is not None
    server.release()  # as if its owner had died: the folder is free, the process still runs

    again = ValkeyServer.start(tmp_path)

    assert server._process.wait(5.0) is not None
    assert again.pid != left_behind
    again.stop()
    server.stop()
