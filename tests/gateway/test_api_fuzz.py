"""Schemathesis over the OpenAPI document, against a running gateway: nothing undocumented, no server error.

`make fuzz SUITE=api` runs the same for as long as one likes (`SLUICE_FUZZ_SECONDS`).
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from devservices.valkey import ValkeyServer
from gateway.dialects.registry import ENDPOINTS
from tests.conftest import Database
from tests.gateway.durable import fleet_started
from tests.gateway.full_worker import answer_everything
from tests.gateway.harness import MODEL

SECONDS = int(os.environ.get("SLUICE_FUZZ_SECONDS", "45"))
MARGIN_S = 60
LONG_S = 300
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
CONFIG = """
[generation]
allow-extra-parameters = false # unknown headers and query parameters are nobody's fault
[checks]
# 501 is what is documented; 504 is what a deadline of a millisecond asks for, without one it takes minutes
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 504]
"""


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The same for a client that knows the models: else almost every request would be for none."""
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}) and schema.get("additionalProperties") is False:
            schema["properties"]["model"] = {"enum": [MODEL]}
    return document


@pytest.mark.slow
async def test_the_gateway_does_what_its_document_says(
    database: Database, valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with fleet_started(database, valkey, gateways=1) as fleet:
        (gateway,) = fleet.gateways
        with gateway.dispatcher.scripted(answer_everything(gateway.dispatcher)):
            document = json.loads((await fleet.get("/v1/openapi.json")).body)
            (tmp_path / "openapi.json").write_text(json.dumps(narrowed(document)))
            status, said = await schemathesis_run(tmp_path, gateway.port, fleet.customer.key)
            assert status == 0, said[-20_000:]
            assert (await fleet.get("/readyz")).status == 200
            answered = answered_routes((await fleet.get("/metrics")).body.decode())
            assert answered >= {*ENDPOINTS, "/v1/usage/{id}"}, "it never got that far"
            if SECONDS >= LONG_S:  # a stream that may be read again comes by chance
                assert "/v1/streams/{id}" in answered
            await gateway.idle()


def answered_routes(metrics: str) -> set[str]:
    """Those that succeeded at least once."""
    pattern = r'^sluice_gateway_responses_total\{code="",route="([^"]+)",status="200"\}'
    return set(re.findall(pattern, metrics, re.MULTILINE))


async def schemathesis_run(folder: Path, port: int, key: str) -> tuple[int, str]:
    """Exit status and report; `folder` holds the document."""
    (folder / "schemathesis.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json"]
    command += ["--url", f"http://127.0.0.1:{port}", "--header", f"Authorization: Bearer {key}"]
    command += ["--max-time", str(SECONDS), "--checks", ",".join(CHECKS), "--continue-on-failure"]
    command += ["--generation-database", "none", "--no-color", "--warnings", "off", "--request-timeout", "20"]
    report = folder / "report"
    with report.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdout=file, stderr=file, env={"PATH": os.environ["PATH"]}
        )
        try:
            status = await asyncio.wait_for(process.wait(), SECONDS + MARGIN_S)
        finally:
            if process.returncode is None:
                process.kill()
    said = report.read_text()
    sys.stdout.write(said)
    return status, said
