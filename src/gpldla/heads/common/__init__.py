"""Code that several heads outside `gp` share."""
