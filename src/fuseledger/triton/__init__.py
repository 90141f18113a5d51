"""Evidence without a GPU: planned kernels as Triton code, compiled and checked."""
