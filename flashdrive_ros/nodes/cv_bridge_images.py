"""
cv_bridge in place of our own image decoding, for graphs whose images must be read by it alone.

Only imported when the parameter `image_decoder` asks for it: builds of cv_bridge for
NumPy 1 fail in an environment with NumPy 2, and must not take the node with them.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.types import InputError
from .images import ImageError


def decoders() -> tuple[Callable, Callable]:
    """
    Return `decode_image` and `decode_compressed` by cv_bridge.

    Raises `InputError` when it is not installed or can't be imported.
    """
    try:
        from cv_bridge import CvBridge
        bridge = CvBridge()
    except Exception as error:  # ImportError, AttributeError of another NumPy, …
        raise InputError('image_decoder is cv_bridge, which can\'t be imported '
                         f'({type(error).__name__}: {error}); install ros-<distro>-cv-bridge '
                         'for this NumPy, or use own') from error
    return _guarded(bridge.imgmsg_to_cv2), _guarded(bridge.compressed_imgmsg_to_cv2)


def _guarded(decode: Callable) -> Callable:
    def decoded(msg, topic: str) -> np.ndarray:
        try:
            image = decode(msg, 'rgb8')
        except Exception as error:  # CvBridgeError, cv2.error, TypeError, by what is wrong
            raise ImageError(f'{topic}: cv_bridge: {error}') from error
        if image is None or image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ImageError(f'{topic}: cv_bridge gives no RGB of this image')
        return np.ascontiguousarray(image)
    return decoded
