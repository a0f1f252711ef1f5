"""A fit in words and tables: what it rests on, how it ended, and its couplings, as a table of coefficients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from counterflow import notebook, wording
from counterflow.caveats import FAILS, VERDICTS, by_weight, verdict_of
from counterflow.learning.influence import MATTERS, NORMAL, Edge, strengths
from counterflow.notebook import Table
from counterflow.printable import shown

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

SHOWN = 40  # couplings of a table; those that are kept come first
_WIDE = 78
_SLIGHT = "slight"
_UNSEEN = 1e-12  # p-values below are as good as zero


def short(fit: Fit) -> str:
    """A fit in one line."""
    names = wording.listed([shown(name, 40) for name in fit.names[:6]])
    more = f" and {len(fit.names) - 6} more" if len(fit.names) > 6 else ""
    end = "converged" if fit.status.converged else "not converged"
    failing = f", verdict {FAILS}" if verdict_of(fit.caveats) == FAILS else ""
    return f"<Fit{failing}: method {fit.method!r}, {_rows(fit)}, units {names}{more}; {end}>"


def text(fit: Fit) -> str:
    """``Fit.summary``."""
    pairs = header(fit)
    lines = ["Counterflow fit".center(_WIDE).rstrip(), "=" * _WIDE]
    width = max(len(name) for name, _ in pairs) + 1
    lines += [f"{name + ':':{width}} {value}" for name, value in pairs]
    table = couplings(fit)
    if table.rows:
        lines += ["=" * _WIDE, table.title, *notebook.lines(table), "=" * _WIDE]
        lines += [table.more] if table.more else []
    if fit.privacy is not None:
        lines.append(fit.privacy.summary())
    if fit.known_edges is not None:
        lines.append(f"direct couplings that were estimated: {fit.known_edges}")
    lines += [f"{caveat.weight}: {caveat}" for caveat in by_weight(fit.caveats)]
    if len(fit.history):
        last = {name: getattr(fit.history, name) for name in ("client_loss", "proprietary_loss", "delta_d")}
        lines.append(
            f"server loss {fit.history.server_loss[-1]:.4g}, disentanglement {fit.history.disentanglement[-1]:.3g}"
        )
        for name in fit.names:
            own, base, shift = (float(series[name][-1]) for series in last.values())
            ratio = f"{own / base:.3f}" if base else "–"
            lines.append(
                f"  {name}: augmented loss {own:.4g}, proprietary {base:.4g} (ratio {ratio}), delta_d {shift:.3g}"
            )
    return "\n".join(lines)


def page(fit: Fit) -> str:
    """For a notebook: the same with a picture."""
    pairs = Table("", ["", ""], [[name, value] for name, value in header(fit)], 2)
    picture = notebook.picture(fit.plot, "fit")
    verdict, notes = verdict_of(fit.caveats), by_weight(fit.caveats)
    meaning = f"of any answer of this fit: {VERDICTS[verdict]}"
    return notebook.page(short(fit)[1:-1], [pairs, couplings(fit)], picture, notes, (verdict, meaning))


def header(fit: Fit) -> list[tuple[str, str]]:
    """What the fit rests on and how it ended, by name."""
    out = [("Method", f"{fit.method}, {_rests_on(fit)}"), ("Units", f"{len(fit.names)}: {', '.join(fit.names)}")]
    out.append(("Rows", _rows(fit)))
    shared = None if fit.couplings is None else fit.couplings.shared
    if fit.calendar is not None and shared is not None:
        out.append(("Span", fit.calendar.span(0, len(shared.u))))
    if fit.learners:
        shares = wording.listed([f"{name} {wording.share(share)}" for name, share in fit.learners.items()])
        out.append(("Learners", shares))
    out.append(("Converged", f"{'yes' if fit.status.converged else 'no'}: {fit.status}"))
    if math.isfinite(fit.log_likelihood):
        out.append(("Log-likelihood", f"{fit.log_likelihood:.1f}"))
    out += [("Traffic", str(fit.traffic)), ("Fitted", str(fit.provenance))]
    return out


def _rests_on(fit: Fit) -> str:
    if fit.couplings is None:
        return "without uncertainty"
    kind = "from logs" if fit.couplings.model.learned else "models of units given"
    return f"{kind}, from moments" if fit.couplings.of_moments else kind


def _rows(fit: Fit) -> str:
    if fit.couplings is None:
        return "rows not kept"
    couplings = fit.couplings
    rows = max(len(couplings.shared.u), couplings.model.rows)
    return f"{rows} rows"


def couplings(fit: Fit) -> Table:
    """Every pair of units: how strongly the one acts on the other directly, and how sure that is."""
    from_logs = fit.couplings is not None and fit.couplings.model.learned
    known = fit.couplings is not None and fit.couplings.model.told
    graph = fit.graph() if known else None
    edges = _without_uncertainty(fit) if graph is None else graph.edges
    slight = set() if graph is None else {(edge.cause, edge.effect) for edge in edges if graph.slight(edge)}
    ranked = sorted(edges, key=lambda edge: (not edge.direct, -np.nan_to_num(edge.direct_strength)))
    columns = ["cause", "effect", "direct?", "estimate", "std err", "replicates" if from_logs else "z", "p", "FDR"]
    rows = [_row(edge, from_logs, (edge.cause, edge.effect) in slight) for edge in ranked[:SHOWN]]
    told = [f"and {len(ranked) - SHOWN} more couplings: see graph()"] if len(ranked) > SHOWN else []
    if any(row[2] == _SLIGHT for row in rows):
        told.append(
            f"{_SLIGHT}: found by the test, but less than {100 * MATTERS:.0f} % of what the cause does to the effect "
            "goes this way; the graph does not count it as direct"
        )
    more = "; ".join(told)
    title = "direct couplings: what a unit's white inputs do to another's measurements, in their noise"
    if from_logs:
        title = "direct couplings: what a lasting shift of a unit does to another, in standard deviations"
    return Table(title, [*columns, "[0.025", "0.975]"], rows, 3, more)


def _without_uncertainty(fit: Fit) -> list[Edge]:
    """Strengths of a plant's couplings, of which nothing else is known."""
    plant = fit.plant
    observation = np.linalg.solve(np.linalg.cholesky(plant.R), plant.C)
    slices = tuple(plant.state_slice(name) for name in plant.names)
    total, direct = strengths(plant.A, plant.B, observation, slices, tuple(map(plant.input_slice, plant.names)))
    nan, count = math.nan, len(plant.names)
    return [
        Edge(plant.names[n], plant.names[m], nan, nan, nan, nan, False, False, float(direct[m, n]), float(total[m, n]))
        for m in range(count) for n in range(count) if m != n
    ]  # fmt: skip


def _row(edge: Edge, from_logs: bool, slight: bool) -> list[str]:
    from scipy.special import ndtri

    low, high = edge.direct_interval or (math.nan, math.nan)
    spread = (high - edge.direct_strength) / NORMAL
    kind = "yes" if edge.direct else _SLIGHT if slight else "no" if math.isfinite(edge.p_value) else "–"
    if not edge.possible:
        kind = "ruled out"
    sure = edge.direct_strength / spread if spread > 0 else math.nan
    if _UNSEEN < edge.p_value < 1:  # of the test of the whole block
        sure = float(-ndtri(edge.p_value / 2))
    share = f"{100 * (1 - edge.p_value):.0f} %" if math.isfinite(edge.p_value) else "–"
    tests = [f"{value:.3f}" if math.isfinite(value) else "–" for value in (edge.p_value, edge.q_value)]
    numbers = [wording.number(value) for value in (edge.direct_strength, spread)]
    ends = [wording.number(value) for value in (low, high)]
    names = [shown(name, 40) for name in (edge.cause, edge.effect)]
    return [*names, kind, *numbers, share if from_logs else wording.number(sure), *tests, *ends]
