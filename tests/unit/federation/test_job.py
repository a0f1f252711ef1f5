"""A job: the same text at all sides, checked as if it came from an enemy."""

from __future__ import annotations

import json
from typing import Any

import pytest

import counterflow as cf
from counterflow.errors import CounterflowError, OptionError, PrivacyError
from counterflow.federation import Job

INPUTS = {"boiler": [cf.Channel("fuel", "kg/s", (0, 5)), cf.Channel("y1", "", (0, float("inf")))], "turbine": []}
JOBS = [
    Job("a", "sufficient", INPUTS, options={"tol": 1e-6}, privacy=cf.Privacy(1.0, 1e-6, models=(0.1, 1e-7), seed=1)),
    Job("b", "sufficient", INPUTS, options={"rank": {"boiler": 2, "turbine": 1}}, from_logs=True, dt=0.5),
    Job("k", "sufficient", INPUTS, options={"edges": [["boiler", "turbine"]], "forbidden": [["turbine", "boiler"]]}),
    Job("c", "penalty", INPUTS, options={"xi": {"boiler": 1.0, "turbine": 2}, "rounds": 5}, seed=3),
    Job("d", "lagrangian", INPUTS, privacy=cf.Privacy(1.0, 1e-6, accounting="published")),
    Job("e", "questions", INPUTS, {"of": "a"}, created="2026-01-01T00:00:00+00:00"),
]


@pytest.mark.parametrize("job", JOBS)
def test_a_job_survives_its_text(job: Job) -> None:
    again = Job.from_text(job.to_text())
    assert again.to_text() == job.to_text()
    assert (again.units, again.inputs, again.privacy) == (job.units, job.inputs, job.privacy)
    assert dict(again.options) == dict(job.options)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"more": 1}, "more: is no field"),
        ({"format": 3}, "upgrade"),
        ({"id": "../x"}, "id must be"),
        ({"id": "x" * 65}, "id must be"),
        ({"id": ".hidden"}, "id must be"),
        ({"method": "centralized"}, "method must be"),
        ({"method": ["sufficient"]}, "method: should be str"),
        ({"inputs": {}}, "1 to 1000"),
        ({"inputs": []}, "inputs: should be Mapping"),
        ({"inputs": {"a/b": []}}, "inputs: has keys"),
        ({"inputs": {"a": None}}, "inputs/a: is null"),
        ({"inputs": {"a": [{"name": "u", "unit": "", "limits": [1]}]}}, "limits"),
        ({"inputs": {"a": [{"name": "u", "unit": "", "limits": [0, 10**400]}]}}, "limits"),
        ({"inputs": {"a": [{"name": 3, "unit": "", "limits": None}]}}, "name"),
        ({"options": {"nothing": 1}}, "no option 'nothing'"),
        ({"options": {"tol": [1]}}, "options/tol/0: should be list"),
        ({"options": {"edges": [["boiler", 3]]}}, "options/edges/0/1: should be str"),
        ({"options": {"edges": [["boiler", "pump"]]}}, "the units are boiler, turbine"),
        ({"options": {"edges": [["boiler", "turbine", "boiler"]]}}, "is no pair"),
        ({"options": {"tol": [["boiler", "turbine"]]}}, "must be a finite number"),
        ({"options": {"tol": {"a": {"b": 1}}}}, "options/tol/a: should be"),
        ({"options": {"tol": "a\u202eb"}}, "U\\+202E"),
        ({"options": []}, "options: should be Mapping"),
        ({"options": {"rank": 2}}, "for fits from logs"),
        ({"method": "penalty", "options": {"compress": True}}, "pools"),
        ({"method": "penalty", "options": {"xi": {"pump": 1}}}, "xi"),
        ({"method": "questions"}, "one option, 'of'"),
        ({"method": "questions", "options": {"of": "../x"}}, "one option, 'of'"),
        ({"method": "questions", "options": {"of": "a", "tol": 1.0}}, "one option, 'of'"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"begins": 3}, "begins"),
        ({"begins": "2026\n"}, "begins"),
        ({"dt": 0}, "dt"),
        ({"dt": 10**400}, "dt: should be float"),
        ({"options": {"tol": 10**400}}, "options/tol: should be bool"),
        ({"from_logs": 1}, "from_logs"),
        ({"method": "penalty", "from_logs": True}, "needs models"),
        ({"created": "yesterday"}, "created"),
        ({"created": ""}, "created"),
        ({"privacy": {"epsilon": 1}}, "is missing from Privacy"),
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, Any], text: str) -> None:
    good = json.loads(Job("a", "sufficient", INPUTS).to_text())
    with pytest.raises(OptionError, match=text):
        Job.from_text(json.dumps({**good, **change}))


def test_privacy_of_a_job_is_checked() -> None:
    good = json.loads(JOBS[0].to_text())
    for key, value in (("epsilon", "1"), ("delta", [1]), ("window", 0), ("models", [1]), ("models", {}), ("seed", "x")):
        with pytest.raises(CounterflowError):
            Job.from_json({**good, "privacy": {**good["privacy"], key: value}})
    with pytest.raises(OptionError, match="own affair"):
        Job("a", "sufficient", INPUTS, privacy=cf.Privacy(1.0, 1e-6, ledger="budgets"))
    with pytest.raises(PrivacyError, match="very rows"):
        Job("a", "sufficient", INPUTS, privacy=cf.Privacy(1.0, 1e-6, release="rows"), from_logs=True)
    with pytest.raises(CounterflowError, match="release"):
        Job.from_json({**good, "privacy": {**good["privacy"], "release": "everything"}})
    with pytest.raises(OptionError, match="accounting='published'"):
        Job("a", "penalty", INPUTS, privacy=cf.Privacy(1.0, 1e-6))


def test_texts_that_are_no_job_are_refused() -> None:
    for text in ("", "3", "[]", "{}", "[" * 100_000, "1" * 10_000, "x" * (1 << 21), b"\xff\xfe"):
        with pytest.raises(OptionError):
            Job.from_text(text)
