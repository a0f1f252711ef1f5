"""What a site of a federation is, whatever carries the bytes: its folder, keys, letters, members and supervisor."""

from __future__ import annotations

from importlib.util import find_spec

from counterflow.errors import OptionError

if find_spec("cryptography") is None:
    raise OptionError("federation: 'cryptography' is not installed; run: pip install 'counterflow[federation]'")
