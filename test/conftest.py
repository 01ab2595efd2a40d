import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# each test process keeps to itself, whatever else runs on this machine
os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
os.environ['ROS_DOMAIN_ID'] = str(os.environ.get('ROS_DOMAIN_ID') or 20 + os.getpid() % 80)
