"""The API is fuzzed against its own schema: never a 5xx, and every answer is what the schema promises."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

import counterflow as cf

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'counterflow[console]'")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")

import schemathesis

from counterflow.console.app import create

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the fuzzer's own dependencies

EXAMPLES = 20  # of each operation
SEATS = ("unit:turbine", "unit:turbine", "unit:turbine", "unit:boiler", "server")


def _application() -> Any:
    valve = cf.Channel("valve", "%", (-8.0, 8.0))
    units = [cf.Unit(name, 2, [valve, "speed"], ["y0", "y1", "y2"]) for name in ("boiler", "turbine")]
    plant = cf.random_plant(units, rng=1)
    recording = plant.simulate(400, rng=2)
    with tempfile.TemporaryDirectory() as folder:
        cf.fit(recording, plant.locals()).save(f"{folder}/fit")
        recording.save(f"{folder}/recording.safetensors")
        return create(Path(folder) / "fit")


APPLICATION = _application()
SCHEMA = schemathesis.openapi.from_asgi("/api/openapi.json", APPLICATION)
NAMES = {"unit": "turbine", "effect": "turbine", "input": "valve", "channel": "y1"}


def _likely(value: Any, key: str = "", depth: int = 0) -> Any:
    """Names that exist in place of most of those that were made up, so that questions get past the first check."""
    if key == "target" and isinstance(value, dict):
        return dict(zip(("y0", "y1"), value.values(), strict=False))
    if isinstance(value, dict):
        return {name: _likely(each, name, depth + 1) for name, each in value.items()}
    if isinstance(value, list) and key in ("changes", "using", "plan"):
        return [_likely(each, key, depth + 1) for each in value]
    if key == "inputs" and isinstance(value, list):
        return ["valve", "speed"][: max(1, len(value) % 3)]
    if key == "draw":
        return ["y0"] if isinstance(value, list) else "y0" if isinstance(value, str) else value
    if key in ("start", "stop", "horizon", "length") and isinstance(value, int):
        return 1 + value % 200 + 200 * (key == "stop")
    if key in ("size", "value") and isinstance(value, float) and int(value) % 3:
        return value % 5.0
    if key == "values" and isinstance(value, list):
        return value[:1]
    if isinstance(value, str) and key in NAMES:
        return "boiler" if key == "unit" and depth > 1 else NAMES[key]
    return value


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_as_the_schema_says(case: Any) -> None:
    _ask(case)


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_with_names_that_exist(case: Any) -> None:
    if case.path_parameters:
        case.path_parameters["seat"] = SEATS[len(json.dumps(case.body, default=str)) % 5]
    if isinstance(case.body, dict):
        case.body = _likely(case.body)
    if case.query and "channel" in case.query:
        case.query["channel"] = "y1"
    _ask(case)


def _ask(case: Any) -> None:
    checks = [schemathesis.checks.not_a_server_error, schemathesis.specs.openapi.checks.response_schema_conformance,
              schemathesis.specs.openapi.checks.status_code_conformance,
              schemathesis.specs.openapi.checks.content_type_conformance]  # fmt: skip
    case.call_and_validate(checks=checks)
