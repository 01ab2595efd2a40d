"""
sensor_msgs Image and CompressedImage to RGB uint8.

Works on anything with the fields of those messages.  Rows may be padded
(`step`), 16-bit values may be in either byte order.  Everything that cannot be
decoded raises `ImageError`, which names the topic, what was found and what is
supported.
"""
from __future__ import annotations

import cv2
import numpy as np

try:
    import simplejpeg
except ImportError:  # OpenCV decodes JPEG too, about 1.4 times slower
    simplejpeg = None

from ..core.types import InputError


class ImageError(InputError):
    """An image message that cannot be turned into RGB."""


# encoding -> channels of one pixel, and how OpenCV turns it into RGB
_PACKED = {
    'rgb8': (3, None), '8uc3': (3, cv2.COLOR_BGR2RGB), 'bgr8': (3, cv2.COLOR_BGR2RGB),
    'rgba8': (4, cv2.COLOR_RGBA2RGB), 'bgra8': (4, cv2.COLOR_BGRA2RGB),
    '8uc4': (4, cv2.COLOR_BGRA2RGB),
    'mono8': (1, cv2.COLOR_GRAY2RGB), '8uc1': (1, cv2.COLOR_GRAY2RGB),
    # OpenCV names a pattern by the second row's second and third pixel: RGGB is its BayerBG
    'bayer_rggb8': (1, cv2.COLOR_BayerBG2RGB), 'bayer_bggr8': (1, cv2.COLOR_BayerRG2RGB),
    'bayer_gbrg8': (1, cv2.COLOR_BayerGR2RGB), 'bayer_grbg8': (1, cv2.COLOR_BayerGB2RGB),
    'yuv422': (2, cv2.COLOR_YUV2RGB_UYVY), 'uyvy': (2, cv2.COLOR_YUV2RGB_UYVY),
    'yuv422_yuy2': (2, cv2.COLOR_YUV2RGB_YUY2), 'yuyv': (2, cv2.COLOR_YUV2RGB_YUY2),
    'yuy2': (2, cv2.COLOR_YUV2RGB_YUY2),
}
# 16-bit encodings: the high byte of each value is the 8-bit encoding
_WIDE = {
    'mono16': 'mono8', '16uc1': 'mono8', 'rgb16': 'rgb8', 'bgr16': 'bgr8', '16uc3': 'bgr8',
    'rgba16': 'rgba8', 'bgra16': 'bgra8', 'bayer_rggb16': 'bayer_rggb8',
    'bayer_bggr16': 'bayer_bggr8', 'bayer_gbrg16': 'bayer_gbrg8', 'bayer_grbg16': 'bayer_grbg8',
}
# a full-size luma plane, then a half-height plane of interleaved chroma
_PLANAR = {'nv12': cv2.COLOR_YUV2RGB_NV12, 'nv21': cv2.COLOR_YUV2RGB_NV21}

SUPPORTED = tuple(sorted((*_PACKED, *_WIDE, *_PLANAR)))
_MAX_PIXELS = 1 << 26


def decode_image(msg, topic: str) -> np.ndarray:
    """RGB uint8 [H, W, 3] of a sensor_msgs/Image."""
    encoding = msg.encoding.lower()
    height, width = msg.height, msg.width
    _refuse_size(height, width, topic)
    if encoding in _PLANAR:
        return _decode_planar(msg, topic, _PLANAR[encoding])
    if encoding in _WIDE:
        channels, code = _PACKED[_WIDE[encoding]]
        rows = _rows(msg, topic, height, width * channels * 2)
        # one byte of each pair: the high one
        pixels = rows[:, 0 if msg.is_bigendian else 1::2].reshape(height, width, channels)
    elif encoding in _PACKED:
        channels, code = _PACKED[encoding]
        pixels = _rows(msg, topic, height, width * channels).reshape(height, width, channels)
    else:
        raise ImageError(f'{topic}: unknown encoding {msg.encoding!r}, '
                         f'supported are {", ".join(SUPPORTED)}')
    if channels == 2 and width % 2:
        raise ImageError(f'{topic}: {msg.encoding} needs an even width, got {width}')
    if encoding.startswith('bayer') and (height < 2 or width < 2):
        raise ImageError(f'{topic}: {msg.encoding} image of {width} x {height} pixels')
    if code is None:
        return np.array(pixels)
    return cv2.cvtColor(np.ascontiguousarray(pixels), code)


def _decode_planar(msg, topic: str, code: int) -> np.ndarray:
    height, width = msg.height, msg.width
    if height % 2 or width % 2:
        raise ImageError(f'{topic}: {msg.encoding} needs even sizes, got {width} x {height}')
    return cv2.cvtColor(np.ascontiguousarray(_rows(msg, topic, height * 3 // 2, width)), code)


def _rows(msg, topic: str, rows: int, row_bytes: int) -> np.ndarray:
    """uint8 [rows, row_bytes] view of the data without its row padding."""
    data = np.frombuffer(msg.data, dtype=np.uint8)
    step = msg.step or row_bytes
    # the last row may lack its padding
    needed = step * (rows - 1) + row_bytes
    if step < row_bytes or data.size < needed:
        raise ImageError(
            f'{topic}: {msg.encoding} image of {msg.width} x {msg.height} needs rows of '
            f'{row_bytes} bytes and {needed} bytes in all, got step {msg.step} and '
            f'{data.size} bytes')
    return np.lib.stride_tricks.as_strided(data, (rows, row_bytes), (step, 1), writeable=False)


def decode_compressed(msg, topic: str) -> np.ndarray:
    """RGB uint8 [H, W, 3] of a sensor_msgs/CompressedImage holding JPEG or PNG."""
    data = np.frombuffer(msg.data, dtype=np.uint8)
    kind = _container(data)
    if kind is None:
        raise ImageError(f'{topic}: {data.size} bytes of format {msg.format!r} are neither '
                         f'JPEG nor PNG')
    try:
        if kind == 'jpeg' and simplejpeg is not None:
            return _decode_jpeg(data, topic)
        if kind == 'png' or b'\xff\xd9' in data[-1024:].tobytes():  # OpenCV takes half a JPEG
            _refuse_size(*_png_size(data) if kind == 'png' else (1, 1), topic)
            # IMREAD_COLOR gives 8-bit BGR whatever is stored, and drops alpha
            image = cv2.imdecode(data, cv2.IMREAD_COLOR)
            if image is not None:
                return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    except (ValueError, cv2.error) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f'{topic}: {kind} of {data.size} bytes is damaged: {error}') from error
    raise ImageError(f'{topic}: {kind} of {data.size} bytes is damaged')


def _decode_jpeg(data: np.ndarray, topic: str) -> np.ndarray:
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    _refuse_size(height, width, topic)
    return simplejpeg.decode_jpeg(data, 'RGB')


def _png_size(data: np.ndarray) -> tuple[int, int]:
    """Height and width of a PNG, from its first chunk."""
    width, height = (int.from_bytes(data[i:i + 4].tobytes(), 'big') for i in (16, 20))
    return height, width


def _refuse_size(height: int, width: int, topic: str):
    """A few bytes may claim gigabytes of pixels."""
    if not 0 < height * width <= _MAX_PIXELS:
        raise ImageError(f'{topic}: image of {width} x {height} pixels')


def _container(data: np.ndarray) -> str | None:
    head = data[:8].tobytes()
    if head[:3] == b'\xff\xd8\xff':
        return 'jpeg'
    return 'png' if head == b'\x89PNG\r\n\x1a\n' else None
