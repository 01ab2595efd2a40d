"""Where replayed messages come from: a recorded bag or a video file.  Needs no ROS."""
