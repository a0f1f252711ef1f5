"""Counterflow as a user has it: `counterflow.fit` of the record with no model given, then its questions."""

from __future__ import annotations

from time import process_time

import numpy as np

import counterflow as cf
from plants.cases import Case, Twin
from plants.scores import Answer, Report


def counterflow(case: Case) -> Report:
    """Effects from now on by ``effect``, those in the past by ``counterfactual``, couplings by ``graph``."""
    begin = process_time()
    return asked(case, cf.fit(case.recording()), begin)


def asked(case: Case, found: cf.Fit, begin: float) -> Report:
    """What a fit says of a case; ``begin``: when its processor began to work at it."""
    recording = case.recording()
    answers = [answer for k, twin in enumerate(case.truth) for answer in _answers(case, recording, found, k, twin)]
    graph = frozenset(found.graph().direct())
    seconds = process_time() - begin
    changes = tuple((int(regime.start), tuple(regime.units)) for regime in getattr(found, "regimes", ()))
    named = tuple((row, units) for row, units in changes if row > 0)  # the first way of running is no change
    return Report(answers, graph, seconds, str(found.status), found.check().verdict, named)


def _answers(case: Case, recording: cf.Recording, found: cf.Fit, k: int, twin: Twin) -> list[Answer]:
    if twin.start == recording.steps:
        effects = [(unit, found.effect(twin.unit, unit, twin.change, twin.horizon)) for unit in case.asked(twin)]
        return [Answer(k, unit, effect.mean, effect.lower, effect.upper) for unit, effect in effects]
    stop = twin.start + twin.horizon
    added = np.vstack([twin.change, twin.change[-1:]])  # what is added in the last row acts on the row after it
    worlds = found.counterfactual(recording, add={twin.unit: added}, start=twin.start, stop=stop + 1)
    out = []
    for unit in case.asked(twin):
        world = worlds[unit]
        lower, upper = (None if side is None else (side - world.was)[1:] for side in (world.lower, world.upper))
        out.append(Answer(k, unit, world.difference[1:], lower, upper))
    return out
