"""Work that is done again and again beside the requests, and that no error may end silently.

A step that fails is logged and tried again after a growing pause. Until it succeeds again the gateway is not
ready: what it serves may be out of date, and a load balancer should look elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("paritygate.serving")

_LONGEST_PAUSE_S = 30.0

Step = Callable[[], Awaitable[object]]


class Background:
    """Repeats steps until it is stopped."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: set[str] = set()

    @property
    def healthy(self) -> bool:
        """Whether the last try of every step succeeded and none has ended."""
        return not self._failing and not any(task.done() for task in self._tasks)

    def repeat(self, name: str, step: Step, pause_s: float) -> None:
        """Do a step now and again after each pause of `pause_s` seconds, until `stop`."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(name, step, pause_s)))

    async def _repeat(self, name: str, step: Step, pause_s: float) -> None:
        pause = pause_s
        while True:
            try:
                await step()
            except Exception:
                pause = min(2 * pause, max(pause_s, _LONGEST_PAUSE_S))
                self._failing.add(name)
                log.critical(
                    "%s failed, tried again in %.3g s; not ready until then", name, pause, exc_info=True
                )
            else:
                pause = pause_s
                self._failing.discard(name)
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """Cancel every step and wait until it has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
