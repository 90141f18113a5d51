"""Fuse, split or neither: the rule, its reasons and its flip points."""
