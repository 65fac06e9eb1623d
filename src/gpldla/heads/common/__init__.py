"""What heads of other families share."""
