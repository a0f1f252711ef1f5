"""The figure of docs/theory/sufficient.md: ``python docs/theory/make_sufficient_figure.py`` (seconds).

One recording, both methods: the one-step effects of every unit on every other, and one answer over a horizon.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from make_figures import BLUE, GREY, ORANGE, pairs, save

import counterflow as cf

STEPS, HELD, HORIZON = 250, 10, 26
CAUSE, EFFECT = "boiler", "turbine"


def effects(found: cf.Plant, plant: cf.Plant) -> np.ndarray:
    """All entries of C_mm B_mn, n != m, with the true C."""
    return np.concatenate([(plant.block("C", pair[0]) @ found.block("B", *pair)).ravel() for pair in pairs(plant)])


def intervals(found: cf.Fit, plant: cf.Plant) -> np.ndarray:
    """Half-widths of the 95 % intervals of the same entries: the effect of each input alone, one step on."""
    out = []
    for effect, cause in pairs(plant):
        size = plant.unit(cause).n_inputs
        answers = [found.effect(cause, effect, unit, horizon=1) for unit in np.eye(size)]
        out.append(np.column_stack([(a.upper - a.mean)[0] for a in answers]).ravel())
    return np.concatenate(out)


def main() -> None:
    plant = cf.random_plant(units=["boiler", "turbine", "condenser"], rng=6)
    recording = plant.simulate(STEPS, rng=106)
    default = cf.fit(recording, plant.locals())
    published = cf.fit(recording, plant.locals(), method="penalty", xi=1.0)
    truth = cf.fit(recording, plant, method="oracle")

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.9), width_ratios=(1, 1.35))
    true = effects(plant, plant)
    left.axline((0, 0), slope=1, color=GREY, lw=1, zorder=0)
    left.axhline(0, color=GREY, lw=0.6, ls=":", zorder=0)
    left.plot(true, effects(published.plant, plant), "s", ms=4.2, color=ORANGE, alpha=0.55, mew=0, label="published")
    found, half = effects(default.plant, plant), intervals(default, plant)
    left.errorbar(true, found, half, fmt="o", ms=4.2, color=BLUE, alpha=0.55, mew=0, elinewidth=0.9,
                  label="default, 95 % interval")  # fmt: skip
    limit = 1.08 * np.abs(true).max()
    left.set(xlim=(-limit, limit), ylim=(-limit, limit), xlabel="true one-step effect, entries of $C_{mm}B_{mn}$",
             ylabel="estimated", title="one step, every unit on every other")  # fmt: skip
    left.set_aspect("equal")
    left.text(0.69 * limit, 0.74 * limit, "exact", color=GREY, fontsize=8, rotation=45, ha="center", va="bottom",
              rotation_mode="anchor")  # fmt: skip
    left.legend(loc="upper left", markerscale=1.6, handletextpad=0.2)

    change = [1.0, 0.0]
    answers = {
        name: found.effect(CAUSE, EFFECT, change, horizon=HORIZON, duration=HELD)
        for name, found in (("truth", truth), ("default", default), ("published", published))
    }
    channel = int(np.abs(answers["truth"].mean).max(axis=0).argmax())
    steps = np.arange(HORIZON + 1)

    def series(values: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], values[:, channel]])  # before the change there is no effect

    right.axvspan(0, HELD, color="#f1eee4", lw=0)
    right.axhline(0, color=GREY, lw=0.6, ls=":")
    band = answers["default"]
    right.fill_between(steps, series(band.lower), series(band.upper), color=BLUE, alpha=0.28, lw=0,
                       label="default, 95 % interval")  # fmt: skip
    right.plot(steps, series(band.mean), color=BLUE, label="default")
    right.plot(steps, series(answers["published"].mean), color=ORANGE, label="published")
    right.plot(steps, series(answers["truth"].mean), color="black", dashes=(3, 1.6), lw=1.4, label="truth")
    right.set(xlim=(0, HORIZON), xlabel="steps since the change", ylabel=f"change of {EFFECT} {band.channels[channel]}",
              title=f"{CAUSE} input 1 up by 1 for {HELD} steps")  # fmt: skip
    right.legend(loc="best")
    figure.tight_layout()
    save(figure, "two_methods.png")


if __name__ == "__main__":
    main()
