"""What computes a network's features: torch, or ONNX Runtime where it is installed and gives the same."""
