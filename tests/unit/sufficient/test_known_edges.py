"""Known and impossible couplings: what was ruled out is zero everywhere, and what is left is estimated rightly."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from loopback import fit_over_sessions
from tolerances import EXACT

import counterflow as cf
from counterflow import records
from counterflow.errors import OptionError, StorageError
from counterflow.federation import Job, Policy
from counterflow.fits import content, storage
from counterflow.learning.information import positions, settled_information
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.parameters import Parameters

NAMES = ("boiler", "turbine", "condenser")
CHAIN = [("boiler", "turbine"), ("turbine", "condenser")]
IMPOSSIBLE = [pair for pair in permutations(NAMES, 2) if pair not in CHAIN]


def chain(steps: int = 600, seed: int = 2) -> tuple[cf.Plant, cf.Recording]:
    plant = cf.random_plant(units=NAMES, topology="chain", outputs=4, rng=1)
    return plant, plant.simulate(steps, rng=seed)


def obeys(found: cf.Fit, impossible: list[tuple[str, str]] = IMPOSSIBLE) -> bool:
    """Whether estimates and standard errors of impossible pairs are zero, and those of others are not."""
    errors = found.standard_errors
    for cause, effect in permutations(found.names, 2):
        rows = found.plant.state_slice(effect)
        for letter, columns in (("A", found.plant.state_slice(cause)), ("B", found.plant.input_slice(cause))):
            blocks = found.plant.block(letter, effect, cause), getattr(errors, letter)[rows, columns]
            zero = [not block.any() for block in blocks]
            if zero != [(cause, effect) in impossible] * 2:
                return False
    return True


@pytest.mark.parametrize("method", ["sufficient", "centralized"])
@pytest.mark.parametrize("estimate", ["couplings", "blocks", "all"])
def test_what_is_impossible_is_zero(method: str, estimate: str) -> None:
    plant, recording = chain()
    told = {"method": method, "estimate": estimate, "tol": 1e-7}
    only = cf.fit(recording, plant.locals(), edges=CHAIN, **told)
    without = cf.fit(recording, plant.locals(), forbidden=[list(pair) for pair in IMPOSSIBLE], **told)
    assert only.status.converged
    assert obeys(only)
    assert obeys(without)
    np.testing.assert_array_equal(only.plant.A, without.plant.A)
    one = cf.fit(recording, plant.locals(), forbidden=[("turbine", "boiler")], **told)
    assert obeys(one, [("turbine", "boiler")])


@pytest.mark.parametrize("estimate", ["couplings", "all"])
def test_covariance_is_that_of_the_whole_information_without_the_impossible(estimate: str) -> None:
    plant, recording = chain()
    found = cf.fit(recording, plant.locals(), estimate=estimate, edges=CHAIN)
    record, at = found.couplings.shared, found.couplings.found
    dense = Parameters(record, estimate, np.eye(len(plant.A)))
    information = settled_information(record, dense, at.A, at.B, at.Q)
    moving = {*zip(*positions(at.parameters), strict=True)}
    kept = [k for k, place in enumerate(zip(*positions(dense), strict=True)) if place in moving]
    noises = range(dense.coupling_size(), len(information))
    inside = np.ix_([*kept, *noises], [*kept, *noises])
    wanted = np.linalg.inv(information[inside])[: len(kept), : len(kept)]
    np.testing.assert_allclose(found.uncertainty.covariance, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_knowing_the_couplings_makes_the_others_more_exact_and_errors_stay_honest() -> None:
    gaps: dict[str, list[np.ndarray]] = {"known": [], "open": []}
    scores = []
    for seed in range(12):
        plant, recording = chain(300, seed)
        known = cf.fit(recording, plant.locals(), edges=CHAIN)
        errors = np.hstack([known.standard_errors.A, known.standard_errors.B])
        for name, found in (("known", known), ("open", cf.fit(recording, plant.locals()))):
            gaps[name].append(np.hstack([found.plant.A - plant.A, found.plant.B - plant.B]))
        scores += list(gaps["known"][-1][errors > 0] / errors[errors > 0])
    square = {name: np.square(each).sum(axis=0) for name, each in gaps.items()}
    assert square["known"][errors > 0].sum() < square["open"][errors > 0].sum()
    assert square["known"].sum() < 0.5 * square["open"].sum()
    assert 0.85 < np.sqrt(np.square(scores).mean()) < 1.15


def test_the_graph_tests_only_what_is_possible() -> None:
    plant, recording = chain()
    graph = cf.fit(recording, plant.locals(), edges=CHAIN).graph()
    assert graph.direct() == tuple(CHAIN)
    for cause, effect in IMPOSSIBLE:
        edge = graph.edge(cause, effect)
        assert (edge.possible, edge.direct, edge.direct_strength) == (False, False, 0.0)
        assert (edge.p_value, edge.p_value_A, edge.p_value_B, edge.q_value) == (1.0, 1.0, 1.0, 1.0)
    assert graph.edge("boiler", "condenser").reaches
    # one test needs no correction for many
    (one,) = [e for e in cf.fit(recording, plant.locals(), edges=[("condenser", "boiler")]).graph() if e.possible]
    assert one.q_value == one.p_value
    assert "turbine -> boiler: ruled out" in str(graph)
    assert "boiler -> condenser: through others" in str(graph)


def test_answers_follow_the_known_couplings() -> None:
    plant, recording = chain()
    found = cf.fit(recording, plant.locals(), edges=CHAIN)
    back = found.effect("condenser", "boiler", {"u1": 1.0}, horizon=10)
    assert not back.mean.any()
    assert not back.lower.any()
    assert not back.upper.any()
    onward = found.effect("boiler", "condenser", {"u1": 1.0}, horizon=10)  # through the turbine
    assert np.abs(onward.mean).max() > 0.01


def test_no_couplings_at_all() -> None:
    plant, recording = chain(100)
    found = cf.fit(recording, plant.locals(), edges=[])
    assert found.status.converged
    assert obeys(found, list(permutations(NAMES, 2)))
    np.testing.assert_array_equal(found.plant.block("A", "turbine"), plant.block("A", "turbine"))


def test_records_with_gaps_and_private_records_obey() -> None:
    plant, recording = chain()
    rows = {n: (np.array(recording[n].y), recording[n].u) for n in NAMES}
    rows["turbine"][0][200:230] = np.nan
    assert obeys(cf.fit(cf.Recording.from_arrays(rows, units=plant.units), plant.locals(), edges=CHAIN))
    private = cf.Privacy(5.0, 1e-5, seed=1)
    assert obeys(cf.fit(recording, plant.locals(), edges=CHAIN, privacy=private, uncertainty=True))


def test_an_update_keeps_what_is_known(tmp_path: Path) -> None:
    plant, recording = chain(1200)
    whole = cf.fit(recording, plant.locals(), edges=CHAIN)
    found = cf.fit(recording.slice(0, 800), plant.locals(), edges=CHAIN).update(recording.slice(800, 1201))
    assert obeys(found)
    assert found.known_edges == whole.known_edges == KnownEdges(tuple(CHAIN))
    errors = np.hstack([whole.standard_errors.A, whole.standard_errors.B])
    gap = np.hstack([found.plant.A - whole.plant.A, found.plant.B - whole.plant.B])
    assert (np.abs(gap) <= 0.3 * errors).all()
    found.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    assert loaded.known_edges == found.known_edges
    assert obeys(loaded)
    assert obeys(loaded.update(plant.simulate(100, rng=9)))


def test_a_stored_pair_of_a_unit_that_is_not_there_is_refused(tmp_path: Path) -> None:
    plant, recording = chain(100)
    cf.fit(recording, plant.locals(), edges=CHAIN).save(tmp_path / "fit")
    path = tmp_path / "fit" / content.SERVER_FILE
    stored = storage._read(path, "server")
    found = records.restore(content.ServerContent, stored.content, stored.arrays, storage._KINDS)
    strange = KnownEdges((("boiler", "pump"), *CHAIN[1:]))
    object.__setattr__(found.server.couplings.found.parameters, "known", strange)
    path.write_bytes(storage._sealed("server", found, ""))
    with pytest.raises(StorageError, match="units that are not there"):
        cf.load_server(tmp_path / "fit")


def test_doubts_are_of_possible_couplings_only() -> None:
    plant, recording = chain()
    rows = {n: (recording[n].y, np.array(recording[n].u)) for n in NAMES}
    rows["turbine"][1][:, 1] = 3.0
    stuck = cf.Recording.from_arrays(rows, units=plant.units)
    effects = {d.effect for d in cf.fit(stuck, plant.locals()).couplings.doubts}
    assert effects == {"boiler", "condenser"}
    assert {d.effect for d in cf.fit(stuck, plant.locals(), edges=CHAIN).couplings.doubts} == {"condenser"}
    assert not cf.fit(stuck, plant.locals(), edges=CHAIN[:1]).couplings.doubts
    # 8 unknowns in a row are too many for 11 rows; 4 are not
    short = recording.slice(0, 12)
    assert len(cf.fit(short, plant.locals()).couplings.doubts) > 0
    assert not cf.fit(short, plant.locals(), edges=CHAIN).couplings.doubts


def test_between_machines_as_in_one_process(tmp_path: Path) -> None:
    plant, recording = chain(200)
    inputs = {unit.name: unit.inputs for unit in recording.units}
    job = Job("known", "sufficient", inputs, options={"edges": [list(pair) for pair in CHAIN]})
    assert Job.from_text(job.to_text()).to_text() == job.to_text()
    assert "edges" not in job.part_for("boiler").options  # who acts on whom is not a plant's to know
    policies = {name: Policy(name, demanded=False) for name in NAMES}
    between = fit_over_sessions(tmp_path, job, recording, plant.locals(), policies)
    alone = cf.fit(recording, plant.locals(), edges=CHAIN, over_the_wire=True)
    assert not between.server.A[plant.state_slice("boiler"), plant.state_slice("turbine")].any()
    np.testing.assert_allclose(between.server.A, alone.plant.A, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"edges": [("boiler", "pump")]}, r"'edges': boiler -> pump names unit 'pump', but the units are boiler, turb"),
        ({"forbidden": [("pump", "boiler")]}, r"'forbidden': pump -> boiler names unit 'pump'"),
        ({"edges": [("boiler", "boiler")]}, "boiler -> boiler is a unit and itself; give two different"),
        ({"edges": [*CHAIN, list(CHAIN[0])]}, "boiler -> turbine is given twice"),
        ({"edges": CHAIN, "forbidden": CHAIN[1:]}, "turbine -> condenser stands in 'edges' and in 'forbidden'"),
        ({"edges": "boiler:turbine"}, r"must be a list of \(cause, effect\).*got 'boiler:turbine'"),
        ({"edges": ["ab"]}, "'ab' is no pair"),
        ({"edges": [("boiler", "turbine", "pump")]}, "is no pair"),
        ({"forbidden": [("boiler", 3)]}, "is no pair"),
        ({"forbidden": 0}, "must be a list"),
        ({"edges": CHAIN, "method": "penalty"}, "no option 'edges'"),
    ],
)
def test_mistakes_are_told_with_option_and_value(options: dict, said: str) -> None:
    plant, recording = chain(50)
    with pytest.raises(OptionError, match=said):
        cf.fit(recording, plant.locals(), **options)


def test_given_and_allowed() -> None:
    known = KnownEdges.parse([["a", "b"], ["b", "c"]], [["c", "a"]])
    assert [known.allows(*pair) for pair in permutations("abc", 2)] == [True, False, False, True, False, False]
    assert KnownEdges.parse(None, None) is None
    assert KnownEdges.parse(None, [["a", "b"]]).allows("b", "a")
    described, arrays = records.describe(known)
    assert records.restore(KnownEdges, described, arrays) == known
    assert [str(KnownEdges(edges, ())) for edges in ((), None)] == ["none", "all"]
