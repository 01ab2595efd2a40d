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
    **dict.fromkeys(('yuv422', 'uyvy', 'yuv422_uyvy', 'uyvy422'), (2, cv2.COLOR_YUV2RGB_UYVY)),
    **dict.fromkeys(('yuv422_yuy2', 'yuyv', 'yuv422_yuyv', 'yuyv422', 'yuy2'),
                    (2, cv2.COLOR_YUV2RGB_YUY2)),
}
# 16-bit encodings: the high byte of each value is the 8-bit encoding
_WIDE = {
    'mono16': 'mono8', '16uc1': 'mono8', 'rgb16': 'rgb8', 'bgr16': 'bgr8', '16uc3': 'bgr8',
    '16uc4': 'bgra8', 'rgba16': 'rgba8', 'bgra16': 'bgra8', 'bayer_rggb16': 'bayer_rggb8',
    'bayer_bggr16': 'bayer_bggr8', 'bayer_gbrg16': 'bayer_gbrg8', 'bayer_grbg16': 'bayer_grbg8',
}
# a full-size luma plane, then a half-height plane of interleaved chroma
_PLANAR = {'nv12': cv2.COLOR_YUV2RGB_NV12, 'nv21': cv2.COLOR_YUV2RGB_NV21}
_NV24 = 'nv24'
# BT.601, video range, as OpenCV has it for the others: rows R, G, B of Y, U, V, 1
_YUV_TO_RGB = np.array([[1.164, 0.0, 1.596, -1.164 * 16 - 1.596 * 128],
                        [1.164, -0.391, -0.813, -1.164 * 16 + (0.391 + 0.813) * 128],
                        [1.164, 2.018, 0.0, -1.164 * 16 - 2.018 * 128]])

SUPPORTED = tuple(sorted((*_PACKED, *_WIDE, *_PLANAR, _NV24)))
_MAX_PIXELS = 1 << 26


def decode_image(msg, topic: str) -> np.ndarray:
    """RGB uint8 [H, W, 3] of a sensor_msgs/Image."""
    encoding = msg.encoding.lower()
    height, width = msg.height, msg.width
    _refuse_size(height, width, topic)
    if encoding in _PLANAR:
        return _decode_planar(msg, topic, _PLANAR[encoding])
    if encoding == _NV24:
        return _decode_nv24(msg, topic)
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


def _decode_nv24(msg, topic: str) -> np.ndarray:
    """A luma plane, then a plane of interleaved chroma of the same size, so twice the bytes."""
    height, width = msg.height, msg.width
    rows = _rows(msg, topic, 3 * height, width)
    if rows.strides[0] == width:
        chroma = rows[height:].reshape(height, width, 2)
    else:  # a row of chroma takes two of luma, padding at its end
        step = rows.strides[0]
        chroma = np.lib.stride_tricks.as_strided(
            rows[height:], (height, width, 2), (2 * step, 2, 1), writeable=False)
    yuv = np.dstack((rows[:height], chroma))
    return cv2.transform(yuv, _YUV_TO_RGB)


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
    """
    RGB uint8 [H, W, 3] of a sensor_msgs/CompressedImage holding JPEG or PNG.

    The bytes say what is red.  `format` is only asked whether a grey picture is
    a Bayer mosaic ('bayer_rggb8; jpeg compressed ').
    """
    data = np.frombuffer(msg.data, dtype=np.uint8)
    kind = _container(data)
    if kind is None:
        raise ImageError(f'{topic}: {data.size} bytes of format {msg.format!r} are neither '
                         f'JPEG nor PNG')
    try:
        if msg.format.lower().startswith('bayer'):
            return _decode_mosaic(data, msg.format, kind, topic)
        if kind == 'jpeg' and simplejpeg is not None:
            return _decode_jpeg(data, topic)
        if kind == 'png' or b'\xff\xd9' in data[-1024:].tobytes():  # OpenCV takes half a JPEG
            _refuse_size(*_stored_size(data, kind), topic)
            # IMREAD_COLOR gives 8-bit BGR whatever is stored, and drops alpha; a camera's
            # pixels lie as calibrated, however it was held
            image = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
            if image is not None:
                return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    except (ValueError, cv2.error) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f'{topic}: {kind} of {data.size} bytes is damaged: {error}') from error
    raise ImageError(f'{topic}: {kind} of {data.size} bytes is damaged')


def _decode_mosaic(data: np.ndarray, image_format: str, kind: str, topic: str) -> np.ndarray:
    """Of a picture that was compressed as the sensor gave it, or in colour after all."""
    encoding = image_format.lower().partition(';')[0].strip()
    encoding = _WIDE.get(encoding, encoding)
    _refuse_size(*_stored_size(data, kind), topic)
    image = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    if image is None or (kind == 'jpeg' and b'\xff\xd9' not in data[-1024:].tobytes()):
        raise ImageError(f'{topic}: {kind} of {data.size} bytes is damaged')
    if image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    if image.ndim == 3:
        return np.ascontiguousarray(image[..., 2::-1])
    if encoding not in _PACKED or min(image.shape) < 2:
        raise ImageError(f'{topic}: {image.shape[1]} x {image.shape[0]} pixels of format '
                         f'{image_format!r}')
    return cv2.cvtColor(image, _PACKED[encoding][1])


def _decode_jpeg(data: np.ndarray, topic: str) -> np.ndarray:
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    _refuse_size(height, width, topic)
    return simplejpeg.decode_jpeg(data, 'RGB')


def _stored_size(data: np.ndarray, kind: str) -> tuple[int, int]:
    """Height and width by the header; zeros without one."""
    if kind == 'png':  # in the first chunk
        width, height = (int.from_bytes(data[i:i + 4].tobytes(), 'big') for i in (16, 20))
        return height, width
    at = 2
    while at + 9 <= data.size and data[at] == 0xff:
        marker, body = int(data[at + 1]), data[at + 2:at + 9].tobytes()
        if marker == 0xff:  # a fill byte
            at += 1
        elif 0xc0 <= marker <= 0xcf and marker not in (0xc4, 0xc8, 0xcc):  # start of frame
            return int.from_bytes(body[3:5], 'big'), int.from_bytes(body[5:7], 'big')
        else:
            at += 2 + int.from_bytes(body[:2], 'big')
    return 0, 0


def _refuse_size(height: int, width: int, topic: str):
    """A few bytes may claim gigabytes of pixels."""
    if not 0 < height * width <= _MAX_PIXELS:
        raise ImageError(f'{topic}: image of {width} x {height} pixels')


def _container(data: np.ndarray) -> str | None:
    head = data[:8].tobytes()
    if head[:3] == b'\xff\xd8\xff':
        return 'jpeg'
    return 'png' if head == b'\x89PNG\r\n\x1a\n' else None
