"""Recordings whose instruments have ranges."""

from __future__ import annotations

import counterflow as cf


def with_limits(recording: cf.Recording, widths: float = 8.0) -> cf.Recording:
    """The same rows, with limits of so many standard deviations to either side of each output."""
    units = []
    for unit in recording.units:
        y = recording[unit.name].y
        ends = zip(y.mean(axis=0) - widths * y.std(axis=0), y.mean(axis=0) + widths * y.std(axis=0), strict=True)
        outputs = [
            cf.Channel(n, limits=(float(a), float(b))) for n, (a, b) in zip(unit.output_names, ends, strict=True)
        ]
        units.append(cf.Unit(unit.name, states=2, inputs=unit.input_names, outputs=outputs))
    return cf.Recording.from_arrays({n: (recording[n].y, recording[n].u) for n in recording.names}, units=units)
