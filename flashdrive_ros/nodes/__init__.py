"""ROS 2 nodes: wiring between topics and the engine, no maths."""
