"""Scripts for CUDA, as users write them."""

ACCELERATE = """
import os
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4), torch.ones(8, 1)), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for inputs, targets in data:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
"""
"""Trains; a test adds what to print of `accelerator`, `model` and `data`."""
