"""Evaluation: estimators, benchmark loaders and the run behind `qae eval`."""
