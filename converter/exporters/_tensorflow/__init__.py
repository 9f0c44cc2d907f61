"""What TensorFlow sources share: SavedModels, frozen graphs, checkpoints, modules and functions, Keras models."""
