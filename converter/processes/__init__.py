"""Commands that run with limits: on their time, their memory and their output, and none outlives us.

run_supervised(command, ...)      to its end; what it wrote and how it ended
start_supervised(command, ...)    one that is spoken with while it runs

Everything that starts a process builds on this: framework environments, and the exporters whose library crashes,
hangs or cannot be trusted with memory. Only the standard library is needed, so it works in every environment.
"""

from __future__ import annotations

from paritygate.converter.processes.running import Ended, OnLine, run_supervised
from paritygate.converter.processes.starting import CHANNEL_VARIABLE, Started, start_supervised

__all__ = ["CHANNEL_VARIABLE", "Ended", "OnLine", "Started", "run_supervised", "start_supervised"]
