"""What the embedded world shows: cameras, images, boxes."""
import numpy as np
import pytest

from flashdrive_ros.world import World, default_rig
from flashdrive_ros.world.boxes import boxes_2d
from flashdrive_ros.world.cameras import jittered_rig
from flashdrive_ros.world.soup import Thing

ROUTE_M = 500.0


@pytest.fixture(scope='module')
def town():
    world = World(5, 'light', route_length=ROUTE_M)
    for _ in range(30):
        world.step(0.1)
    return world


def test_same_seed_gives_the_same_images_bit_for_bit():
    images = []
    for _ in range(2):
        world = World(11, route_length=ROUTE_M)
        for _ in range(12):
            world.step(0.1)
        images.append(world.observe().images)
    assert sorted(images[0]) == [0, 1, 2, 6]
    for i in images[0]:
        assert images[0][i].shape == (180, 320, 3) and images[0][i].dtype == np.uint8
        assert np.array_equal(images[0][i], images[1][i])


def test_images_do_not_depend_on_how_one_came_there():
    looked, blind = World(11, route_length=ROUTE_M), World(11, route_length=ROUTE_M)
    for _ in range(40):
        looked.step(0.1)
        looked.observe(boxes=False)
        blind.step(0.1)
    a, b = looked.observe().images, blind.observe(boxes=False).images
    assert all(np.array_equal(a[i], b[i]) for i in a)


def test_seeds_differ():
    a, b = (World(s, 'free', route_length=ROUTE_M).observe(boxes=False).images[1]
            for s in (1, 2))
    assert np.abs(a.astype(int) - b).mean() > 5


@pytest.mark.parametrize('camera_id', [0, 1, 2, 6])
def test_projection_agrees_with_pixels(town, camera_id):
    camera = town.rig[camera_id]
    x, y, yaw = town.state.pose
    for distance in (9.0, 15.0, 30.0):
        for aside in (-0.25, 0.0, 0.2):
            angle = camera.yaw + aside * camera.horizontal_fov
            bx = camera.position[0] + distance * np.cos(angle)
            by = camera.position[1] + distance * np.sin(angle)
            c, s = np.cos(yaw), np.sin(yaw)
            # a housing of 0.36 x 0.48 x 1.2 m that hangs in front of everything else
            thing = Thing(9, 'traffic_light', x + bx * c - by * s, y + bx * s + by * c,
                          yaw + angle, z=1.0)
            _, ids = town.renderer.render(town.state.pose, [thing], ids=True)
            rows, columns = np.nonzero(ids[camera_id] == 9)
            if not len(rows):
                continue  # hidden by scenery
            (u, v), valid = camera.project(np.array([bx, by, 1.6]))
            assert valid
            size = camera.focal_px / distance
            if len(rows) > 0.9 * 0.48 * 1.2 * size ** 2:
                assert abs(columns.mean() - u) < 0.7 + 0.03 * size
                assert abs(rows.mean() - v) < 0.7 + 0.03 * size


def test_points_project_where_the_pinhole_model_says():
    camera = default_rig()[1]
    (u, v), valid = camera.project(np.array([1.85 + 10, 0.0, 1.5]))
    assert valid and abs(u - 159.5) < 1e-9 and abs(v - 89.5) < 1e-9
    (u, v), _ = camera.project(np.array([1.85 + 10, -1.0, 0.5]))
    assert np.allclose((u, v), (159.5 + camera.focal_px / 10, 89.5 + camera.focal_px / 10))
    uv, valid = camera.project(np.array([[-5.0, 0, 1.5], [1.9, 30.0, 1.5]]))
    assert np.isnan(uv[0]).all() and not valid.any()


def test_rays_and_projection_are_inverse():
    for camera in jittered_rig(default_rig(), np.random.default_rng(3)).values():
        u, v = np.array([3.0, 160, 300]), np.array([20.0, 90, 170])
        points = np.array(camera.position) + 7.5 * camera.rays(u, v)
        uv, valid = camera.project(points)
        assert valid.all() and np.allclose(uv, np.stack([u, v], 1))


