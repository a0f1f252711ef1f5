"""The plant of ``counterflow demo``: a boiler, its turbine, the tower that cools it, the water treatment that feeds it.

A row is a minute. The simulator is made up, but built as plants are: flows go with a valve's opening times a pressure,
or with the root of a pressure difference; heat goes with flow times temperature; vacuum with the exponential of a
temperature. So what a change does depends on where the plant stands. Who acts on whom:

- the boiler's steam goes to the turbine by the root of their pressures, so either feels the other;
- the turbine's exhaust heats the tower's water, and the tower's water makes the turbine's vacuum;
- the turbine's condensate returns to the feed tank of the water treatment, whose water goes to the boiler: a colder one
  takes more of the fire's heat; the boiler draws as much as it makes steam.

Arrays have the state, input or channel first and the batch of worlds last; time comes before both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.plant import Channel, Recording, Unit, UnitRecording
from counterflow.randomness import stream


def _unit(name: str, inputs: str, outputs: str) -> Unit:
    """A unit from its channels, written as "drum pressure bar, steam flow t/h"; its inputs are openings in per cent."""
    measured = [each.strip().rpartition(" ") for each in outputs.split(",")]
    opened = [Channel(each.strip(), "%", (0, 100)) for each in inputs.split(",")]
    return Unit(name, inputs=opened, outputs=[Channel(channel, measure) for channel, _, measure in measured])


UNITS = (
    _unit(
        "boiler",
        "fuel valve, air damper",
        "drum pressure bar, steam flow t/h, drum level cm, furnace temperature °C, flue gas oxygen %, "
        "flue gas temperature °C",
    ),
    _unit(
        "turbine",
        "governor valve, cooling water valve",
        "inlet pressure bar, turbine flow t/h, electric power MW, exhaust pressure mbar, condensate temperature °C",
    ),
    _unit(
        "cooling_tower",
        "fan speed",
        "basin temperature °C, warm water temperature °C, fan power kW, evaporation t/h",
    ),
    _unit(
        "water_treatment",
        "make-up valve, heating steam valve",
        "feed temperature °C, tank level cm, conductivity µS/cm, make-up flow t/h, dissolved oxygen µg/l",
    ),
)
DT = 60.0  # seconds
SUBSTEPS = 4  # of a row
SETTLING = 240  # rows before the first one that is recorded
AHEAD = 120  # rows after the last one that twins can be followed for

# inputs in the order of the units, per cent: where they usually stand, how far from that they are moved, and for how
# many rows each level is held
USUAL = np.array([50.0, 55.0, 60.0, 50.0, 55.0, 50.0, 50.0])
MOVED = np.array([13.0, 14.0, 12.0, 25.0, 30.0, 28.0, 28.0])
HOLD = (12, 60)
# a record ends with a quiet day, at which they stand where they usually do, and a night of little load and a slow fan
NIGHT = np.array([42.0, 55.0, 55.0, 38.0, 38.0, 50.0, 60.0])
DAY_BEGINS, NIGHT_BEGINS = 240, 90  # rows before the end
ACTUATOR = 0.5  # minutes that a valve, damper or fan takes

# heat in the furnace (MW), drum pressure (bar), drum level (cm), feedwater (t/h) | inlet pressure (bar), shaft power
# (MW), condensate temperature (°C) | basin temperature (°C) | feed temperature (°C), tank level (cm), conductivity
START = np.array([70.0, 60.0, 0.0, 113.0, 55.0, 25.0, 41.5, 22.0, 97.0, 200.0, 2.0])
# standard deviation of the noise that shakes each of them in a minute
PROCESS_NOISE = np.array([0.35, 0.05, 0.15, 0.3, 0.05, 0.05, 0.06, 0.05, 0.15, 0.3, 0.01])
MEASUREMENT_NOISE = 0.03  # of every channel's own movement


@dataclass(frozen=True, eq=False)
class Worlds:
    """What a plant lived through: the record, and the noise of it and of the minutes after it.

    ``inputs`` (T+1, U), ``states`` (T+1, X), ``channels`` (T+1, D) as measured; ``noise`` (T + AHEAD, X) shakes the
    states, ``errors`` (T+1, D) the measurements.
    """

    inputs: FloatArray
    states: FloatArray
    channels: FloatArray
    noise: FloatArray
    errors: FloatArray

    @property
    def recording(self) -> Recording:
        """The log: what every unit has measured and done."""
        y, u = np.split(self.channels, OUTPUT_ENDS, axis=1), np.split(self.inputs, INPUT_ENDS, axis=1)
        units = {unit.name: UnitRecording(y[m], u[m], unit) for m, unit in enumerate(UNITS)}
        return Recording(units, dt=DT)

    def again(self, inputs: FloatArray) -> FloatArray:
        """Measurements (T+1, D) of the same minutes, with the same noise and other inputs (T+1, U)."""
        states = run(self.states[0], inputs[:-1, :, None], self.noise)[..., 0]
        return measured(states[..., None])[..., 0] + self.errors

    def ahead(self, added: FloatArray) -> FloatArray:
        """What inputs ``added`` (n, U) from the last minute on do to all channels in the n minutes after it, (n, D)."""
        usual = np.tile(self.inputs[-1], (len(added), 1))
        both = np.stack([usual, usual + added], axis=2)
        noise = self.noise[len(self.inputs) - 1 :]
        without, with_it = np.moveaxis(measured(run(self.states[-1], both, noise)), 2, 0)
        return np.asarray((with_it - without)[1:])


def input_at(unit: str, name: str) -> int:
    """Where an input stands among all."""
    return [(each.name, channel.name) for each in UNITS for channel in each.inputs].index((unit, name))


def outputs_of(unit: str) -> slice:
    """Where a unit's outputs stand among all."""
    m = [each.name for each in UNITS].index(unit)
    return slice(*[0, *OUTPUT_ENDS, None][m : m + 2])


