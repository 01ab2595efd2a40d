"""The streaming VLA engine.  Nothing below this package imports ROS."""
