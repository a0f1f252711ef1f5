"""A plant's policy: strict reading with line numbers, strict defaults, who may ask; and the gate at the coordinator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow.errors import OptionError, PrivacyError, ProtocolError, StorageError
from counterflow.federation import Audit, Policy, QuestionGate
from counterflow.federation.audit import FILE
from counterflow.federation.policy import default_policy
from counterflow.protocol import Ask, Change

WHOLE = """
unit = "boiler"

[leave]
methods = ["sufficient", "penalty"]
kinds = ["Sufficient"]
largest_rows = 1_000
largest_bytes = 2_000

[privacy]
demanded = true
epsilon = 0.5
delta = 1e-7
window = 3
ledger = "budgets"
published = true
simulation = true

[ask]
turbine = ["valve", "pump"]
"unit 7" = ["*"]

[answers]
allowed = false
"""


def test_a_policy_says_what_its_file_says(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE)
    policy = Policy.read(path)
    assert policy == Policy(
        "boiler", ("sufficient", "penalty"), frozenset({"Sufficient"}), 1000, 2000, epsilon=0.5, delta=1e-7, window=3,
        ledger=tmp_path / "budgets", published=True, simulation=True, answers=False,
        ask={"turbine": ("valve", "pump"), "unit 7": ("*",)},
    )  # fmt: skip
    assert (policy.lines["privacy.demanded"], policy.lines["ask"]) == (11, 19)


def test_the_policy_of_a_new_plant_is_the_strict_one() -> None:
    told = Policy.from_text(default_policy("boiler", ask={"turbine": ["valve"]}), Path("policy.toml"))
    assert told == Policy("boiler", ledger=Path("budgets"), ask={"turbine": ("valve",)})


def test_defaults_are_strict() -> None:
    policy = Policy.from_text('unit = "boiler"')
    assert policy.demanded
    assert not policy.simulation
    assert not policy.published
    assert not policy.inputs_shown
    assert not policy.reacting_inputs
    assert policy.methods == ("sufficient",)
    assert not policy.ask
    assert policy.may_ask("turbine", ["fuel"]) is not None
    assert policy.may_ask("turbine", []) is not None


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ('unit = "boiler"', "unit = 3", 2, "must be text"),
        ('unit = "boiler"', 'unit = "boiler"\nunits = 1', 3, "there is no such key"),
        ('methods = ["sufficient", "penalty"]', 'methods = ["centralized"]', 5, "'centralized' is unknown"),
        ('methods = ["sufficient", "penalty"]', 'methods = "sufficient"', 5, "must be a list"),
        ('kinds = ["Sufficient"]', 'kinds = ["Answer"]', 6, "'Answer' is unknown"),
        ("largest_rows = 1_000", "largest_rows = 0", 7, "whole number from 1"),
        ("largest_bytes = 2_000", "largest_bytes = 1e3", 8, "whole number from 1"),
        ("largest_bytes = 2_000", "jobs_per_hour = 0", 8, "whole number from 1"),
        ("demanded = true", 'approval = "some"', 11, "'some' is unknown; there are none, each"),
        ("demanded = true", "demanded = 1", 11, "true or false"),
        ("demanded = true", "demand = true", 11, "there is no such key; there are demanded"),
        ("epsilon = 0.5", "epsilon = -1", 12, "above 0"),
        ("epsilon = 0.5", "epsilon = inf", 12, "finite"),
        ("epsilon = 0.5", f"epsilon = {10**400}", 12, "finite"),
        ("delta = 1e-7", "delta = 1", 13, "below 1"),
        ("window = 3", "window = true", 14, "whole number"),
        ('ledger = "budgets"', 'ledger = ""', 15, "must be text"),
        ('turbine = ["valve", "pump"]', 'turbine = "valve"', 20, "must be a list"),
        ('turbine = ["valve", "pump"]', "turbine = [1]", 20, "must be a list"),
        ('"unit 7" = ["*"]', '"unit 7" = [""]', 21, "must be a list"),
        ("allowed = false", "allowed = 'no'", 24, "true or false"),
        ("[answers]\nallowed = false", "[answer]\nallowed = false", 23, "there is no such key"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, line: int, text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    assert old in WHOLE
    path.write_text(WHOLE.replace(old, new))
    with pytest.raises(OptionError, match=text) as caught:
        Policy.read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_files_that_are_no_policy_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with pytest.raises(StorageError, match="cannot be read"):
        Policy.read(path)
    path.write_bytes(b"\xff")
    with pytest.raises(StorageError, match="UTF-8"):
        Policy.read(path)
    path.write_bytes(b"#" * (1 << 21))
    with pytest.raises(StorageError, match="bytes"):
        Policy.read(path)
    for text in ("unit = ", "unit = " + "[" * 100_000, "x = " + "1" * 10_000):
        with pytest.raises(OptionError, match="not TOML"):
            Policy.from_text(text)
    with pytest.raises(OptionError, match="must be text"):
        Policy.from_text("")


def test_the_asking_part_travels() -> None:
    policy = Policy.from_text(WHOLE)
    told = json.loads(json.dumps(policy.asking()))
    again = Policy.from_asking(told)
    assert again.asking() == policy.asking()
    assert again.methods == (), "a policy that has travelled lets nothing out"
    for wrong in ({}, {**told, "more": 1}, {**told, "ask": {"turbine": "valve"}}, {**told, "answers": 1}, None, []):
        with pytest.raises(OptionError):
            Policy.from_asking(wrong)


# ---- the gate

INPUTS = {"boiler": ("fuel", "valve"), "turbine": ("speed",), "condenser": ()}


def gate(audit: Audit | None = None, **texts: str) -> QuestionGate:
    return QuestionGate(
        {name: Policy.from_text(f'unit = "{name}"\n' + texts.get(name, "")) for name in INPUTS}, INPUTS, audit
    )


def change(cause: str, *values: float, unit: str = "turbine", absolute: bool = False, channels: str = "") -> Change:
    made = Change(unit, cause, absolute, 0, channels, np.array([values], np.float64))
    return made.naming(INPUTS.get(cause, ("x",))[: len(values)])


EFFECT = Ask("turbine", "effect", 0, 1)


def test_a_question_needs_the_leave_of_every_unit_it_is_about() -> None:
    closed, opened = gate(), gate(boiler='[ask]\nturbine = ["valve"]')
    valve, fuel, own = change("boiler", 0, 1), change("boiler", 1, 1), change("turbine", 1)
    assert "does not let 'turbine' ask" in (closed.refusal("turbine", [valve], EFFECT) or "")
    assert opened.refusal("turbine", [valve], EFFECT) is None
    assert opened.refusal("turbine", [valve, own], EFFECT) is None
    assert "'fuel'" in (opened.refusal("turbine", [fuel], EFFECT) or "")
    assert "'fuel'" in (opened.refusal("turbine", [valve, fuel], EFFECT) or "")
    assert closed.refusal("turbine", [own], EFFECT) is None
    assert "'boiler'" in (opened.refusal("condenser", [change("boiler", 0, 1, unit="condenser")], EFFECT) or "")


def test_replacing_an_input_by_zero_is_asking_about_it() -> None:
    """Adding zero is not; and only the columns that are meant count."""
    opened = gate(boiler='[ask]\nturbine = ["valve"]')
    assert "'fuel'" in (opened.refusal("turbine", [change("boiler", 0, 0, absolute=True)], EFFECT) or "")
    assert opened.refusal("turbine", [change("boiler", 9, 0, absolute=True, channels="1")], EFFECT) is None
    assert opened.refusal("turbine", [change("boiler", 9, 1, channels="1")], EFFECT) is None


@pytest.mark.parametrize(
    ("boiler", "told"), [("", False), ('[ask]\nturbine = ["valve"]', False), ('[ask]\nturbine = ["*"]', True)]
)
def test_an_attribution_leaves_out_whoever_is_closed(boiler: str, told: bool) -> None:
    """What a closed unit has done is not told; it stands in the rest, which the asker makes of its measurements."""
    plant = cf.Plant(
        units=(cf.Unit("boiler", 1, ["fuel", "valve"], 1), cf.Unit("turbine", 1, ["speed"], 1),
               cf.Unit("condenser", 1, [], 1)),
        A=0.5 * np.eye(3), B=np.ones((3, 3)), C=np.eye(3), Q=np.eye(3), R=np.eye(3),
    )  # fmt: skip
    recording = plant.simulate(30, rng=1)
    fit = cf.fit(recording, plant, method="oracle")
    ask = Ask("turbine", "attribution", 5, 10)
    parts = gate(boiler=boiler).answer(fit.about(recording), "turbine", [], ask)
    assert ("boiler" in [part.share for part in parts]) is told
    assert {"baseline", "initial state", "turbine", "condenser"} <= {part.share for part in parts}
    assert ("the inputs of boiler" in parts[0].caveats) is not told
    whole = {part.share: part.mean for part in fit.about(recording).answer([], ask)}
    for part in parts:
        np.testing.assert_array_equal(part.mean, whole[part.share])


def test_a_unit_may_forbid_its_own_questions() -> None:
    closed = gate(turbine="[answers]\nallowed = false", boiler='[ask]\nturbine = ["*"]')
    assert "answers.allowed" in (closed.refusal("turbine", [change("boiler", 1, 0)], EFFECT) or "")
    without = QuestionGate({"turbine": Policy("turbine")}, INPUTS)
    assert "no policy" in (without.refusal("turbine", [change("boiler", 1, 0)], EFFECT) or "")


def test_a_change_is_about_inputs_by_their_names() -> None:
    """An asker that knows some of a unit's inputs only cannot say which columns they are."""
    opened = gate(boiler='[ask]\nturbine = ["*"]')
    assert opened.refusal("turbine", [change("boiler", 1).naming(["valve"])], EFFECT) is None
    assert "no unit 'pump'" in (opened.refusal("turbine", [change("pump", 1)], EFFECT) or "")
    with pytest.raises(ProtocolError, match="names its inputs"):
        opened.refusal("turbine", [replace(change("boiler", 1), inputs="")], EFFECT)
    for names in (["fuel"], ["fuel", "fuel"], ["fuel", "valve", "speed"]):
        with pytest.raises(ProtocolError, match="each column of the values once"):
            change("boiler", 1, 1).naming(names)
    for text in ("[", "{}", "[1, 2]", "3"):
        with pytest.raises(ProtocolError, match="'inputs'"):
            replace(change("boiler", 1, 1), inputs=text)
    assert opened.openings("turbine") == {"boiler": ["fuel", "valve"], "condenser": []}
    assert gate(boiler='[ask]\nturbine = ["valve"]').openings("turbine")["boiler"] == ["valve"]
    with pytest.raises(PrivacyError, match=r"answers\.allowed"):
        gate(turbine="[answers]\nallowed = false").openings("turbine")


