"""Results as tables: plant by way, beside the baselines, and which aims are met."""

from __future__ import annotations

from typing import Any

import numpy as np

from plants import results

BASELINES = {"arx": "ARX", "cva": "CVA"}
BAD = 0.2  # 1 - R²
HALF, WORST, FIFTH = 0.5, 1.1, 0.2  # of the best baseline's error: in the mean, in any cell, where excitation is wide
COVERAGE, WIDTH, GRAPH = (0.90, 0.98), 8.0, 0.9

Cell = tuple[str, str, int]


def by_cell(method: str, seeds: tuple[int, ...], beside: str = "") -> dict[Cell, dict[str, float]]:
    """Means over the seeds that are stored, by plant, way and rows; the least R² is the least of all.

    ``beside``: a method; only cases that it was run on count.
    """
    shared = results.load(beside) if beside else results.load(method)
    gathered: dict[Cell, list[dict[str, Any]]] = {}
    for case, score in results.load(method).items():
        plant, way, rows, seed = case.split("/")
        if int(seed) in seeds and case in shared:
            gathered.setdefault((plant, way, int(rows)), []).append(score)
    return {cell: {name: _mean(scores, name) for name in _NAMES} | {
        "least_r2": _worst(scores), "seeds": float(len(scores))} for cell, scores in gathered.items()}  # fmt: skip


_NAMES = ("error", "median_error", "coverage", "width", "precision", "recall", "seconds", "intervals", "tiny_error")


def section(method: str, seeds: tuple[int, ...], title: str) -> list[str]:
    """Tables of one method beside baselines and 0.1, for one set of seeds."""
    own = by_cell(method, seeds)
    beside = {name: by_cell(name, seeds, method) for name in (*BASELINES, "0_1") if name != method}
    if not own:
        return []
    heads = [BASELINES.get(name, name.replace("_", ".")) for name in beside]
    lines = [f"## {title}", ""]
    for rows in sorted({cell[2] for cell in own}):
        lines += [
            f"### {rows:,} rows",
            "",
            f"| plant | way | {' | '.join(heads)} | {_shown(method)} "
            "| over the best baseline | least R² | coverage | width | graph: precision, recall | CPU s | seeds |",
            "|---|---|" + "---:|" * (len(beside) + 8),
        ]
        for cell in sorted(c for c in own if c[2] == rows):
            score, ratio = own[cell], _ratio(own, beside, cell)
            others = [_number(beside[name].get(cell, {}).get("error", np.nan), 3) for name in beside]
            lines.append(
                f"| {cell[0]} | {cell[1]} | {' | '.join(others)} | {_number(score['error'], 3)} | {_number(ratio, 2)} "
                f"| {_number(score['least_r2'], 2)} | {_number(score['coverage'], 2)} | {_number(score['width'], 1)} "
                f"| {_number(score['precision'], 2)}, {_number(score['recall'], 2)} | {_number(score['seconds'], 1)} "
                f"| {score['seeds']:.0f} |"
            )
        lines.append("")
    return lines + verdicts(method, seeds) + aims(own, beside)


def verdicts(method: str, seeds: tuple[int, ...]) -> list[str]:
    """How answers are spread over what the checks said of their fits; bad: R² below 0.8."""
    counted: dict[str, list[float]] = {}
    for case, score in results.load(method).items():
        if int(case.split("/")[3]) in seeds and score.get("verdict"):
            counted.setdefault(score["verdict"], []).extend(np.inf if e is None else e for e in score["errors"])
    if not counted:
        return []
    bad = {verdict: sum(error > BAD for error in errors) for verdict, errors in counted.items()}
    whole = max(sum(bad.values()), 1)
    return [
        "| verdict of the checks | answers | of them R² < 0.8 | of all such |", "|---|---:|---:|---:|",
        *(f"| {verdict} | {len(counted[verdict])} | {bad[verdict] / len(counted[verdict]):.1%} "
          f"| {bad[verdict] / whole:.0%} |" for verdict in ("pass", "caution", "fail") if verdict in counted), "",
    ]  # fmt: skip


def aims(own: dict[Cell, dict[str, float]], beside: dict[str, dict[Cell, dict[str, float]]]) -> list[str]:
    """The aims, each with its number and whether it is met."""
    compared = [cell for cell in own if np.isfinite(_ratio(own, beside, cell))]
    wide = [cell for cell in compared if cell[1] == "wide"]

    def together(cells: list[Cell]) -> float:
        best = sum(_best(beside, cell) for cell in cells)
        return sum(own[cell]["error"] for cell in cells) / best if best else np.nan

    overall, bent = together(compared), together(wide)
    worst = max((_ratio(own, beside, cell) for cell in compared), default=np.nan)
    worse = sum(_ratio(own, beside, cell) > WORST for cell in compared)
    held = [score["coverage"] for score in own.values()]
    outside = sum(not COVERAGE[0] <= value <= COVERAGE[1] for value in held)
    widths = [score["width"] for score in own.values()]
    too_wide = sum(not value <= WIDTH for value in widths)
    graphs = [(s["precision"], s["recall"]) for s in own.values()]
    precision, recall = (_nanmean(side) for side in zip(*graphs, strict=True))
    without = sum(score["intervals"] < 1 for score in own.values())
    rows = [
        (f"mean error over the mean of the best baselines', at most {HALF:g}", overall, overall <= HALF),
        (f"the same where excitation is wide, at most {FIFTH:g}", bent, bent <= FIFTH),
        (f"worst cell over its best baseline, at most {WORST:g}; {worse} of {len(compared)} are worse", worst,
         worst <= WORST),
        (f"cells with coverage outside {COVERAGE[0]:.0%} to {COVERAGE[1]:.0%}, of {len(own)}", outside, not outside),
        (f"cells with intervals wider than {WIDTH:g} mean absolute errors, or none", too_wide, not too_wide),
        (f"mean precision of the graph, at least {GRAPH:g}", precision, precision >= GRAPH),
        (f"mean recall of the graph, at least {GRAPH:g}", recall, recall >= GRAPH),
        (f"cells with answers without interval, of {len(own)}", without, not without),
    ]  # fmt: skip
    return ["| aim | found | |", "|---|---:|---|"] + [
        f"| {what} | {value:.3g} | {'met' if met else 'MISSED'} |" for what, value, met in rows
    ] + [""]  # fmt: skip


def _best(beside: dict[str, dict[Cell, dict[str, float]]], cell: Cell) -> float:
    return float(
        min((beside[name][cell]["error"] for name in BASELINES if cell in beside.get(name, {})), default=np.nan)
    )


def _ratio(own: dict[Cell, dict[str, float]], beside: dict[str, dict[Cell, dict[str, float]]], cell: Cell) -> float:
    return own[cell]["error"] / _best(beside, cell)


def _shown(method: str) -> str:
    return "**Counterflow**" if method == "counterflow" else f"**{method.replace('_', '.')}**"


def _mean(scores: list[dict[str, Any]], name: str) -> float:
    return _nanmean([np.nan if score[name] is None else score[name] for score in scores])


def _worst(scores: list[dict[str, Any]]) -> float:
    """An answer that is not finite is stored as None."""
    return min(-np.inf if score["least_r2"] is None else score["least_r2"] for score in scores)


def _nanmean(values: Any) -> float:
    found = [value for value in values if np.isfinite(value)]
    return float(np.mean(found)) if found else np.nan


def _number(value: float, digits: int) -> str:
    return "-" if np.isnan(value) else f"{value:.{digits}f}"
