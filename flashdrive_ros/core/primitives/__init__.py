"""Visual primitives in the text stream: coordinates as tokens, boxes and trajectories as text."""
