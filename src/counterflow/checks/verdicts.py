"""A kind of check, what it says of a fit, and all that checks say together.

A new check is a module of this folder with a subclass of ``Kind``: it is found there, and nothing else names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from counterflow import notebook, wording
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import OptionError
from counterflow.frames import as_pandas

if TYPE_CHECKING:
    import pandas
    import polars
    from matplotlib.figure import Figure

    from counterflow.checks.figures import Pen
    from counterflow.checks.material import Material

Verdict = Literal["pass", "caution", "fail", "unknown"]

ORDER: tuple[Verdict, ...] = ("pass", "unknown", "caution", "fail")  # from good to bad
WRITTEN = ("name", "about", "verdict", "number", "unit_of_number", "finding", "remedy")  # of a check, in JSON
MOST_NAMES = 4  # in a sentence that sums several findings up


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name : its kind, a key of ``kinds()``.
    about : the unit, or the input as "unit channel", that it is about; empty: the whole fit.
    verdict : "pass", "caution" (usable, with the finding in mind), "fail" or "unknown" (the data cannot tell).
    number : what the verdict rests on; NaN if unknown. ``unit_of_number`` says what it counts.
    finding, remedy : sentences without their full stop; no remedy is needed where all is well.
    short : the finding in one clause, for answers to carry.
    data : arrays that the picture is drawn from.
    units : that it tells of besides that of ``about``; after ``server_checks``, all of them.
    """

    name: str
    about: str
    verdict: Verdict
    number: float
    unit_of_number: str
    finding: str
    remedy: str = ""
    short: str = ""
    data: Mapping[str, FloatArray] = field(default_factory=dict, repr=False, compare=False)
    units: tuple[str, ...] = ()

    @property
    def passed(self) -> bool | None:
        """True: it passes; None: the data cannot tell; False: there is something to look at."""
        return None if self.verdict == "unknown" else self.verdict == "pass"

    @property
    def title(self) -> str:
        """What is asked, and of what."""
        return f"{self.name} of {self.about}" if self.about else self.name

    def __str__(self) -> str:
        return f"{self.verdict}: {self.title}: {self.finding}" + (f"; {self.remedy}" if self.remedy else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the data of the picture; a number that is not finite is None."""
        number = float(self.number) if np.isfinite(self.number) else None
        return {name: number if name == "number" else getattr(self, name) for name in WRITTEN}


@dataclass(frozen=True, repr=False)
class Checks:
    """All that was looked at before answers are given.

    Examples
    --------
    >>> import counterflow as cf
    >>> from counterflow.checks import check
    >>> plant = cf.random_plant(["boiler", "turbine"], rng=1)
    >>> found = check(cf.fit(plant.simulate(1000, rng=2), plant.locals()))
    >>> found.verdict
    'pass'
    >>> found["stability"][0].unit_of_number
    'spectral radius'
    """

    checks: tuple[Check, ...]
    rows: int = 0  # that were looked at
    fitted: bool = True  # whether they are those that the fit rests on

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __len__(self) -> int:
        return len(self.checks)

    def __getitem__(self, name: str) -> tuple[Check, ...]:
        """All checks of one kind."""
        if name not in kinds():
            raise OptionError(f"checks: there is no kind {name!r}; they are {', '.join(kinds())}")
        return tuple(check for check in self.checks if check.name == name)

    @property
    def verdict(self) -> Verdict:
        """The worst of all, where "unknown" is better than "caution"; "unknown" if nothing was looked at."""
        return max((check.verdict for check in self.checks), key=ORDER.index, default="unknown")

    def of(self, *verdicts: Verdict) -> tuple[Check, ...]:
        """The checks with one of these verdicts."""
        return tuple(check for check in self.checks if check.verdict in verdicts)

    def caveats(self, *verdicts: Verdict) -> tuple[Caveat, ...]:
        """What an answer should carry, one caveat for each kind of check, verdict (default: "fail") and unit.

        Examples
        --------
        >>> import counterflow as cf
        >>> from counterflow.checks import check
        >>> plant = cf.random_plant(["boiler", "turbine"], rng=1)
        >>> wrong = {n: cf.LocalModel(A=0.5 * m.A, B=m.B, C=m.C, Q=m.Q, R=m.R) for n, m in plant.locals().items()}
        >>> for caveat in check(cf.fit(plant.simulate(1000, rng=2), wrong)).caveats():
        ...     print(caveat.code, "|", str(caveat)[:29])
        check-whiteness-fail | check 'whiteness' fails for b
        check-whiteness-fail | check 'whiteness' fails for t
        check-innovation-size-fail | check 'innovation size' fails
        check-innovation-size-fail | check 'innovation size' fails
        """
        out = []
        for verdict in verdicts or ("fail",):
            found: dict[tuple[str, str], list[Check]] = {}
            for check in self.of(verdict):
                found.setdefault((check.name, scope_of(check.units)), []).append(check)
            for (name, scope), each in found.items():
                out.append(Caveat(f"check-{name.replace(' ', '-')}-{verdict}", scope, _sentence(name, verdict, each)))
        return tuple(out)

    def __str__(self) -> str:
        """A readable table; what does not pass is explained below it."""
        lines = [f"verdict: {self.verdict} ({self._counted()})", ""]
        width = max((len(check.title) for check in self.checks), default=0)
        for check in self.checks:
            number = f"{check.number:.3g} {check.unit_of_number}" if np.isfinite(check.number) else "–"
            lines.append(f"{check.verdict:8} {check.title:{width}}  {number}")
        for check in self.of("fail", "caution", "unknown"):
            lines += ["", f"{check.verdict}: {check.title}", f"  {check.finding[:1].upper()}{check.finding[1:]}."]
            if check.remedy:
                lines.append(f"  Remedy: {check.remedy}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        first = "".join(f"; {check.verdict}: {check.title}" for check in self.of("fail")[:3])
        return f"<Checks: {notebook.short(f'{self.verdict} ({self._counted()}){first}')}>"

    def _repr_html_(self) -> str:
        rows = [
            [check.verdict, check.title, wording.number(check.number), check.unit_of_number, check.remedy]
            for check in sorted(self.checks, key=lambda check: -ORDER.index(check.verdict))
        ]
        table = notebook.Table("", ["verdict", "check", "number", "which is", "remedy"], rows, 2)
        return notebook.page(repr(self)[1:-1], [table], notebook.picture(self.plot, "checks") if self.checks else "")

    def to_pandas(self) -> pandas.DataFrame:
        """The same as ``to_frame`` for pandas."""
        return as_pandas(self.to_frame())

    def _counted(self) -> str:
        words = [f"{len(self.of(verdict))} {verdict}" for verdict in ORDER[::-1] if self.of(verdict)]
        rows = f"{self.rows} rows, {'those of the fit' if self.fitted else 'not those of the fit'}"
        return ", ".join(words) + (f"; {rows}" if self.rows else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        checks = [check.to_dict() for check in self.checks]
        return {"verdict": self.verdict, "rows": self.rows, "fitted": self.fitted, "checks": checks}

    def to_frame(self) -> polars.DataFrame:
        """One row for each check."""
        import polars

        schema = {name: polars.Float64 if name == "number" else polars.String for name in WRITTEN}
        return polars.DataFrame([check.to_dict() for check in self.checks], schema=schema)

    def plot(self) -> Figure:
        """A matplotlib Figure with a panel for each kind that there is something to draw of; colours are verdicts."""
        from counterflow.checks.figures import SHADES, drawn
        from counterflow.questions.plots import canvas

        shown = list(dict.fromkeys(check.name for check in self.checks if drawn(check)))
        columns = 2 if len(shown) > 1 else 1
        rows = max(1, -(-len(shown) // columns))
        drawing, axes = canvas(rows, columns, (5.2 * columns, 2.7 * rows + 0.3))
        drawing.suptitle(f"verdict: {self.verdict}", x=0.01, ha="left", color=SHADES[self.verdict])
        for axis, name in zip(axes.flat, shown, strict=False):
            found = Checks(self[name])
            kinds()[name].panel(axis, found.checks)
            axis.set_title(f"{name}: {found.verdict}", loc="left", fontsize=10, color=SHADES[found.verdict])
        for axis in list(axes.flat)[len(shown) :]:
            axis.set_axis_off()
        return drawing


class Kind:
    """One kind of check: a subclass says what it is called, looks at its material, and draws what it found.

    Most are looked at unit by unit (``of_unit``), judged by two limits of a number, and drawn as bars of that number.
    """

    name: ClassVar[str]
    claim: ClassVar[str]  # what is true of a fit that passes
    place: ClassVar[float]  # among all kinds, from first to last
    unit_of_number: ClassVar[str]
    limits: tuple[float, float] = (np.inf, np.inf)  # of the number, from which on it is "caution", and "fail"
    needs: ClassVar[Literal["fit", "inputs", "rows"]] = "rows"  # without which nothing can be told
    always: ClassVar[bool] = True  # whether it is told of every fit, if only that it is unknown
    bars: ClassVar[tuple[str, float | None, float | None]] = ("", None, None)  # label, limit, room for the numbers

    def wanted(self, material: Material) -> bool:
        """Whether there is anything to look at for such a fit."""
        return True

    def look(self, material: Material) -> Iterator[Check]:
        """All checks of this kind."""
        for m, name in enumerate(material.names):
            yield from self.of_unit(material, m, name)

    def of_unit(self, material: Material, m: int, name: str) -> Iterator[Check]:
        """Those of unit ``m``."""
        raise NotImplementedError

    def panel(self, axis: Any, checks: Sequence[Check], *look: Any) -> None:
        """Draw checks of this kind, the worst first; ``look``: colours of curves, and of verdicts."""
        from counterflow.checks.figures import Pen, drawn

        order: tuple[Verdict, ...] = ("fail", "caution", "pass", "unknown")
        self.draw(Pen(axis, *look), sorted(filter(drawn, checks), key=lambda check: order.index(check.verdict)))
        axis.tick_params(labelsize=8)

    def draw(self, pen: Pen, checks: list[Check]) -> None:
        """The picture of some checks, the worst first."""
        pen.bars(checks, *self.bars)

    def found(
        self, about: str, number: float, finding: str, short: str = "", remedy: str = "", *, more: str = "",
        verdict: Verdict | None = None, units: tuple[str, ...] = (), **data: Any,
    ) -> Check:  # fmt: skip
        """A check; unless it passes, it tells ``short``, ``remedy``, ``units`` and, after its finding, ``more``.

        ``verdict``: None: by the limits. ``data``: what its picture is drawn from.
        """
        verdict = verdict or graded(number, *self.limits)
        if verdict == "pass":
            more, short, remedy, units = "", "", "", ()
        arrays = {name: np.atleast_1d(np.asarray(value, np.float64)) for name, value in data.items()}
        told = (number, self.unit_of_number, finding + more, remedy, short, arrays, units)
        return Check(self.name, about, verdict, *told)

    def unknown(
        self, about: str, finding: str = "", remedy: str | None = None, short: str = "too few rows to tell"
    ) -> Check:
        """That the data cannot tell."""
        finding = finding or f"{about} was measured in too few rows to tell"
        remedy = f"record more rows of {about}" if remedy is None else remedy
        return Check(self.name, about, "unknown", float("nan"), self.unit_of_number, finding, remedy, short)


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds of checks by name, in the order in which they are told: those of all modules of this folder."""
    folder = import_module("counterflow.checks")
    for module in iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    return {kind.name: kind() for kind in sorted(Kind.__subclasses__(), key=lambda kind: kind.place)}


def graded(number: float, caution: float, fail: float) -> Verdict:
    return "fail" if number >= fail else "caution" if number >= caution else "pass"


def percent(share: float) -> str:
    """ "3.2 %", and no more than 100 %."""
    return ("100 %" if share >= 1 else "99 %") if share >= 0.995 else f"{100 * share:.2g} %"


def listed(words: list[str]) -> str:
    """ "a, b and c"; beyond a few, how many more there are."""
    if len(words) > MOST_NAMES + 1:
        words = [*words[:MOST_NAMES], f"{len(words) - MOST_NAMES} more"]
    return wording.listed(words)


def worst(*verdicts: Verdict) -> Verdict:
    """The worst of some verdicts."""
    return max(verdicts, key=ORDER.index)


def _sentence(name: str, verdict: Verdict, found: list[Check]) -> str:
    says = {"fail": "fails", "caution": "asks for caution", "unknown": "cannot be told", "pass": "passes"}[verdict]
    whom = f" for {listed([check.about for check in found])}" if found[0].about else ""
    first = found[0]
    text = f"check {name!r} {says}{whom}: {first.short or first.finding}"
    return text + (f"; {first.remedy}" if first.remedy else "")

