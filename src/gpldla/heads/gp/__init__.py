"""What the Gaussian-process heads share: prior, posterior, predictive and leave-one-out."""
