"""The IR: ops as loop nests over named axes, tensors, and the graph they make."""
