"""What is refused, and what an answer must be read with: of changes, of couplings, of rows that are not there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import EVERYBODY, Caveat
from counterflow.errors import DataError, PrivacyError, UnidentifiedError, UnstableError
from counterflow.learning.ensemble import Ensemble
from counterflow.protocol import Answer, Change
from counterflow.questions.fitted_plant import FittedPlant

FAR = 2.0  # times the range seen in the data, beyond which a change is called far
OVERFLOWING = 1e6  # growth over the horizon beyond which an unstable estimate says nothing
DOUBTFUL = 0.15  # squared error over squared effect that is to be expected: beyond, an answer says so
OFTEN_LIMITED = 0.05  # share of products at the limits of what was seen, beyond which an answer says so
EXTRAPOLATION = "extrapolation"
NOT_FOUND = Caveat(
    "effect-not-found", EVERYBODY,
    "no sign of this effect was found in these rows; the interval says how large it could be and be missed",
)  # fmt: skip
BEYOND_SEEN = Caveat(
    "curvature-limited", EVERYBODY,
    "part of this answer lies beyond what was seen: there the fit's curvature is held as it is at the edge; a smaller "
    "change stays within",
)  # fmt: skip


def units_passed(server: FittedPlant, causes: Sequence[str], effect: str) -> frozenset[str]:
    """The units that an answer passes through: causes, effect, and all on the way between by the fitted couplings.

    Without causes (a forecast, an attribution): the unit itself, and all that act on it.
    """
    names, reached = server.names, server.model.reached
    at = names.index(effect)
    before = {names[n] for n in np.flatnonzero(reached[at])}
    if not causes:
        return frozenset({effect, *before})
    after = {names[m] for cause in causes for m in np.flatnonzero(reached[:, names.index(cause)])}
    return frozenset({effect, *causes, *(before & after)})


def speaking(caveats: Sequence[Caveat], passed: frozenset[str]) -> list[Caveat]:
    """Those of the caveats that speak of the whole fit, or of a unit that an answer passes through."""
    return [caveat for caveat in caveats if not caveat.units or passed & set(caveat.units)]


def doubtful_answer(doubt: float) -> Caveat:
    """Of an effect that is not known well; ``doubt``: squared error over squared effect that is to be expected."""
    told = f"may be as low as {1 - doubt:.1f}" if doubt < 0.95 else "may be zero or less"
    text = f"this effect is hardly known: by what these rows tell, the answer's R² {told}; read its interval"
    return Caveat("doubtful-answer", EVERYBODY, text)


def far_change(names: Sequence[str]) -> Caveat:
    """Of changes beyond anything that the data have shown."""
    text = f"inputs of {', '.join(names)} would move more than {FAR:g} times the range seen in the data; ask for less"
    return Caveat(EXTRAPOLATION, EVERYBODY, text)


def doubts_of(server: FittedPlant, found: Ensemble | None, unit: str) -> list[Caveat]:
    """What to say of an effect on a unit that is hardly known, by what members do; None: they do not tell."""
    if found is None or not server.model.learned:
        return []
    mine, limited = found.of(server.own(unit)), [BEYOND_SEEN] if found.limited > OFTEN_LIMITED else []
    if not mine.members.any():
        return [*limited, NOT_FOUND]
    return [*limited, doubtful_answer(mine.doubt)] if mine.doubt > DOUBTFUL else limited


def far(server: FittedPlant, change: FloatArray) -> list[Caveat]:
    """Of inputs that would move much further than they ever did in the data."""
    if len(server.u) < 2:
        return []
    far = np.abs(change).max(axis=0, initial=0.0) > FAR * server.seen
    names = [name for name, own in server.input_slices.items() if far[own].any()]
    return [far_change(names)] if names else []


def leaving_limits(server: FittedPlant, changes: Sequence[Change]) -> list[Caveat]:
    """Of inputs that would leave their limits if they were changed from where they last were."""
    names = []
    for change in changes if server.shared is not None else ():
        source = server.unit(change.cause)
        for k in change.moved:
            down, up, _ = server.headroom(change.cause, k)
            if change.values[:, k].min() < down or change.values[:, k].max() > up:
                low, high = source.inputs[k].limits or (-np.inf, np.inf)
                names.append(f"{change.cause} {source.inputs[k].name} ({low:g} to {high:g})")
    text = f"from where they last were, these inputs would leave their limits: {', '.join(names)}; ask for less"
    return [Caveat("leaving-limits", EVERYBODY, text)] if names else []


def without_interval(server: FittedPlant, parts: Sequence[Answer]) -> list[Caveat]:
    """Of a fit that could have given an interval."""
    if server.couplings is None or len(parts[0].covariance):
        return []
    text = "standard errors were not computed for this fit, so there is no interval; fit with uncertainty=True"
    return [Caveat("no-interval", EVERYBODY, text)]


def refuse_doubtful(server: FittedPlant, change: Change, moved: Sequence[int]) -> None:
    """A change whose effect passes through couplings that the data do not determine has no answer.

    Its inputs must be determined; and where states' couplings are not (a unit that was hardly measured), nothing
    that passes through that unit is, which in a coupled plant is everything.
    """
    count = server.unit(change.cause).n_inputs
    if change.values.shape[1] != count:
        raise DataError(f"unit {change.cause!r} has {count} inputs, the change has {change.values.shape[1]}")
    for doubt in server.couplings.doubts if server.couplings is not None else ():
        own_input = doubt.letter == "B" and doubt.cause == change.cause
        if doubt.letter == "A" or (own_input and (not doubt.channels or set(doubt.channels) & set(moved))):
            raise UnidentifiedError(f"these data cannot answer this: {doubt}", scope=doubt.scope)


def refuse_without_rows(server: FittedPlant, kind: str) -> None:
    """PrivacyError if a question needs rows, and units have sent moments of them alone."""
    if not server.has_rows:
        raise PrivacyError(
            f"{kind}: this fit rests on moments, and the server knows no row of the period that is asked about. "
            "Ask for effects, which need none; or fit that period with privacy=Privacy(..., release='rows')",
            code="rows-needed",
        )


def refuse_runaway(server: FittedPlant, steps: int) -> None:
    if server.radius > 1 and server.radius**steps > OVERFLOWING:
        raise UnstableError(
            f"the estimated system is unstable (spectral radius {server.radius:.4g}), and over {steps} steps its "
            f"errors grow beyond use; ask for at most {int(np.log(OVERFLOWING) / np.log(server.radius))} steps"
        )
