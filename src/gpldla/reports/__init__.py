"""Tables, plots and pages; the demo and the comparison of methods."""
