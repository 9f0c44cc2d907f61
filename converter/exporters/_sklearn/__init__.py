"""The parts of the scikit-learn exporter: files, inputs, answers, conversion, and the graph that comes out."""
