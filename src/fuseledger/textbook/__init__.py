"""The two reference exercises, reproduced to the digit."""
