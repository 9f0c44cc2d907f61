"""The gateway beside the least that could answer the same requests: `python -m benchmarks.serving [CASE...]`."""
