"""The parts of the JAX exporter; `paritygate.converter.exporters.jax` puts them together."""
