"""How often an address may come, and how many requests are answered at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

ADDRESSES = 4096  # whose rates are remembered


class Buckets:
    """How often each address may come: so many at once, then so many a second."""

    def __init__(
        self, rate: float, burst: float, most: int = ADDRESSES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._most, self._clock = rate, burst, most, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> (tokens, when)

    def __len__(self) -> int:
        return len(self._left)

    def take(self, address: str) -> float:
        """Seconds to wait; 0: come in."""
        now = self._clock()
        left, when = self._left.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - when) * self._rate)
        allowed = left >= 1.0
        self._left[address] = (left - 1.0 if allowed else left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)  # whoever has been away longest: its bucket is the fullest
        return 0.0 if allowed else (1.0 - left) / self._rate


class ConcurrencyLimit:
    """So many requests are answered at once; requests beyond the limit wait up to ``patience`` seconds.

    One visitor holds at most half of the places, and a free one goes to whoever holds the fewest: nobody keeps the
    others out by asking much.
    """

    def __init__(self, most: int, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._patience, self._clock = most, patience, clock
        self._held: Counter[str] = Counter()
        self._queue: list[tuple[str, asyncio.Future[None]]] = []
        self._moved = clock()

    @property
    def held(self) -> int:
        return self._held.total()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def stuck(self, seconds: float) -> bool:
        """Whether all places are held and none was given back for so long."""
        return self.held >= self._most and self._clock() - self._moved > seconds

    async def take(self, visitor: str) -> bool:
        """Whether there is a place, now or soon; who has taken one gives it back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((visitor, turn))
        self._fill()
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except TimeoutError:
            pass  # unless it came at the last moment
        except asyncio.CancelledError:
            if _granted(turn):
                self.give_back(visitor)
            raise
        finally:
            self._queue = [each for each in self._queue if each[1] is not turn]
        return _granted(turn)

    def give_back(self, visitor: str) -> None:
        self._held[visitor] -= 1
        if not self._held[visitor]:
            del self._held[visitor]
        self._moved = self._clock()
        self._fill()

    def _fill(self) -> None:
        while self.held < self._most:
            able = [each for each in self._queue if self._held[each[0]] < max(1, self._most // 2)]
            if not able:
                return
            chosen = min(able, key=lambda each: self._held[each[0]])  # the first of these
            self._queue.remove(chosen)
            if not chosen[1].done():
                chosen[1].set_result(None)
                self._held[chosen[0]] += 1
                self._moved = self._clock()


def _granted(turn: asyncio.Future[None]) -> bool:
    return turn.done() and not turn.cancelled()
