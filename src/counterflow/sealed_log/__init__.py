"""Logs of rows that survive a kill at any moment, each row sealed with the one before it: in a file, or in memory."""

from __future__ import annotations

from counterflow.sealed_log.file import FileLogs
from counterflow.sealed_log.rows import Entry, MemoryLogs, Row, SealedLogs
from counterflow.sealed_log.schema import DatabaseSchema

__all__ = ["DatabaseSchema", "Entry", "FileLogs", "MemoryLogs", "Row", "SealedLogs"]
