"""Meta-training by recipes."""
