"""The parts of the PaddlePaddle exporter; `paritygate.converter.exporters.paddle` puts them together."""
