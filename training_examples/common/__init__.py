"""What the training examples share: data, training steps, checkpoints, the comparison with plain PyTorch, reports."""
