"""Poles, zeros and singular values of the transfer function, true and estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.paper.experiments import two_units
from counterflow.paper.experiments.effects import without_couplings
from counterflow.paper.experiments.experiment import Claim, Outcomes
from counterflow.paper.experiments.figures import COLOURS, INK, MARKERS, Curve, Drawing, Panel, band
from counterflow.paper.experiments.two_units import UNITS, found_plant, plant_of
from counterflow.paper.experiments.verdicts import above, below, beyond_control, both, holds, within
from counterflow.paper.experiments.wording import caption, claim, described, said, summary
from counterflow.plant import Plant
from counterflow.plant.transfer import frequency_response, sigma, transmission_zeros

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ComplexArray = NDArray[np.complex128]
Part = Callable[[Plant], tuple[FloatArray, FloatArray, FloatArray]]  # A, B and C of inputs and outputs

FREQUENCIES = np.geomspace(0.01, np.pi, 200)
LOW = 0.1  # radians a row: "low frequencies" are those below
ALIKE = 0.9  # correlation above which a profile is retained
ADDED = 0.1  # share of what the local blocks alone leave open, from which on an estimate adds something
FOUND = 0.5  # relative error below which a transfer function is learned
LINEAR = 2.0  # modulus up to which the plane of zeros has linear axes
SOME = (0.02, 0.5)  # distances of zeros that are "some dispersion"
DEVIATING = (0.05, 0.5)  # relative errors that are "deviations" and still leave a profile
METHODS = {"published": "published method", "default": "default method"}


def cross(plant: Plant) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A, B and C of the part from unit 1's inputs to unit 2's outputs."""
    cause, effect = UNITS
    return plant.A, plant.B[:, plant.input_slice(cause)], plant.C[plant.output_slice(effect)]


def channel_zeros(plant: Plant) -> ComplexArray:
    """Zeros of every channel from one input of unit 1 to one output of unit 2."""
    A, B, C = cross(plant)
    pairs = [(j, k) for j in range(B.shape[1]) for k in range(C.shape[0])]
    return np.concatenate([transmission_zeros(A, B[:, j : j + 1], C[k : k + 1]) for j, k in pairs])


def response_error(found: Plant, true: Plant, part: Part) -> float:
    """|Ĝ - G| / |G| over a part of the transfer function and over frequencies 0 to π, evenly."""
    w = np.linspace(0.0, np.pi, 100)
    G, G_hat = (frequency_response(*part(plant), w) for plant in (true, found))
    return float(np.linalg.norm(G_hat - G) / np.linalg.norm(G))


