"""Image messages to RGB: colour bars in every encoding, and what must be refused."""
import array
import subprocess
import sys
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashdrive_ros.nodes import cv_bridge_images, images
from flashdrive_ros.nodes.images import SUPPORTED, ImageError, decode_compressed, decode_image

TOPIC = '/camera/front/image_raw'
BARS = np.array([[255, 255, 255], [255, 255, 0], [0, 255, 255], [0, 255, 0],
                 [255, 0, 255], [255, 0, 0], [0, 0, 255], [0, 0, 0]], np.uint8)
WIDTH, HEIGHT = 64, 16
PICTURE = np.tile(np.repeat(BARS, WIDTH // 8, 0), (HEIGHT, 1, 1))


UYVY = ('yuv422', 'uyvy', 'yuv422_uyvy', 'uyvy422')
YUYV = ('yuv422_yuy2', 'yuyv', 'yuv422_yuyv', 'yuyv422', 'yuy2')


def message(encoding, rows, *, padding=0, bigendian=0, height=HEIGHT, width=WIDTH):
    """Image message of uint8 or uint16 `rows` [n, row]."""
    if rows.dtype == np.uint16:
        rows = rows.astype('>u2' if bigendian else '<u2').view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=77)
    if encoding.lower() == 'nv24' and padding:  # a row of chroma is two of luma, then its padding
        chroma = np.pad(rows[height:].reshape(height, -1), ((0, 0), (0, 2 * padding)))
        padded = np.concatenate((padded[:height], chroma.reshape(2 * height, -1)))
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
    elif e == 'nv24':
        y, u, v = yuv(rgb)
        return np.concatenate((y, np.stack((u, v), -1).reshape(2 * len(rgb), -1)))
    elif e in ('nv12', 'nv21'):
        y, u, v = yuv(rgb)
        first, second = (u, v) if e == 'nv12' else (v, u)
        chroma = np.stack((first[::2, ::2], second[::2, ::2]), -1).reshape(len(rgb) // 2, -1)
        return np.concatenate((y, chroma))
    elif e in UYVY or e in YUYV:
        y, u, v = yuv(rgb)
        chroma = np.where(np.arange(rgb.shape[1]) % 2 == 0, u, np.roll(v, 1, 1))
        pair = (chroma, y) if e in UYVY else (y, chroma)
        rows = np.stack(pair, -1).reshape(len(rgb), -1)
    elif e in ('mono8', 'mono16', '8uc1', '16uc1'):
        rows = grey(rgb)
    else:
        order = rgb if e.startswith('rgb') else rgb[..., ::-1]
        alpha = 'a' in e or e.endswith('uc4')
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


@pytest.mark.parametrize('encoding', ['bgr8', 'rgb8', 'mono8', 'bayer_rggb8', 'uyvy', 'rgba8'])
def test_rows_padded_to_the_alignment_of_a_driver_are_honoured(encoding):
    """Field report 6: 1918 pixels in rows of 5760 bytes."""
    picture = np.tile(np.repeat(BARS, [240] * 7 + [238], 0), (4, 1, 1))
    rows = encoded(encoding, picture)
    padding = -rows.shape[1] % 64
    rgb = decode_image(message(encoding, rows, padding=padding, height=4, width=1918), TOPIC)
    middle = 120 + 240 * np.arange(8) - np.array([0] * 7 + [2])
    assert np.abs(rgb[2, middle].astype(int) - expected(encoding, picture)[2, middle]).max() <= 4


def test_data_of_one_row_too_few_is_refused_and_named():
    """Field report 6: step x height does not match the size."""
    m = message('bgr8', encoded('bgr8'), padding=6)
    m.data = m.data[:-m.step]
    with pytest.raises(ImageError, match=f'{TOPIC}: bgr8 image of 64 x 16 needs rows of 192 '
                                         f'bytes and 3162 bytes in all, got step 198 and 2970'):
        decode_image(m, TOPIC)


@pytest.mark.parametrize('name', [*UYVY, *YUYV])
def test_every_name_of_yuv_422_gives_the_colours_of_its_byte_order(name):
    """Field report 8: yuv422 is UYVY, yuv422_yuy2 is YUYV; a mix-up turns colours wrong."""
    green = SimpleNamespace(
        encoding=name, height=1, width=2, step=4, is_bigendian=0,
        data=bytes((54, 145, 34, 145) if name in UYVY else (145, 54, 145, 34)))
    assert np.abs(decode_image(green, TOPIC)[0, 0].astype(int) - [0, 255, 0]).max() <= 3


@pytest.mark.parametrize('encoding', ['rgb8', 'bgr8', 'rgba8', 'bgra8', 'rgb16', 'bgr16'])
def test_red_is_red_in_every_order(encoding):
    """Field reports 9 and 10: red and blue swapped, alpha kept."""
    red = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    red[..., 0] = 255
    assert (decode_image(message(encoding, encoded(encoding, red)), TOPIC) == red).all()


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
    """Field reports 6 and 8: unknown encodings list what is supported."""
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
    """Field report 10."""
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


@pytest.mark.parametrize('image_format', ['jpeg', 'bayer_rggb8; jpeg compressed '])
@pytest.mark.parametrize('decoder', ['simplejpeg', 'opencv'])
def test_a_jpeg_that_claims_gigabytes_is_refused_before_they_are_taken(
        image_format, decoder, monkeypatch):
    if decoder == 'opencv':
        monkeypatch.setattr(images, 'simplejpeg', None)
    m = compressed('.jpg')
    m.format = image_format
    start = m.data.index(b'\xff\xc0')
    m.data = m.data[:start + 5] + b'\xff\xff\xff\xff' + m.data[start + 9:]
    with pytest.raises(ImageError, match='65535 x 65535 pixels|is damaged'):
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


@pytest.mark.parametrize('image_format', [
    'jpeg', 'bgr8; jpeg compressed bgr8', 'rgb8; jpeg compressed bgr8',
    'rgb8; jpeg compressed rgb8', 'jpg', ''])
@pytest.mark.parametrize('decoder', ['simplejpeg', 'opencv'])
def test_what_the_format_says_of_colours_changes_none(image_format, decoder, monkeypatch):
    """Field report 10: JPEG itself defines which channel is red."""
    if decoder == 'opencv':
        monkeypatch.setattr(images, 'simplejpeg', None)
    m = compressed('.jpg', np.full((16, 16, 3), (0, 0, 255), np.uint8))
    m.format = image_format
    assert np.abs(decode_compressed(m, TOPIC).astype(int) - [255, 0, 0]).max() < 4


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
@pytest.mark.parametrize('extension', ['.png', '.jpg'])
def test_a_mosaic_that_was_compressed_as_it_is_gets_its_colours(pattern, extension):
    """Field report 9, compressed: `bayer_rggb8; jpeg compressed ` of image_transport."""
    picture = np.tile(np.array([200, 120, 40], np.uint8), (HEIGHT, WIDTH, 1))
    m = compressed(extension, bayer(picture, pattern))
    m.format = f'bayer_{pattern}8; {extension[1:]} compressed '
    rgb = decode_compressed(m, TOPIC)
    assert np.abs(rgb[4:-4, 4:-4].astype(int) - picture[4:-4, 4:-4]).max() < 30
    m = compressed(extension, picture[..., ::-1])  # the driver made colours of it before
    m.format = f'bayer_{pattern}8; {extension[1:]} compressed bgr8'
    assert np.abs(decode_compressed(m, TOPIC).astype(int) - picture).max() < 6


def test_a_16_bit_mosaic_in_png_keeps_its_high_bytes():
    picture = np.tile(np.array([200, 120, 40], np.uint8), (HEIGHT, WIDTH, 1))
    m = compressed('.png', bayer(picture, 'rggb').astype(np.uint16) * 256)
    m.format = 'bayer_rggb16; png compressed '
    assert (decode_compressed(m, TOPIC)[4:-4, 4:-4] == picture[4:-4, 4:-4]).all()


@pytest.mark.parametrize('data', [b'', bytes(100)])
def test_a_damaged_mosaic_is_refused_by_name(data):
    m = compressed('.jpg', PICTURE[..., 0])
    m.format, m.data = 'bayer_rggb8; jpeg compressed ', m.data[:30] + data
    with pytest.raises(ImageError, match=f'{TOPIC}: (jpeg .* is damaged|image of 0 x 0 pixels)'):
        decode_compressed(m, TOPIC)


@pytest.mark.parametrize('decoder', ['simplejpeg', 'opencv'])
def test_a_jpeg_that_asks_to_be_turned_stays_as_the_sensor_lies(decoder, monkeypatch):
    """The camera is calibrated and mounted as its pixels are, whatever EXIF says."""
    if decoder == 'opencv':
        monkeypatch.setattr(images, 'simplejpeg', None)
    m = compressed('.jpg')
    turned = (b'\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01'
              b'\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0')
    m.data = m.data[:2] + turned + m.data[2:]
    assert decode_compressed(m, TOPIC).shape == (HEIGHT, WIDTH, 3)


# ---- cv_bridge

def test_cv_bridge_is_only_imported_when_it_is_chosen():
    """Field report 11: a cv_bridge for NumPy 1 must not end a node that does not need it."""
    code = ('import sys; sys.modules["cv_bridge"] = None\n'
            'import flashdrive_ros.nodes.images, flashdrive_ros.nodes.cv_bridge_images as c\n'
            'from flashdrive_ros.core.types import InputError\n'
            'try: c.decoders()\n'
            'except InputError as error: print(error)')
    said = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("image_decoder is cv_bridge, which can't be imported (")
    assert 'or use own' in said.stdout


def test_what_cv_bridge_can_not_read_is_refused_by_name(monkeypatch):
    class Bridge:
        def imgmsg_to_cv2(self, message, encoding):
            raise TypeError('buffer is too small for requested array')

        def compressed_imgmsg_to_cv2(self, message, encoding):
            return None
    monkeypatch.setitem(sys.modules, 'cv_bridge', SimpleNamespace(CvBridge=Bridge))
    for decode in cv_bridge_images.decoders():
        with pytest.raises(ImageError, match=f'{TOPIC}: cv_bridge'):
            decode(None, TOPIC)


@pytest.mark.parametrize('encoding', [
    'rgb8', 'bgr8', 'rgba8', 'bgra8', 'mono8', 'rgb16', 'bgr16', 'mono16', 'bayer_rggb8',
    'bayer_bggr8', 'bayer_gbrg8', 'bayer_grbg8', 'yuv422', 'yuv422_yuy2'])
def test_cv_bridge_agrees_with_our_decoder(encoding):
    """
    Where it is installed.

    It scales 16 bits by 255 / 65535, we take the high byte; padded rows are left
    out, because its release 1.16.2 shears them.
    """
    pytest.importorskip('cv_bridge')
    from sensor_msgs.msg import Image
    m = message(encoding, encoded(encoding))
    image = Image(**{**m.__dict__, 'data': array.array('B', m.data)})
    theirs = cv_bridge_images.decoders()[0](image, TOPIC)
    assert np.abs(theirs.astype(int) - decode_image(m, TOPIC)).max() <= 1


@pytest.mark.parametrize('extension', ['.jpg', '.png'])
def test_cv_bridge_agrees_on_compressed_images(extension):
    pytest.importorskip('cv_bridge')
    m = compressed(extension)
    theirs = cv_bridge_images.decoders()[1](m, TOPIC)
    assert np.abs(theirs.astype(int) - decode_compressed(m, TOPIC)).max() <= 2


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
       image_format=st.sampled_from(['', 'jpeg', 'bayer_rggb8; jpeg compressed ', 'bayer']),
       flips=st.dictionaries(st.integers(0, 2000), st.integers(0, 255), max_size=8))
def test_any_damage_to_a_compressed_image_is_decoded_or_refused(
        extension, cut, image_format, flips):
    data = bytearray(compressed(extension).data)
    for at, value in flips.items():
        if at < len(data):
            data[at] = value
    try:
        rgb = decode_compressed(
            SimpleNamespace(format=image_format, data=bytes(data[:cut])), TOPIC)
    except ImageError:
        return
    assert rgb.ndim == 3 and rgb.shape[2] == 3 and rgb.dtype == np.uint8
