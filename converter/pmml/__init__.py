"""PMML written from bundles whose graph is a linear model or trees: `write_pmml`."""

from paritygate.converter.pmml.handing_over import write_pmml

__all__ = ["write_pmml"]
