"""The embedded driving world: map, traffic, expert, causes, renderer (NumPy and OpenCV)."""
from .cameras import Camera, default_rig
from .scenario import EVENTS, Scenario
from .world import Observation, Trajectory, World

__all__ = ['EVENTS', 'Camera', 'Observation', 'Scenario', 'Trajectory', 'World', 'default_rig']
