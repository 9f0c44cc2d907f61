"""Figures, side by side in one run; see benchmarks/README.md."""
