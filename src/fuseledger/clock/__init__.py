"""Time of a kernel, from its price and its device."""
