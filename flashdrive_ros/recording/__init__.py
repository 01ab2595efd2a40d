"""Bags on disk: message definitions, reading, summary and comparison.  Needs no ROS."""
