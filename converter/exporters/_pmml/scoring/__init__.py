"""Scores PMML row by row, as the standard says it, in double precision: the source framework of the exporter."""
