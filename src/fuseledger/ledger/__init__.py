"""The six accounts of a kernel, and what they are derived from."""
