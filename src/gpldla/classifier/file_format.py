"""What a classifier's file calls itself. Nothing here needs torch."""

KIND, FORMAT = "gpldla classifier", 1
FORMAT_WITH_OWN_PRIOR = 2  # earlier versions, which would leave out the own prior, or class names, refuse it
