"""Publishing: a proven bundle becomes a version in a Triton model repository, wholly or not at all."""

from __future__ import annotations

from paritygate.serving.publish.publisher import Published, publish_bundle
from paritygate.serving.publish.repository import Finding, ModelRepository

__all__ = ["Finding", "ModelRepository", "Published", "publish_bundle"]
