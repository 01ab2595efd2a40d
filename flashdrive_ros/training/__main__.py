"""`python -m flashdrive_ros.training` is `flashdrive train`, where no ROS is installed."""
from ..cli.train import main

raise SystemExit(main())
