"""The embedded driving world: map, traffic, expert, causes, renderer (NumPy and OpenCV)."""
