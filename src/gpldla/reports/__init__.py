"""What people look at: tables, plots, pages, the demo and the comparison."""
