"""What is trained on: files of tokens read in place, the order of the samples, and batches by their position in it."""
