"""Pictures and tables of results: every series that should be there is there."""

from __future__ import annotations

import numpy as np
import pytest

import counterflow as cf

PLANT = cf.random_plant(units=["boiler", "turbine", "pump"], rng=1)
RECORDING = PLANT.simulate(300, rng=2)


def test_an_effect_as_table_and_picture():
    effect = cf.fit(RECORDING, PLANT.locals()).effect("boiler", "turbine", [1.0, 0.0], horizon=12)
    frame = effect.to_frame()
    assert frame.columns == ["step", "channel", "mean", "lower", "upper"]
    row = frame.filter((frame["step"] == 3) & (frame["channel"] == "y5"))
    assert row["mean"].item() == effect.mean[2, 4]
    assert row["upper"].item() == effect.upper[2, 4]
    axis = effect.plot().axes[0]
    strongest = int(np.abs(effect.mean).max(axis=0).argmax())
    drawn = axis.get_lines()[1]  # after the line at zero
    assert drawn.get_label() == effect.channels[strongest]
    assert np.array_equal(drawn.get_ydata(), effect.mean[:, strongest])
    assert len(axis.collections) == 6  # bands
    assert "boiler" in axis.get_title()


def test_an_effect_without_interval():
    effect = cf.fit(RECORDING, PLANT.locals(), method="penalty").effect("boiler", "turbine", [1.0, 0.0], horizon=4)
    assert effect.to_frame().columns == ["step", "channel", "mean"]
    assert not effect.plot().axes[0].collections


def test_a_training_record_as_picture():
    found = cf.fit(RECORDING, PLANT.locals(), method="hybrid", warm_rounds=5, rounds=10)
    figure = found.plot()
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[0] == "server loss"
    assert np.array_equal(figure.axes[0].get_lines()[0].get_ydata(), found.history.server_loss)
    assert len(figure.axes[2].get_lines()) == 6
    frame = found.history.to_frame()
    assert frame.height == 15
    assert {"delta_d/pump", "client_loss/boiler", "phase"} <= set(frame.columns)


def test_couplings_as_picture(tmp_path):
    found = cf.fit(RECORDING, PLANT.locals())
    figure = found.plot()
    assert [axis.get_title()[0] for axis in figure.axes[:2]] == ["A", "B"]
    assert np.array_equal(figure.axes[1].get_images()[0].get_array(), found.plant.B)
    figure.savefig(tmp_path / "couplings.png")
    assert (tmp_path / "couplings.png").stat().st_size > 1000
    assert found.privacy is None
    with pytest.raises(cf.OptionError, match="privacy"):
        cf.fit(RECORDING, PLANT.locals(), privacy=1.0)
