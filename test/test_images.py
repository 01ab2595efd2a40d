"""Image messages to RGB: colour bars in every encoding, and what must be refused."""
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashdrive_ros.nodes import images
from flashdrive_ros.nodes.images import SUPPORTED, ImageError, decode_compressed, decode_image

TOPIC = '/camera/front/image_raw'
BARS = np.array([[255, 255, 255], [255, 255, 0], [0, 255, 255], [0, 255, 0],
                 [255, 0, 255], [255, 0, 0], [0, 0, 255], [0, 0, 0]], np.uint8)
WIDTH, HEIGHT = 64, 16
PICTURE = np.tile(np.repeat(BARS, WIDTH // 8, 0), (HEIGHT, 1, 1))


def message(encoding, rows, *, padding=0, bigendian=0, height=HEIGHT, width=WIDTH):
    """Image message of uint8 or uint16 `rows` [n, row]."""
    if rows.dtype == np.uint16:
        rows = rows.astype('>u2' if bigendian else '<u2').view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=77)
    return SimpleNamespace(encoding=encoding, height=height, width=width, step=padded.shape[1],
                           is_bigendian=bigendian, data=padded.tobytes())


def yuv(rgb):
    """Full-resolution Y, U, V of an RGB picture (BT.601, video range, as OpenCV decodes)."""
    r, g, b = np.moveaxis(rgb.astype(float), -1, 0)
    y = 16 + 0.257 * r + 0.504 * g + 0.098 * b
    u = 128 - 0.148 * r - 0.291 * g + 0.439 * b
    v = 128 + 0.439 * r - 0.368 * g - 0.071 * b
    return tuple(np.rint(c).clip(0, 255).astype(np.uint8) for c in (y, u, v))


def bayer(rgb, pattern):
    """Mosaic of an RGB picture; `pattern` names the first two pixels of two rows."""
    mosaic = np.empty(rgb.shape[:2], np.uint8)
    for i, colour in enumerate(pattern):
        mosaic[i // 2::2, i % 2::2] = rgb[i // 2::2, i % 2::2, 'rgb'.index(colour)]
    return mosaic


def encoded(encoding, rgb=PICTURE):
    """Rows of a picture in an encoding."""
    e = encoding.lower()
    wide = e.endswith('16') or e.startswith('16')
    if e.startswith('bayer'):
        rows = bayer(rgb, e[6:10])
    elif e in ('nv12', 'nv21'):
        y, u, v = yuv(rgb)
        first, second = (u, v) if e == 'nv12' else (v, u)
        chroma = np.stack((first[::2, ::2], second[::2, ::2]), -1).reshape(len(rgb) // 2, -1)
        return np.concatenate((y, chroma))
    elif e in ('yuv422', 'uyvy', 'yuv422_yuy2', 'yuyv', 'yuy2'):
        y, u, v = yuv(rgb)
        chroma = np.where(np.arange(rgb.shape[1]) % 2 == 0, u, np.roll(v, 1, 1))
        pair = (chroma, y) if e in ('yuv422', 'uyvy') else (y, chroma)
        rows = np.stack(pair, -1).reshape(len(rgb), -1)
    elif e in ('mono8', 'mono16', '8uc1', '16uc1'):
        rows = grey(rgb)
    else:
        order = rgb if e.startswith('rgb') else rgb[..., ::-1]
        alpha = 'a' in e or e == '8uc4'
        if alpha:
            order = np.concatenate((order, np.full_like(order[..., :1], 9)), -1)
        rows = order.reshape(len(rgb), -1)
    # 8 bits in the high byte, noise below
    return rows.astype(np.uint16) * 256 + 37 if wide else rows


def grey(rgb):
    return cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)


def expected(encoding, rgb=PICTURE):
    e = encoding.lower()
    return np.repeat(grey(rgb)[..., None], 3, -1) if 'mono' in e or e.endswith('uc1') else rgb


def assert_bars(rgb, encoding, picture=PICTURE):
    """Equal, but for edges where the encoding has less colour resolution."""
    want = expected(encoding, picture)
    assert rgb.dtype == np.uint8 and rgb.shape == want.shape
    inner = np.arange(WIDTH) % 8
    inner = (inner > 1) & (inner < 6)
    e = encoding.lower()
    soft = e.startswith(('bayer', 'nv', 'yuv', 'yuy', 'uyvy'))
    difference = np.abs(rgb.astype(int) - want)[:, inner]
    assert difference.max() <= (4 if soft else 0)


@pytest.mark.parametrize('encoding', SUPPORTED)
@pytest.mark.parametrize('padding', [0, 6])
def test_colour_bars_of_every_encoding(encoding, padding):
    assert_bars(decode_image(message(encoding, encoded(encoding), padding=padding), TOPIC),
                encoding)


@pytest.mark.parametrize('encoding', [e for e in SUPPORTED if '16' in e])
def test_both_byte_orders_of_16_bit_images(encoding):
    assert_bars(decode_image(message(encoding, encoded(encoding), bigendian=1), TOPIC), encoding)


@pytest.mark.parametrize('encoding', ['RGB8', 'BGR8', '8UC3', 'Mono8', 'NV12'])
def test_the_case_of_an_encoding_does_not_matter(encoding):
    assert_bars(decode_image(message(encoding, encoded(encoding)), TOPIC), encoding)


def test_the_last_row_may_lack_its_padding():
    m = message('bgr8', encoded('bgr8'), padding=6)
    m.data = m.data[:-6]
    assert_bars(decode_image(m, TOPIC), 'bgr8')


def test_the_result_is_a_copy():
    data = bytearray(encoded('rgb8').tobytes())
    m = message('rgb8', encoded('rgb8'))
    m.data = data
    rgb = decode_image(m, TOPIC)
    data[:] = bytes(len(data))
    assert_bars(rgb, 'rgb8')


@pytest.mark.parametrize('change, complaint', [
    ({'encoding': 'h264'}, "unknown encoding 'h264', supported are .*bgr8.*yuyv"),
    ({'encoding': '32FC1'}, "unknown encoding '32FC1'"),
    ({'data': b''}, 'rgb8 image of 64 x 16 needs rows of 192 bytes and 3072 bytes .* 0 bytes'),
    ({'height': 17}, 'needs .* 3264 bytes in all, got step 192 and 3072 bytes'),
    ({'step': 191}, 'step 191'),
    ({'width': 0}, '0 x 16 pixels'),
    ({'width': 2**31, 'height': 2**31}, 'pixels'),
    ({'encoding': 'nv12', 'height': 15}, 'even'),
    ({'encoding': 'uyvy', 'width': 63}, 'even'),
    ({'encoding': 'bayer_rggb8', 'height': 1}, '64 x 1'),
])
def test_malformed_images_are_refused_by_name(change, complaint):
    m = message('rgb8', encoded('rgb8'))
    m.__dict__.update(change)
    with pytest.raises(ImageError, match=complaint) as caught:
        decode_image(m, TOPIC)
    assert str(caught.value).startswith(TOPIC)


# ---- compressed

def compressed(extension, picture=PICTURE[..., ::-1], **arguments):
    data = cv2.imencode(extension, picture, **arguments)[1].tobytes()
    return SimpleNamespace(format=f'bgr8; {extension[1:]} compressed bgr8', data=data)


def test_png_is_exact():
    assert (decode_compressed(compressed('.png'), TOPIC) == PICTURE).all()


@pytest.mark.parametrize('decoder', ['simplejpeg', 'opencv'])
def test_red_stays_red_in_jpeg(decoder, monkeypatch):
    if decoder == 'opencv':
        monkeypatch.setattr(images, 'simplejpeg', None)
    else:
        pytest.importorskip('simplejpeg')
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 2] = 255
    rgb = decode_compressed(compressed('.jpg', red), TOPIC)
    assert np.abs(rgb.astype(int) - [255, 0, 0]).max() < 4


@pytest.mark.parametrize('picture', [PICTURE[..., 0], np.dstack((PICTURE, PICTURE[..., 0]))])
def test_png_of_grey_or_with_alpha_gives_three_channels(picture):
    assert decode_compressed(compressed('.png', picture), TOPIC).shape == PICTURE.shape


def test_grey_jpeg_gives_three_channels():
    rgb = decode_compressed(compressed('.jpg', grey(PICTURE)), TOPIC)
    assert rgb.shape == PICTURE.shape


@pytest.mark.parametrize('data', [b'', b'not an image at all', b'\xff\xd8\xff',
                                  b'\x89PNG\r\n\x1a\n' + bytes(40)])
def test_damaged_compressed_images_are_refused_by_name(data):
    with pytest.raises(ImageError, match=TOPIC):
        decode_compressed(SimpleNamespace(format='jpeg', data=data), TOPIC)


def test_a_few_bytes_that_claim_gigabytes_are_refused():
    m = compressed('.png')
    m.data = m.data[:16] + b'\0\1\0\0' * 2 + m.data[24:]
    with pytest.raises(ImageError, match='65536 x 65536 pixels'):
        decode_compressed(m, TOPIC)


@pytest.mark.parametrize('extension, decoder', [
    ('.jpg', 'simplejpeg'), ('.jpg', 'opencv'), ('.png', 'opencv')])
def test_truncated_compressed_images_are_refused(extension, decoder, monkeypatch):
    if decoder == 'opencv':
        monkeypatch.setattr(images, 'simplejpeg', None)
    m = compressed(extension)
    m.data = m.data[:len(m.data) // 2]
    with pytest.raises(ImageError, match='damaged'):
        decode_compressed(m, TOPIC)


# ---- anything at all

@settings(max_examples=300, deadline=None)
@given(encoding=st.sampled_from([*SUPPORTED, '', 'rgb', '16SC1']), height=st.integers(0, 9),
       width=st.integers(0, 9), step=st.integers(0, 64), bigendian=st.integers(0, 1),
       data=st.binary(max_size=400))
def test_any_image_is_decoded_or_refused(encoding, height, width, step, bigendian, data):
    m = SimpleNamespace(encoding=encoding, height=height, width=width, step=step,
                        is_bigendian=bigendian, data=data)
    try:
        rgb = decode_image(m, TOPIC)
    except ImageError:
        return
    assert rgb.shape == (height, width, 3) and rgb.dtype == np.uint8


@settings(max_examples=300, deadline=None)
@given(extension=st.sampled_from(['.jpg', '.png']), cut=st.integers(0, 2000),
       flips=st.dictionaries(st.integers(0, 2000), st.integers(0, 255), max_size=8))
def test_any_damage_to_a_compressed_image_is_decoded_or_refused(extension, cut, flips):
    data = bytearray(compressed(extension).data)
    for at, value in flips.items():
        if at < len(data):
            data[at] = value
    try:
        rgb = decode_compressed(SimpleNamespace(format='', data=bytes(data[:cut])), TOPIC)
    except ImageError:
        return
    assert rgb.ndim == 3 and rgb.shape[2] == 3 and rgb.dtype == np.uint8
