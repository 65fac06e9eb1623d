"""GPU kernels in Triton, for what plain torch operations spend too much time launching."""
