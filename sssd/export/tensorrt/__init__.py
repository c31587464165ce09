"""TensorRT plans: the portable graph in TensorRT's own terms, built and checked. Knows no checkpoint and no runtime."""
