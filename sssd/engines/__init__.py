"""What computes a forward pass."""
