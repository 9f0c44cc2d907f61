"""Keras models: their files, how they are asked, their double-precision twin."""
