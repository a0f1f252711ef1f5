"""Numbers that the paper gives, written down a second time: a constant that is changed by accident is noticed here."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow.data.swat import prepare_swat
from counterflow.paper import experiments
from counterflow.paper.experiments import real_plants, scalability, two_units
from counterflow.paper.experiments.experiment import Request, Task
from counterflow.randomness import stream

# the paper's section 9.2: "only those variables with a Pearson correlation greater than 0.3 with other clients"
CORRELATION = 0.3
# its appendix, SWaT, step (ii): "after truncating to the first 30000 samples"
ROWS = 30_000
# its Tables 1 and 2, cell by cell
TABLE_1 = {16: (0.7649, 0.0034), 32: (1.0987, 0.0041), 64: (1.4243, 0.0046), 128: (1.1805, 0.0047)}
TABLE_2 = {2: (0.0744, 0.0013), 4: (0.0412, 0.0010), 8: (0.1714, 0.0036), 16: (0.3825, 0.0069)}


def swat_file(folder: Path, rows: int, mixtures: dict[str, float]) -> Path:
    """A file with one measurement of stage 1, and others of stage 2 that correlate with it by so much."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal(rows)
    columns = {"LIT101": first, "FIT101": first + 0.1 * rng.standard_normal(rows)}
    for tag, r in mixtures.items():
        noise = rng.standard_normal(rows)
        noise -= noise.mean() + (noise @ (first - first.mean())) / (rows * first.var()) * (first - first.mean())
        columns[tag] = r * (first - first.mean()) / first.std() + np.sqrt(1 - r**2) * noise / noise.std()
    times = np.datetime64("2015-12-22T16:00:00") + np.arange(rows).astype("timedelta64[s]")
    lines = [",".join(["Timestamp", *columns])]
    table = np.column_stack(list(columns.values()))
    lines += [f"{t},{','.join(f'{x:.6f}' for x in row)}" for t, row in zip(times.astype(str), table, strict=True)]
    path = folder / "SWaT_Dataset_Normal_v0.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_swat_variables_are_kept_from_a_correlation_of_three_tenths(tmp_path: Path) -> None:
    near = {"LIT201": CORRELATION - 0.01, "FIT201": CORRELATION + 0.01, "PIT201": 0.9}
    kept = prepare_swat([swat_file(tmp_path, 2000, near)]).recording
    assert {channel.name for channel in kept["S2"].unit.outputs} == {"FIT201", "PIT201"}
    assert inspect.signature(prepare_swat).parameters["correlation"].default == CORRELATION


def test_swat_is_truncated_to_the_first_30000_samples(tmp_path: Path) -> None:
    path = swat_file(tmp_path, ROWS + 7, {"PIT201": 0.9})
    assert prepare_swat([path]).recording.rows == ROWS
    (task,) = (each for each in real_plants.RealPlants.tasks(Request(swat=path)) if each["dataset"] == "swat")
    assert task["rows"] == ROWS
    assert real_plants.prepared(task).rows == ROWS


def test_the_tables_of_scalability_are_the_papers() -> None:
    for name, table in (("D_m", TABLE_1), ("M", TABLE_2)):
        sizes, losses, penalties = scalability.TABLES[name]
        assert dict(zip(sizes, zip(losses, penalties, strict=True), strict=True)) == table
    settings = [task.settings for task in experiments.named("scalability").tasks(Request())]
    assert {s["outputs"] for s in settings if s["table"] == "D_m"} == set(TABLE_1)
    assert {s["units"] for s in settings if s["table"] == "D_m"} == {2}
    assert {s["units"] for s in settings if s["table"] == "M"} == set(TABLE_2)
    assert {s["outputs"] for s in settings if s["table"] == "M"} == {8}


def test_the_weight_that_a_table_implies_is_within_a_third_of_every_ratio_in_it() -> None:
    for name, table in (("D_m", TABLE_1), ("M", TABLE_2)):
        ratios = np.array([loss / penalty for loss, penalty in table.values()])
        implied = 1 + scalability.IMPLIED[name]
        assert np.all(np.abs(np.log(ratios / implied)) < np.log(4 / 3))


def test_the_synthetic_system_has_the_papers_sizes() -> None:
    for seed in range(3):
        plant = two_units.plant_of(seed)
        assert [(u.states, u.n_inputs, u.n_outputs) for u in plant.units] == [(2, 2, 2)] * 2
        assert not plant.block("A", effect="unit1", cause="unit2").any()
        assert plant.block("A", effect="unit2", cause="unit1").all()
        assert plant.block("B", effect="unit1", cause="unit2").any()
    inputs = np.concatenate([two_units.plant_of(0).simulate(20_000, rng=1)[n].u for n in two_units.UNITS])
    assert np.abs(inputs.mean(axis=0)).max() < 0.03
    np.testing.assert_allclose(np.cov(inputs.T), np.eye(2), atol=0.03)


def test_ten_monte_carlo_runs_and_one_of_swat() -> None:
    assert len({task["run"] for task in two_units.runs(Request())}) == 10
    runs = {task["dataset"]: task["runs"] for task in real_plants.RealPlants.tasks(Request())}
    assert runs == {"hai": 10, "swat": 1}


@pytest.mark.parametrize("run", [0, 3])
def test_initial_parameters_are_standard_normal(run: int) -> None:
    """Every element of phi, theta, Â and B̂: N(0, 1), as the first round of a training shows."""
    settings = {**two_units.QUICK, "steps": 200, "rounds": 30, "run": run, "method": "penalty"}
    values = two_units.compute(Task("synthetic", settings))
    plant = two_units.plant_of(settings["plant"])
    recording = plant.simulate(200, rng=1000 + run)
    residual = disentanglement = 0.0
    for name, other in (two_units.UNITS, two_units.UNITS[::-1]):
        model, own = plant.local(name), recording[name]
        draw = stream(run, "augmented", name)
        theta, phi = draw.standard_normal((2, 2)), draw.standard_normal(2)
        draw = stream(run, "couplings", name, other)
        A_hat, B_hat = draw.standard_normal((2, 2)), draw.standard_normal((2, 2))
        refined = cf.KalmanEstimator(plant.local(other)).estimate(recording[other].y, recording[other].u).refined[:-1]
        D = own.y[:-1] @ theta.T @ model.A.T - refined @ A_hat.T
        pushed = recording[other].u[:-1] @ B_hat.T
        disentanglement += float((D**2).sum() / 200)
        residual += float(((D + phi - pushed) ** 2).sum() / 200)
        found = np.asarray(values[f"delta_d/{name}"])[0]
        assert found == pytest.approx(np.linalg.norm(phi - pushed.mean(axis=0)), rel=1e-9)
    assert np.asarray(values["disentanglement"])[0] == pytest.approx(disentanglement, rel=1e-9)
    loss = residual + settings["xi"] * disentanglement
    assert np.asarray(values["server_loss"])[0] == pytest.approx(loss, rel=1e-9)