def lived(inputs: FloatArray, seed: int) -> Worlds:
    """A record under these inputs (T+1, U)."""
    T = len(inputs) - 1
    rng = stream(seed, "noise", "demo")
    noise = PADDED_NOISE * rng.standard_normal((T + AHEAD, len(PADDED_NOISE)))
    start = np.concatenate([START, USUAL])
    settled = run(start, np.repeat(inputs[:1, :, None], SETTLING, axis=0))[-1, :, 0]
    states = run(settled, inputs[:-1, :, None], noise)[..., 0]
    true = measured(states[..., None])[..., 0]
    errors = MEASUREMENT_NOISE * true.std(axis=0) * stream(seed, "errors", "demo").standard_normal(true.shape)
    return Worlds(inputs, states, true + errors, noise, errors)


def moved_in_steps(steps: int, seed: int) -> FloatArray:
    """Inputs (T+1, U) as operators move them: now and then, each to some level in its range; then a day and a night."""
    rng = stream(seed, "inputs", "demo")
    out = np.empty((steps + 1, len(USUAL)))
    for k, (usual, moved) in enumerate(zip(USUAL, MOVED, strict=True)):
        row = 0
        while row <= steps:
            held = int(rng.integers(*HOLD))
            out[row : row + held, k] = np.round(usual + moved * rng.uniform(-1, 1), 1)
            row += held
    out[-DAY_BEGINS:] = USUAL
    out[-NIGHT_BEGINS:] = NIGHT
    return out


def run(start: FloatArray, inputs: FloatArray, noise: FloatArray | None = None) -> FloatArray:
    """States (n+1, X, batch) from one start (X,), under inputs (n, U, batch) and the first n rows of noise (., X)."""
    n, _, batch = inputs.shape
    x = np.repeat(start[:, None], batch, axis=1)
    out = np.empty((n + 1, *x.shape))
    out[0] = x
    for t in range(n):
        shake = 0.0 if noise is None else noise[t][:, None]
        for _ in range(SUBSTEPS):
            x = x + (_rate(x, inputs[t]) + shake) / SUBSTEPS
        out[t + 1] = x
    return out


def _flows(x: FloatArray) -> tuple[FloatArray, ...]:
    """t/h: steam of the boiler, of the turbine, for the feed tank; make-up, cooling water; MW: the condenser's heat."""
    pressure, inlet, condensate, basin = x[1], x[4], x[6], x[7]
    governor, cooling, make_up, heating = x[13] / 100, x[14] / 50, x[16] / 50, x[17] / 100
    steam = 5.8 * np.sqrt(np.maximum(pressure * (pressure - inlet), 1e-6))
    turbine = 3.03 * governor * inlet
    heating_steam = 26.0 * heating  # of another boiler
    water = 6300.0 * np.sqrt(np.maximum(cooling, 0.01))
    # the water that cools gets warmer on its way: about half of its rise counts
    exchange = 3.9 * np.maximum(water / 6300.0, 0.01) ** 0.6
    heat = (condensate - basin) / (1 / exchange + 1800.0 / (4.19 * water))
    return steam, turbine, heating_steam, 22.0 * make_up, water, heat


