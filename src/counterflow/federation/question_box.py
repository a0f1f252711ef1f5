"""A plant's box of questions: whoever asks puts them in, the plant's side of a standing job (``desk``) takes them out.

The box is a log of the site's store, because the two are different processes and either may be killed: a question that
was not answered is asked again, and asking twice does nothing twice. A question and its answer go when whoever asked
has taken the answer, or after LIFETIME.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterflow.control import Law
from counterflow.control.laws import law_from_json, law_json
from counterflow.errors import StorageError
from counterflow.federation.audit import SITE
from counterflow.sealed_log import Entry, Row, SealedLogs

LOG = "questions"
LARGEST = 256 << 20  # bytes of a question, or of an answer
MOST = 1000  # questions that wait
LIFETIME = 600.0  # seconds after which nobody waits for an answer any more
LOOK = 0.02  # seconds between two looks into the box


class QuestionBox:
    """Questions that wait, and answers that were not taken yet.

    Parameters
    ----------
    store : of the site, or the path of its file.

    Examples
    --------
    >>> from counterflow.sealed_log import SealedLogs
    >>> box = QuestionBox(SealedLogs(None, SITE))
    >>> question = box.put([b"what if"])
    >>> box.waiting() == [question], box.read(question)[1]
    (True, [b'what if'])
    >>> box.settle(question, [b"this"])
    >>> box.answer(question, patience=0), box.waiting()
    ([b'this'], [])
    """

    def __init__(self, store: SealedLogs | Path) -> None:
        self._store = SealedLogs(store, SITE) if isinstance(store, Path) else store
        self._version: object = None
        self._read: list[Row] = []

    def put(
        self, messages: Sequence[bytes], about: str = "", fit: str = "", latest: bool = True,
        supposed: tuple[str, Mapping[str, Law]] | None = None,
    ) -> str:  # fmt: skip
        """Put a question in; its name.

        ``about``: digest of the standing job that may answer it; ``fit``: the job that it is about, and whether that
        is the ``latest``, for which it waits. ``supposed``: other laws of this plant's own controllers, which stay in
        the box, and the word by which the question refers to them.
        """
        if not all(map(_is_fresh, self._rows())):
            self._store.begin_anew(LOG, [], _is_fresh)
        if len(self.waiting()) >= MOST:
            raise StorageError(
                f"federation: {MOST} questions wait in {self._store.name}: see that the plant's site runs"
            )
        _check_size(messages, self._store.name)
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        table = {"name": name, "time": time.time(), "about": about, "fit": fit[:100], "latest": latest}
        if supposed is not None:
            word, laws = supposed
            table["supposed"] = {"word": word, "laws": {name: law_json(law) for name, law in laws.items()}}
        self._store.append(LOG, Entry("question", table, messages))
        return name

    def waiting(self) -> list[str]:
        """Questions without an answer, the oldest first."""
        rows = [row for row in self._rows() if _is_fresh(row)]
        answered = {row.table["name"] for row in rows if row.kind == "answer"}
        return sorted(row.table["name"] for row in rows if row.kind == "question" and row.table["name"] not in answered)

    def read(self, name: str) -> tuple[dict[str, Any], list[bytes]]:
        """What a question is about, and its messages; none if it has gone."""
        row = self._row(name, "question")
        return ({}, []) if row is None else (row.table, list(row.pieces))

    def laws(self, word: str) -> dict[str, Law] | None:
        """The laws that a question which is still here supposes by this word; None: there is none."""
        for row in self._rows():
            found = row.table.get("supposed")
            if row.kind == "question" and _is_fresh(row) and found and found["word"] == word:
                laws = {name: law_from_json(law) for name, law in found["laws"].items()}
                return {name: law for name, law in laws.items() if law is not None}
        return None

    def settle(self, name: str, messages: Sequence[bytes]) -> None:
        """Put its answer beside a question that is still there."""
        if self._row(name, "question") is not None:
            _check_size(messages, self._store.name)
            self._store.append(LOG, Entry("answer", {"name": name, "time": time.time()}, messages))

    def answer(self, name: str, patience: float) -> list[bytes]:
        """Wait for the answer and take it, and the question, out.

        Raises
        ------
        StorageError
            There is none in time.
        """
        deadline = time.monotonic() + patience
        try:
            while (found := self._row(name, "answer")) is None:
                if time.monotonic() >= deadline:
                    raise StorageError(
                        f"federation: no answer in {patience:.0f} s: see with counterflow federation status that this "
                        "plant and the coordinator run and that the coordinator has a finished fit; then ask again",
                        code="no-answer",
                    )
                time.sleep(LOOK)
            return list(found.pieces)
        finally:
            self._store.begin_anew(LOG, [], lambda row: row.table.get("name") != name and _is_fresh(row))

    def _row(self, name: str, kind: str) -> Row | None:
        found = (row for row in self._rows() if row.kind == kind and row.table.get("name") == name)
        return next((row for row in found if _is_fresh(row)), None)

    def _rows(self) -> list[Row]:
        """All that is in the box; read again only when somebody has changed the store."""
        version = self._store.version(LOG)
        if version != self._version:
            self._read = list(self._store.rows(LOG))
            self._version = version
        return self._read


def _is_fresh(row: Row) -> bool:
    """Whether somebody may still wait for it."""
    return abs(time.time() - float(row.table["time"])) <= LIFETIME


def _check_size(messages: Sequence[bytes], where: str) -> None:
    if sum(map(len, messages)) > LARGEST:
        raise StorageError(f"federation: more than {LARGEST} bytes for {where}: ask for fewer steps")