def whole(plant: Plant) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A, B and C."""
    return plant.A, plant.B, plant.C


def spectrum_errors(found: Plant, true: Plant) -> FloatArray:
    """Relative error of the largest singular value at every frequency."""
    one, other = _largest(found), _largest(true)
    return np.abs(one - other) / other


def _largest(plant: Plant, of: Part = whole) -> FloatArray:
    """The largest singular value at every frequency."""
    return sigma(*of(plant), FREQUENCIES)[:, 0]


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    say = partial(claim, "transfer-function")
    true = plant_of(outcomes[0].task["plant"])
    found = {method: [found_plant(run, method) for run in outcomes] for method in METHODS}
    radius = {m: [p.spectral_radius for p in plants] for m, plants in found.items()}
    moved = {m: [_farthest(p.poles(), true.poles()) for p in plants] for m, plants in found.items()}
    spread = {m: [_nearest(channel_zeros(p), channel_zeros(true)) for p in plants] for m, plants in found.items()}
    profile = {m: np.array([spectrum_errors(p, true) for p in plants]) for m, plants in found.items()}
    alike = {m: [_alike(p, true) for p in plants] for m, plants in found.items()}
    low = FREQUENCIES < LOW
    under, over = ({m: e[:, part].mean(axis=1) for m, e in profile.items()} for part in (low, ~low))
    local = without_couplings(true)  # the control: what is given, and nothing learned
    alone = _alike(local, true)
    added = (np.array(alike["published"]) - alone) / (1 - alone)
    causal = {m: [response_error(p, true, cross) for p in plants] for m, plants in found.items()}
    stable = both(holds(max(radius["published"]) < 1), below(radius["published"], 1.0))
    poles = {"radius": radius, "moved": moved, "farthest": _farthest(local.poles(), true.poles())}
    errors, spectra = {m: e.mean(axis=1) for m, e in profile.items()}, spectrum_errors(local, true)
    yield say("poles", beyond_control(stable, holds(local.spectral_radius >= 1)), true=true, local=local, **poles)
    yield say("zeros", within(spread["published"], *SOME), spread=spread)
    retained = beyond_control(above(alike["published"], ALIKE), above(added, ADDED))
    yield say("profile", retained, alike=alike, errors=errors, alone=alone, spectra=spectra, added=100 * added)
    remark = said(
        above(under["published"] - over["published"]),
        "It is larger there than above.",
        "Low frequencies are not where it is largest: the error is larger above.",
        "Whether it is larger there than above is not decided.",
    )
    parts = {"under": under, "over": over, "local_under": spectra[low], "local_over": spectra[~low]}
    yield say("low", within(under["published"], *DEVIATING), remark=remark, **parts)
    yield say("causal", below(causal["published"], FOUND), causal=causal)


def _alike(found: Plant, true: Plant) -> float:
    """Correlation of the two spectra on logarithmic scales."""
    one, other = (np.log(_largest(plant)) for plant in (found, true))
    return float(np.corrcoef(one, other)[0, 1])


def _farthest(found: ComplexArray, true: ComplexArray) -> float:
    """The largest distance from an estimated pole to its true one, in the pairing that makes it small."""
    from scipy.optimize import linear_sum_assignment

    distance = np.abs(found[:, None] - true[None, :])
    rows, columns = linear_sum_assignment(distance)
    return float(distance[rows, columns].max())


def _nearest(found: ComplexArray, true: ComplexArray) -> float:
    """The median distance from an estimated zero to the nearest true one; NaN if there are no zeros at all."""
    if not (found.size and true.size):
        return float("nan")
    return float(np.median(np.abs(found[:, None] - true[None, :]).min(axis=1)))


def _plane(seen: Mapping[str, ComplexArray], far: bool) -> Curve:
    """The complex plane with the circle of radius 1: of two methods, and true; ``far``: with logarithms far out."""
    looks: list[dict[str, Any]] = [
        {"color": COLOURS[1], "marker": MARKERS[1], "markersize": 4, "zorder": 3},
        {"color": COLOURS[0], "marker": MARKERS[2], "markersize": 6.5, "zorder": 4},
        {"color": INK, "marker": "x", "markersize": 5, "zorder": 5},
    ]

    def draw(axes: Axes) -> None:
        circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
        axes.plot(circle.real, circle.imag, color=INK, linewidth=0.7)
        for (label, values), look in zip(seen.items(), looks, strict=True):
            open_marker: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 0.8}
            axes.plot(values.real, values.imag, linestyle="", label=label, **look, **open_marker)
        if not far:
            axes.set_aspect("equal", adjustable="datalim")
            return
        from matplotlib.ticker import NullLocator

        everything = np.concatenate([*seen.values(), circle])
        for scale, part, axis, ticks in (
            (axes.set_xscale, everything.real, axes.xaxis, axes.set_xticks),
            (axes.set_yscale, everything.imag, axes.yaxis, axes.set_yticks),
        ):
            scale("symlog", linthresh=LINEAR, linscale=1.5)
            reach = 1.6 * max(1.0, float(np.abs(part).max()))
            (axes.set_xlim if axis is axes.xaxis else axes.set_ylim)(
                -reach if part.min() < -1.5 else -1.5, reach if part.max() > 1.5 else 1.5
            )
            axis.set_minor_locator(NullLocator())
            decades = [10.0**k for k in range(1, 1 + max(1, int(np.ceil(np.log10(np.abs(part).max() + 1)))))]
            near = [tick for tick in decades[:: 1 + len(decades) // 3] if tick <= 3 * np.abs(part).max()]
            low = [-tick for tick in near[::-1] if part.min() < -LINEAR]
            shown = [*low, -1.0, 0.0, 1.0, *(tick for tick in near if part.max() > LINEAR)]
            ticks(shown, [f"{tick:g}" for tick in shown])

    return draw


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    true = plant_of(outcomes[0].task["plant"])
    found = {method: [found_plant(run, method) for run in outcomes] for method in METHODS}

    def plane(title: str, of: Callable[[Plant], ComplexArray], far: bool = False) -> Panel:
        seen = {METHODS[method]: np.concatenate([of(p) for p in plants]) for method, plants in found.items()}
        return Panel(title, [_plane({**seen, "true": of(true)}, far)], "real part", "imaginary part")

    def spectrum(title: str, of: Part) -> Panel:
        """Every singular value: those of one method have one look."""
        curves: list[Curve] = []
        for colour, (method, plants) in zip((1, 0), found.items(), strict=True):
            values = np.array([sigma(*of(plant), FREQUENCIES) for plant in plants])
            for k in range(values.shape[2]):
                curves.append(band(FREQUENCIES, values[:, :, k], METHODS[method], colour))
        look: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1.2)), "zorder": 5}
        spectra = sigma(*of(true), FREQUENCIES)
        curves.append(lambda axes: axes.plot(FREQUENCIES, spectra[:, 0], label="true spectrum", **look))
        curves.append(lambda axes: axes.plot(FREQUENCIES, spectra[:, 1:], **look))
        return Panel(title, curves, "frequency (radians a row)", "singular values $\\sigma$", log_x=True, log_y=True)

    panels = (
        plane("Poles", Plant.poles),
        plane("Zeros, unit 1 to unit 2", channel_zeros, far=True),
        spectrum("Singular values, all", whole),
    )
    return {
        "transfer-function": Drawing(caption("transfer-function", "characteristics"), panels, paper="Fig. 6"),
        "transfer-function-cross": Drawing(
            caption("transfer-function", "cross"), [spectrum("Singular values, unit 1 to unit 2", cross)], columns=1
        ),
    }


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    true = plant_of(outcomes[0].task["plant"])
    error = {m: np.mean([response_error(found_plant(o, m), true, cross) for o in outcomes]) for m in METHODS}
    return summary("transfer-function", claims, error=error)


EXPERIMENT = described("transfer-function", two_units.runs, two_units.compute, _figures, _claims, text=_text)
