"""
How far float32 results may be from the released code's, by kind of array.

Another thread count, attention kernel or processor moves the released code's
own results by about a tenth of these.
"""
VISION = HIDDEN = KEYS = 5e-5
LOGITS = 2e-4
VELOCITY = 3e-4
FIRST_VELOCITY = 1e-4
ACTIONS = 1e-4
XYZ = 1e-3
ROTATION = 1e-4
SPEED = 1e-4
CONSTANT = 1e-6
PIXEL = 1e-6

DECODED = 1e-4
ENCODED = (1e-4, 1e-3)
"""Normalised acceleration and curvature: estimating them in float32 is ill-conditioned."""
ENCODED_FLOAT64 = 1e-6
EDGE = 1e-3
"""Bins: a number this close to a rounding edge may fall on either side."""
METRIC = 1e-5
GEOMETRY = 1e-6
