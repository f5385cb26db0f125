"""The kinds of tensors in the training state; KIND/NAME is the key of one of them in a sharded checkpoint. No torch here."""

MODEL, MOMENTS = "model", ("exp_avg", "exp_avg_sq")
