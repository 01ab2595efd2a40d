"""flashdrive_ros: streaming reasoning vision-language-action models that drive inside ROS 2."""
from pkgutil import extend_path

# The source tree may shadow an installed copy that holds the generated messages
# (msg/, srv/ and the type-support libraries); look in both.
__path__ = extend_path(__path__, __name__)

__version__ = '0.1.0'
