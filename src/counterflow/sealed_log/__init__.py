"""Logs of rows that survive a kill at any moment, each row sealed with the one before it: in a file, or in memory."""

from __future__ import annotations

from counterflow.sealed_log.logs import Entry, Row, SealedLogs
from counterflow.sealed_log.schema import DatabaseSchema

__all__ = ["DatabaseSchema", "Entry", "Row", "SealedLogs"]
