"""How a checkpoint is found, verified and compared with the training that resumes from it."""
