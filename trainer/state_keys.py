"""The kinds of tensors in the training state; KIND/NAME is the key of one of them in a sharded checkpoint. No torch here."""

MODEL, MOMENTS = "model", ("exp_avg", "exp_avg_sq")
# Moments that Adam does not have: that of SGD and Muon, and the average of the weights (optim/ema.py).
EMA = "ema"
FURTHER_MOMENTS = ("momentum_buffer", EMA)
REST = "rest/state"  # all values of types that safetensors does not have, in one tensor of bytes
