"""Which ops share a kernel, and under which schedule."""
