"""Poles, zeros and singular values of the transfer function, true and estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.paper.experiments import two_units
from counterflow.paper.experiments.effects import without_couplings
from counterflow.paper.experiments.experiment import Claim, Experiment
from counterflow.paper.experiments.figures import COLOURS, INK, MARKERS, Curve, Drawing, Panel, band
from counterflow.paper.experiments.two_units import UNITS, found_plant, plant_of
from counterflow.paper.experiments.verdicts import above, below, beyond_control, both, holds, said, within
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


class TransferFunction(Experiment, name="transfer-function"):
    tasks = staticmethod(two_units.runs)
    compute = staticmethod(two_units.compute)

    @cached_property
    def true(self) -> Plant:
        return plant_of(self.outcomes[0].task["plant"])

    @cached_property
    def local(self) -> Plant:
        """The control: what is given, and nothing learned."""
        return without_couplings(self.true)

    @cached_property
    def found(self) -> Mapping[str, list[Plant]]:
        return {method: [found_plant(run, method) for run in self.outcomes] for method in METHODS}

    def each(self, of: Callable[[Plant], Any]) -> dict[str, FloatArray]:
        """Something of every plant that was found, by method."""
        return {method: np.array([of(plant) for plant in plants]) for method, plants in self.found.items()}

    @cached_property
    def causal(self) -> Mapping[str, FloatArray]:
        """Relative errors of the part between the units."""
        return self.each(lambda plant: response_error(plant, self.true, cross))

    def judge(self) -> Iterator[Claim]:
        true, local = self.true, self.local
        radius, moved = self.each(lambda p: p.spectral_radius), self.each(lambda p: _farthest(p.poles(), true.poles()))
        stable = both(holds(radius["published"].max() < 1), below(radius["published"], 1.0))
        verdict = beyond_control(stable, holds(local.spectral_radius >= 1))
        yield self.claim("poles", verdict, radius=radius, moved=moved, farthest=_farthest(local.poles(), true.poles()))
        spread = self.each(lambda p: _nearest(channel_zeros(p), channel_zeros(true)))
        yield self.claim("zeros", within(spread["published"], *SOME), spread=spread)
        spectrum, low = largest(true), FREQUENCIES < LOW
        spectra, alone = np.abs(largest(local) - spectrum) / spectrum, _alike(largest(local), spectrum)
        profile = self.each(lambda p: np.abs(largest(p) - spectrum) / spectrum)
        alike = self.each(lambda p: _alike(largest(p), spectrum))
        added = (alike["published"] - alone) / (1 - alone)
        retained = beyond_control(above(alike["published"], ALIKE), above(added, ADDED))
        errors, under, over = ({m: e[:, w].mean(axis=1) for m, e in profile.items()} for w in (slice(None), low, ~low))
        parts: dict[str, Any] = {"alike": alike, "alone": alone, "spectra": spectra, "added": 100 * added}
        yield self.claim("profile", retained, **parts, errors=errors)
        remark = said(
            above(under["published"] - over["published"]),
            "It is larger there than above.",
            "Low frequencies are not where it is largest: the error is larger above.",
            "Whether it is larger there than above is not decided.",
        )
        parts = {"under": under, "over": over, "local_under": spectra[low], "local_over": spectra[~low]}
        yield self.claim("low", within(under["published"], *DEVIATING), remark=remark, **parts)
        yield self.claim("causal", below(self.causal["published"], FOUND))

    def draw(self) -> Mapping[str, Drawing]:
        def plane(title: str, of: Callable[[Plant], ComplexArray], far: bool = False) -> Panel:
            seen = {METHODS[m]: np.concatenate([of(p) for p in plants]) for m, plants in self.found.items()}
            return Panel(title, [_plane({**seen, "true": of(self.true)}, far)], "real part", "imaginary part")

        def spectrum(title: str, of: Part) -> Panel:
            """Every singular value: those of one method have one look."""
            found, true = self.each(lambda p: sigma(*of(p), FREQUENCIES)), sigma(*of(self.true), FREQUENCIES)
            curves: list[Curve] = [
                band(FREQUENCIES, values[:, :, k], METHODS[method], colour)
                for colour, (method, values) in zip((1, 0), found.items(), strict=True)
                for k in range(values.shape[2])
            ]
            look: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1.2)), "zorder": 5}
            curves.append(lambda axes: axes.plot(FREQUENCIES, true[:, 0], label="true spectrum", **look))
            curves.append(lambda axes: axes.plot(FREQUENCIES, true[:, 1:], **look))
            x, y = "frequency (radians a row)", "singular values $\\sigma$"
            return Panel(title, curves, x, y, log_x=True, log_y=True)

        zeros = plane("Zeros, unit 1 to unit 2", channel_zeros, far=True)
        panels = (plane("Poles", Plant.poles), zeros, spectrum("Singular values, all", whole))
        between = [spectrum("Singular values, unit 1 to unit 2", cross)]
        return {
            "transfer-function": self.drawing("characteristics", panels, paper="Fig. 6"),
            "transfer-function-cross": self.drawing("cross", between, columns=1),
        }


def whole(plant: Plant) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A, B and C."""
    return plant.A, plant.B, plant.C


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


def largest(plant: Plant) -> FloatArray:
    """The largest singular value of the whole at every frequency."""
    return sigma(*whole(plant), FREQUENCIES)[:, 0]


def _alike(found: FloatArray, true: FloatArray) -> float:
    """Correlation of two spectra on logarithmic scales."""
    return float(np.corrcoef(np.log(found), np.log(true))[0, 1])


def _farthest(found: ComplexArray, true: ComplexArray) -> float:
    """The largest distance from an estimated pole to its true one, in the pairing that makes it small."""
    from scipy.optimize import linear_sum_assignment

    distance = np.abs(found[:, None] - true[None, :])
    return float(distance[linear_sum_assignment(distance)].max())


def _nearest(found: ComplexArray, true: ComplexArray) -> float:
    """The median distance from an estimated zero to the nearest true one; NaN if there are no zeros at all."""
    if not (found.size and true.size):
        return float("nan")
    return float(np.median(np.abs(found[:, None] - true[None, :]).min(axis=1)))


def _plane(seen: Mapping[str, ComplexArray], far: bool) -> Curve:
    """The complex plane with the circle of radius 1: of two methods, and true; ``far``: with logarithms far out."""
    looks = ((COLOURS[1], MARKERS[1], 4.0), (COLOURS[0], MARKERS[2], 6.5), (INK, "x", 5.0))

    def draw(axes: Axes) -> None:
        circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
        axes.plot(circle.real, circle.imag, color=INK, linewidth=0.7)
        for k, ((label, values), (colour, marker, size)) in enumerate(zip(seen.items(), looks, strict=True)):
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": size, "zorder": 3 + k}
            look |= {"linestyle": "", "markerfacecolor": "none", "markeredgewidth": 0.8}
            axes.plot(values.real, values.imag, label=label, **look)
        if not far:
            axes.set_aspect("equal", adjustable="datalim")
            return
        from matplotlib.ticker import NullLocator, SymmetricalLogLocator

        for set_scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
            set_scale("symlog", linthresh=LINEAR, linscale=1.5)
            axis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0))
            axis.set_minor_locator(NullLocator())

    return draw
