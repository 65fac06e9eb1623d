"""Models, adapted tasks, estimators, calibration and files: from features to probabilities."""
