"""The page: HTML around the drawings. Every text that comes from data is escaped."""

from __future__ import annotations

import os
import secrets
from html import escape as escape_markup
from importlib.resources import files
from pathlib import Path

from counterflow._version import __version__
from counterflow.errors import StorageError
from counterflow.report import figures
from counterflow.report.content import Report, WhatIf

GENERATOR = '<meta name="generator" content="Counterflow'


def escape(text: str) -> str:
    """Text from data, safe between tags and in attributes; a number and its per cent sign stay on one line."""
    return escape_markup(text).replace(" %", "\N{NO-BREAK SPACE}%")


def write(report: Report | str, path: str | Path) -> None:
    """Write a report (or a page already rendered) to ``path``, replacing what is there only when all is written."""
    target = Path(path)
    text = render(report) if isinstance(report, Report) else report
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise StorageError(f"cannot write {str(target)!r}: {reason}. Choose another place.") from error
        raise


def render(report: Report) -> str:
    """The whole page as one HTML text that refers to nothing outside itself."""
    style = files("counterflow.report").joinpath("page.css").read_text(encoding="utf-8")
    sections = [_whatif(whatif, k, len(report.whatifs)) for k, whatif in enumerate(report.whatifs)]
    sections += [_caveats(report), _units(report), _training(report), _provenance(report)]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'{GENERATOR} {escape(__version__)}">',
            # nothing may be fetched or run, whatever a name in the data holds
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape(report.title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{escape(report.title)}</h1>",
            f'<p class="lead">{escape(report.lead)}</p>',
            *[section for section in sections if section],
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _whatif(whatif: WhatIf, number: int, total: int) -> str:
    at = whatif.headline_index
    wide = figures.trajectories(whatif, at, f"q{number}w-", (9.0, 3.3), title=False)
    narrow = figures.trajectories(whatif, at, f"q{number}n-", (4.0, 3.0), title=False)
    unit = whatif.channels[at].unit
    label = escape(whatif.headline + (f" [{unit}]" if unit else ""))
    small = "\n".join(
        f"<figure>{figures.trajectories(whatif, k, f'q{number}c{k}-', (3.4, 2.3))}</figure>"
        for k in range(len(whatif.channels))
        if k != at
    )
    caveats = dict.fromkeys(text for answer in whatif.answers for text in answer.caveats)
    notes = "".join(f'<p class="note">{escape(_capital(text))}.</p>' for text in caveats)
    return f"""<section>
<p class="kicker">Question {number + 1} of {total}</p>
<h2>{escape(whatif.question)}</h2>
<p class="answer">{escape(whatif.sentence())}</p>
{notes}
{_legend(whatif)}
<figure class="hero"><figcaption>Effect on {label}</figcaption>
<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>
{_table(whatif)}
<details{" open" if number == 0 else ""}><summary>All other channels</summary>
<div class="grid">{small}</div></details>
</section>"""


def _legend(whatif: WhatIf) -> str:
    entries = []
    if whatif.truth is not None:
        entries.append(f'<li><i class="dashed" style="color:var(--truth)"></i>{escape(whatif.truth.label)}</li>')
    for k, answer in enumerate(whatif.estimates):
        label = answer.label
        if answer.lower is not None and answer.level is not None:
            label += f", with {100 * answer.level:g} % band"
        entries.append(f'<li><i style="color:var(--series-{k % len(figures.SERIES)})"></i>{escape(label)}</li>')
    if whatif.duration is not None:
        entries.append('<li><i class="block"></i>while the change is held</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _table(whatif: WhatIf) -> str:
    labels = "".join(f"<th>{escape(answer.short)}</th>" for answer in whatif.answers)
    span = len(whatif.answers)
    rows = []
    for k, channel in enumerate(whatif.channels):
        row = whatif.peak_row(k)
        cells = "".join(
            f"<td>{whatif.quantity(answer, at, k).split()[0]}</td>" for at in (0, row) for answer in whatif.answers
        )
        unit = f" [{channel.unit}]" if channel.unit else ""
        mark = ' class="key"' if k == whatif.headline_index else ""
        rows.append(f"<tr{mark}><td>{escape(channel.name + unit)}</td>{cells}</tr>")
    return f"""<div class="scroll"><table class="effects"><thead>
<tr><th rowspan="2">channel</th><th colspan="{span}">after {whatif.step:g} {escape(whatif.step_unit)}</th>
<th colspan="{span}">at its largest</th></tr><tr class="sub">{labels}{labels}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>"""


def _caveats(report: Report) -> str:
    if not report.caveats:
        return ""
    items = "".join(f"<li>{escape(_capital(text))}.</li>" for text in report.caveats)
    return f'<section class="caveats"><h2>Before you act on this</h2><ul>{items}</ul></section>'


def _units(report: Report) -> str:
    if not report.units:
        return ""

    def channels(entries: object) -> str:
        return escape(", ".join(f"{c.name} [{c.unit}]" if c.unit else c.name for c in entries))  # type: ignore[attr-defined]

    rows = "".join(
        f'<tr><td>{escape(unit.name)}</td><td data-label="states">{unit.states}</td>'
        f'<td class="text" data-label="inputs, shared">{channels(unit.inputs)}</td>'
        f'<td class="text" data-label="outputs, private">{channels(unit.outputs)}</td></tr>'
        for unit in report.units
    )
    return f"""<section><h2>The units</h2>
<p>Measurements stay where they are taken. A unit shares its inputs, its own state dynamics and a few numbers a step
that stand for its state; the outputs themselves, and how it measures them, it does not.</p>
<div class="scroll"><table class="stack"><thead><tr><th>unit</th><th>states</th><th class="text">inputs, shared</th>
<th class="text">outputs, private</th></tr></thead><tbody>{rows}</tbody></table></div></section>"""


def _training(report: Report) -> str:
    if not report.trainings:
        return ""
    rows = "".join(
        f'<tr><td>{escape(t.label)}</td><td class="text" data-label="traffic">{escape(str(t.traffic))}</td>'
        f'<td class="text" data-label="how it ended">{escape(t.status)}</td></tr>'
        for t in report.trainings
    )
    drawings = figures.training_curves(report.trainings, [unit.name for unit in report.units], "t")
    panels = "\n".join(f"<figure><figcaption>{escape(c)}</figcaption>{drawing}</figure>" for c, drawing in drawings)
    legend = _training_legend(report) if drawings else ""
    return f"""<section><h2>How it was learned, and what crossed the wire</h2>
<div class="scroll"><table class="stack"><thead><tr><th>training</th><th class="text">traffic</th>
<th class="text">how it ended</th></tr></thead><tbody>{rows}</tbody></table></div>
{legend}<div class="grid two">{panels}</div></section>"""


def _training_legend(report: Report) -> str:
    shown = [t for t in report.trainings if len(t.history) > 1]
    longest = max(shown, key=lambda t: len(t.history))
    entries = [f'<li><i style="color:var(--series-0)"></i>{escape(longest.label)}</li>']
    others = [t for t in shown if t is not longest]
    entries += [
        f'<li><i class="dashed" style="color:var(--series-{k + 1})"></i>{escape(t.label)}, where it ended</li>'
        for k, t in enumerate(others)
    ]
    entries += [
        f'<li><i style="color:var(--series-{(k + 3) % len(figures.SERIES)})"></i>{escape(unit.name)}</li>'
        for k, unit in enumerate(report.units)
    ]
    return f'<ul class="legend" style="margin-top:1rem">{"".join(entries)}</ul>'


def _provenance(report: Report) -> str:
    if not report.provenance:
        return ""
    entries = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in report.provenance.items())
    return f"<section><h2>Where this comes from</h2><dl>{entries}</dl></section>"


def _capital(text: str) -> str:
    return (text[:1].upper() + text[1:]).rstrip(".")
