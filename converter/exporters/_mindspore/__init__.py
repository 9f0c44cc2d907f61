"""The parts of the MindSpore exporter."""
