"""What the Gaussian-process heads share: prior, posterior, predictive, and leaving one out."""