def _combustion(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Heat that is fired, MW, and oxygen in the flue gas, %: too little air burns badly, too much cools."""
    fuel, air = x[11], x[12]
    oxygen = 21.0 * (1 - 1 / (1.15 + 0.006 * (air - 50.0)))
    return 73.0 * 8.0 ** ((fuel - 50.0) / 100) * (1 - 0.012 * np.square(oxygen - 3.0)), oxygen


def _vacuum(condensate: FloatArray) -> FloatArray:
    """Exhaust pressure, mbar."""
    return np.asarray(80.0 * np.exp(0.053 * (condensate - 41.5)))


def _rate(x: FloatArray, u: FloatArray) -> FloatArray:
    """dx/dt (X, batch), a minute."""
    heat, _, level, feedwater, inlet, power, condensate, basin, feed, tank, salt = x[:11]
    steam, turbine, heating, make_up, _, rejected = _flows(x)
    fired, _ = _combustion(x)
    work = 0.25 * turbine * (1 + 0.12 * np.log(inlet / 55.0) - 0.15 * np.log(_vacuum(condensate) / 80.0))
    fan = 6.1 * np.maximum(x[15] / 55.0, 0.01) ** 0.8
    returned, stored = 0.75 * turbine, 6.0 * np.sqrt(np.maximum(212.0 - tank, 0.0))  # a float valve
    spilt = 0.6 * np.maximum(tank - 205.0, 0.0) ** 1.5  # over a weir
    mixed = returned * (condensate - feed) + stored * (40.0 - feed) + make_up * (12.0 - feed)
    return np.concatenate([
        np.stack([
            (fired - heat) / 3.0,
            (heat - steam * (2790.0 - 4.19 * feed) / 3600.0) / 11.0,  # what the feed lacks in heat, the fire must give
            0.2 * (feedwater - steam),
            (steam - 2.0 * level - feedwater) / 1.5,
            (steam - turbine) / 8.0,
            (work - power) / 1.0,
            (turbine * 2200.0 / 3600.0 - rejected) / 12.0,
            (rejected - fan * (basin - 12.0)) / 70.0,
            (mixed / 60.0 + heating * (2700.0 / 4.19 - feed) / 60.0) / 28.0,
            0.06 * (returned + stored + make_up + heating - feedwater - spilt),
            (make_up * (9.0 - salt) + (returned + stored + heating) * (1.0 - salt)) / 60.0 / 28.0,
        ]),
        (u - x[11:]) / ACTUATOR,
    ])  # fmt: skip


def measured(x: FloatArray) -> FloatArray:
    """Channels (n, D, batch) of states (n, X, batch), without errors."""
    s = np.moveaxis(x, 1, 0)
    steam, turbine, _, make_up, water, rejected = _flows(s)
    _, oxygen = _combustion(s)
    heat, pressure, level, _, inlet, power, condensate, basin, feed, tank, salt = s[:11]
    return np.stack([
        pressure, steam, level, 1150.0 + 400.0 * np.log(heat / 70.0), oxygen,
        180.0 + 0.9 * (heat - 70.0) + 6.0 * (oxygen - 3.0),
        inlet, turbine, power, _vacuum(condensate), condensate,
        basin, basin + rejected * 3600.0 / (4.19 * water), 0.0012 * s[15] ** 3, 1.3 * rejected,
        feed, tank, salt, make_up, 20.0 * np.exp((95.0 - feed) / 25.0),
    ], axis=1)  # fmt: skip


OUTPUT_ENDS = np.cumsum([unit.n_outputs for unit in UNITS])[:-1].tolist()
INPUT_ENDS = np.cumsum([unit.n_inputs for unit in UNITS])[:-1].tolist()
PADDED_NOISE = np.concatenate([PROCESS_NOISE, np.zeros(len(USUAL))])