def test_answers_and_refusals_are_written_down(tmp_path: Path) -> None:
    plant = cf.Plant(
        units=(cf.Unit("boiler", 1, ["fuel", "valve"], 1), cf.Unit("turbine", 1, ["speed"], 1),
               cf.Unit("condenser", 1, [], 1)),
        A=0.5 * np.eye(3), B=np.ones((3, 3)), C=np.eye(3), Q=np.eye(3), R=np.eye(3),
    )  # fmt: skip
    server = cf.fit(plant.simulate(30, rng=1), plant, method="oracle").server
    with Audit(tmp_path / FILE) as audit:
        opened = gate(audit, boiler='[ask]\nturbine = ["valve"]')
        found, *_ = opened.answer(server, "turbine", [change("boiler", 0, 1)], EFFECT)
        assert found.mean.shape == (1, 1)
        with pytest.raises(PrivacyError, match=r"'fuel'.*change its policy"):
            opened.answer(server, "turbine", [change("boiler", 1, 0)], EFFECT)
        with pytest.raises(ProtocolError, match="asks as 'boiler'"):
            opened.answer(server, "turbine", [change("boiler", 0, 1, unit="boiler")], EFFECT)
        with pytest.raises(ProtocolError, match="asks as 'turbine'"):
            opened.answer(server, "boiler", [], EFFECT)
        with pytest.raises(ProtocolError, match="takes part"):
            opened.answer(server, "pump", [], Ask("pump", "effect", 0, 1))
        with pytest.raises(ProtocolError, match="1000 at most"):
            opened.answer(server, "turbine", [change("boiler", 0, 1)] * 1001, EFFECT)
        with pytest.raises(ProtocolError, match="100000 at most"):
            opened.answer(server, "turbine", [change("boiler", 0, 1)], Ask("turbine", "effect", 0, 100_001))
        reach = Ask("turbine", "restoration", 0, 2)
        with pytest.raises(PrivacyError, match="'fuel'"):  # named, whatever the values are
            opened.answer(server, "turbine", [change("boiler", 0, 0)], reach)
        (held,) = opened.answer(server, "turbine", [change("boiler", 0, 0, channels="1")], reach)
        assert (held.share, held.mean.shape, held.headroom.shape) == ("boiler", (2, 1), (1, 3))
        events = [record["event"] for record in audit.records()]
    assert events == ["answered", *["refused"] * 7, "answered"]
    with pytest.raises(PrivacyError, match="policy is that of unit 'boiler'"):
        QuestionGate({"turbine": Policy("boiler")}, INPUTS)


def test_controllers_react_only_if_the_file_says_so() -> None:
    assert not Policy.from_text('unit = "boiler"\n').react
    told = Policy.from_text('unit = "boiler"\n[controllers]\nreact = true\ntrials_per_day = 7\n')
    assert (told.react, told.trials_per_day) == (True, 7)
    assert "react" not in told.asking(), "what is said of controllers is said by the plant's part of the fit"
    for wrong in ("react = 1", "trials_per_day = 0", "trials_per_day = -1", 'laws = "all"'):
        with pytest.raises(OptionError, match=r"policy.toml:3: controllers\."):
            Policy.from_text(f'unit = "boiler"\n[controllers]\n{wrong}\n')
