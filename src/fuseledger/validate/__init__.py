"""Predictions against measured times: corpora, folds, figures of merit, reports."""
