"""From features to a classifier with probabilities: models, estimators, calibration, files."""