def test_cameras_are_where_the_names_say():
    rig = default_rig()
    ahead, left, right = (np.array(p) for p in ((20.0, 0, 1), (0, 20.0, 1), (0, -20.0, 1)))
    assert rig[0].project(left)[1] and not rig[0].project(right)[1]
    assert rig[2].project(right)[1] and not rig[2].project(left)[1]
    assert rig[1].project(ahead)[1] and rig[6].project(ahead)[1]
    assert np.isclose(rig[6].focal_px, 160 / np.tan(np.radians(15)))


def test_lane_markings_are_drawn_where_the_map_has_them():
    """The brightest column around the projected edge line is on it."""
    world = World(21, 'free', route_length=ROUTE_M)
    shape, camera = world.route.shape, world.rig[1]
    for distance in (6.0, 9.0):
        s = world.s + 1.85 + distance
        x, y, _ = world.route.pose(s, -(shape.lane_edge - 0.05))
        px, py, yaw = world.state.pose
        c, sn = np.cos(yaw), np.sin(yaw)
        point = np.array([(x - px) * c + (y - py) * sn, -(x - px) * sn + (y - py) * c, 0.0])
        (u, v), valid = camera.project(point)
        assert valid
        image = world.renderer.render(world.state.pose)[1]
        row = image[round(float(v)), round(u) - 8:round(u) + 9].astype(int).sum(1)
        assert abs(int(row.argmax()) - 8) <= 2


def test_boxes_lie_around_visible_pixels(town):
    seen = town.observe()
    assert any(seen.boxes_2d.values())
    _, ids = town.renderer.render(town.state.pose, _things(town), ids=True)
    for camera_id, found in seen.boxes_2d.items():
        for box in found:
            rows, columns = np.nonzero(ids[camera_id] == box.id)
            assert len(rows) == box.pixels
            assert (columns.min(), columns.max() + 1) == (box.x1, box.x2)
            assert (rows.min(), rows.max() + 1) == (box.y1, box.y2)


def test_solid_boxes_enclose_their_pixels(town):
    seen = town.observe()
    solid = {box.id: box for box in seen.boxes_3d}
    checked = 0
    for camera_id, found in seen.boxes_2d.items():
        camera = town.rig[camera_id]
        for box in found:
            corners = solid[box.id].corners()
            if (camera.to_optical(corners)[:, 2] < 0.5).any():
                continue
            uv, _ = camera.project(corners)
            margin = 1.5 + 0.06 * (uv.max(0) - uv.min(0)).max()
            assert (uv.min(0) - margin <= (box.x1, box.y1)).all()
            assert (uv.max(0) + margin >= (box.x2 - 1, box.y2 - 1)).all()
            checked += 1
    assert checked >= 3


def test_a_hidden_thing_has_no_box():
    ids = np.zeros((40, 60), np.uint16)
    ids[5:20, 10:30] = 4
    ids[1, 1] = 7
    things = [Thing(4, 'suv', 0, 0, 0), Thing(7, 'car', 0, 0, 0)]
    (box,) = boxes_2d(ids, things)
    assert (box.id, box.label, box.x1, box.y1, box.x2, box.y2) == (4, 'car', 10, 5, 30, 20)
    assert boxes_2d(np.zeros((4, 4), np.uint16), things) == ()


def test_nearer_things_hide_farther_ones():
    world = World(1, 'free', route_length=ROUTE_M)
    x, y, yaw = world.state.pose

    def at(distance, id_):
        return Thing(id_, 'van', x + distance * np.cos(yaw), y + distance * np.sin(yaw), yaw)
    _, ids = world.renderer.render(world.state.pose, [at(12, 1), at(20, 2)], ids=True)
    assert (ids[6] == 1).any() and not (ids[6] == 2).any()
    _, swapped = world.renderer.render(world.state.pose, [at(20, 2), at(12, 1)], ids=True)
    assert np.array_equal(ids[6], swapped[6])


def test_brake_lamps_light_up():
    world = World(1, 'free', route_length=ROUTE_M)
    x, y, yaw = world.state.pose
    where = (x + 14 * np.cos(yaw), y + 14 * np.sin(yaw), yaw)
    off, on = (world.renderer.render(world.state.pose, [Thing(
        1, 'car', *where, paint=(120, 120, 120), lamps=frozenset(lamps))])[6].astype(int)
        for lamps in ((), (2,)))
    assert ((on - off)[..., 0] > 80).sum() > 20


def _things(world):
    from flashdrive_ros.world.stage import things_of
    return things_of(world.director, world.time)
