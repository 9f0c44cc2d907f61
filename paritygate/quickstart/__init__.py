"""The whole of paritygate on real data in one command: `paritygate quickstart`."""

from paritygate.quickstart.story import run_story

__all__ = ["run_story"]
