"""Low-bit weights and activations: what a matrix product is made of when it is not plain."""
