"""Pictures of fits, drawn with matplotlib when asked for (``pip install counterflow[plots]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.questions.plots import COLOURS, canvas, literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.fits.fit import Fit
    from counterflow.fits.history import History


def history_figure(history: History) -> Figure:
    """Server loss, disentanglement, losses of the units against their proprietary models, and delta_d."""
    figure, axes = canvas(2, 2, (9.0, 6.0), sharex=True)
    rounds = np.arange(len(history))
    axes[0, 0].plot(rounds, history.server_loss, color=COLOURS[0])
    axes[0, 0].set_title("server loss")
    axes[0, 1].plot(rounds, np.maximum(history.disentanglement, 1e-300), color=COLOURS[0])
    axes[0, 1].set_yscale("log")
    axes[0, 1].set_title("disentanglement D")
    for colour, name in zip(COLOURS * len(history.client_loss), history.client_loss, strict=False):
        axes[1, 0].plot(rounds, history.client_loss[name], color=colour, label=literal(name))
        axes[1, 0].plot(rounds, history.proprietary_loss[name], color=colour, linestyle=":")
        axes[1, 1].plot(rounds, history.delta_d[name], color=colour, label=literal(name))
    axes[1, 0].set_title("augmented (solid) and proprietary (dotted) loss")
    axes[1, 1].set_title("delta_d")
    for axis in axes[1]:
        axis.set_xlabel("round")
        axis.legend(frameon=False)
    return figure


def couplings_figure(fit: Fit) -> Figure:
    """Estimated A and B, block by block; a dot where an entry is more than two standard errors from zero."""
    plant = fit.plant
    figure, axes = canvas(1, 2, (10.0, 4.8))
    spread = fit.couplings.spread if fit.couplings is not None else None
    errors = (None, None) if spread is None else spread.standard_errors
    for axis, letter, error in zip(axes[0], "AB", errors, strict=True):
        values = getattr(plant, letter)
        limit = float(np.abs(values).max()) or 1.0
        image = axis.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        if error is not None:
            with np.errstate(invalid="ignore"):
                rows, columns = np.nonzero((error > 0) & (np.abs(values) > 2 * error))
            axis.plot(columns, rows, ".", color="black", markersize=3)
        _label_blocks(axis, plant, letter)
        figure.colorbar(image, ax=axis, shrink=0.8)
        axis.set_title(f"{letter} (rows: effect, columns: cause)")
    return figure


def _label_blocks(axis: Any, plant: Any, letter: str) -> None:
    columns = plant.state_slice if letter == "A" else plant.input_slice
    for slice_of, ticks, labels, line in (
        (plant.state_slice, axis.set_yticks, axis.set_yticklabels, axis.axhline),
        (columns, axis.set_xticks, axis.set_xticklabels, axis.axvline),
    ):
        slices = [slice_of(name) for name in plant.names]
        ticks([(s.start + s.stop - 1) / 2 for s in slices])
        labels(plant.names, rotation=0 if slice_of is plant.state_slice and line == axis.axhline else 30)
        for s in slices[1:]:
            line(s.start - 0.5, color="0.4", linewidth=0.8)
