"""The closed family of errors that Counterflow raises on purpose.

Every message names the unit, the field and the value at fault, and says what to do about it. Anything else that
escapes from the library is a defect.
"""


class CounterflowError(Exception):
    """Base of every error that Counterflow raises on purpose.

    ``code`` says what is wrong to a program: that of the class, or a narrower one where somebody acts on it. ``scope``:
    the units that its text tells of, as in a caveat; "" if it tells of none but the one that has asked.
    """

    code = "error"

    def __init__(self, *args: object, code: str | None = None, scope: str = "") -> None:
        super().__init__(*args)
        self.scope = scope
        if code is not None:
            self.code = code


class ModelError(CounterflowError, ValueError):
    """A plant, unit or local model is inconsistent: wrong shape, not symmetric, not positive, a name used twice."""

    code = "model"


class DataError(CounterflowError, ValueError):
    """A recording cannot be used as it is: wrong shape, missing or non-finite values, too few rows."""

    code = "data"


class OptionError(CounterflowError, ValueError):
    """An option is unknown, out of its range, or does not go with the others."""

    code = "option"


class UnknownNameError(CounterflowError, KeyError):
    """A unit or channel of that name does not exist."""

    code = "unknown-name"

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class UnstableError(CounterflowError, ValueError):
    """The question has no finite answer because a system is unstable, or not detectable from what is measured."""

    code = "unstable"


class ProtocolError(CounterflowError):
    """A message is malformed, unexpected in this state, or not what it claims to be."""

    code = "protocol"


class StorageError(CounterflowError):
    """A saved file is missing, damaged, or not what it claims to be."""

    code = "storage"


class UnidentifiedError(CounterflowError):
    """The data cannot answer the question; the message says why, and what data could."""

    code = "unidentified"


class PrivacyError(CounterflowError):
    """A release would cost more than a unit's privacy budget has left, or would leave the unit unprotected."""

    code = "privacy"
