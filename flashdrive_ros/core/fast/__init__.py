"""
The engine's stages in static shapes: what a CUDA graph can replay.

`reference.py` has every fused operation in plain torch, `kernels.py` the same
names as Triton kernels; the stages take either.
"""
