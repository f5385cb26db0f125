"""Training data: files of tokens read in place, the order of samples, and batches by their position in that order."""
