"""The dense lesson: truth by patch against a count by hand, and heads that can learn it."""
import numpy as np
import pytest

torch = pytest.importorskip('torch')

from flashdrive_ros.training import seeing  # noqa: E402
from flashdrive_ros.world import World  # noqa: E402
from flashdrive_ros.world.boxes import label_of  # noqa: E402
from flashdrive_ros.world.stage import things_of  # noqa: E402


@pytest.fixture(scope='module')
def scene():
    world = World(3, 'follow')
    for _ in range(20):
        world.step(0.1)
    before = things_of(world.director, world.time)
    world.step(0.1)
    things = things_of(world.director, world.time)
    _, ids = world.renderer.render(world.state.pose, things, ids=True)
    return world, ids, things, before


def test_patches_say_what_their_pixels_show(scene):
    world, ids, things, before = scene
    grid = 10, 16  # 18 x 20 pixels a patch
    truth = seeing.seen_in(ids, (0, 1, 2, 6), grid, world.state.pose, things, before)
    labels = {thing.id: label_of(thing) for thing in things}
    seen = 0
    for view, camera in enumerate((0, 1, 2, 6)):
        for row in range(10):
            for column in range(16):
                marks = ids[camera][18 * row:18 * row + 18, 20 * column:20 * column + 20].ravel()
                share = np.mean([labels.get(m) == 'car' for m in marks.tolist()])
                wanted = 255 * min(seeing.PRESENT * share, 1)
                assert truth[view, row, column, 0] == pytest.approx(wanted, abs=1)
                seen += share > 0.1
    assert seen > 3


def test_distance_and_speed_are_those_of_the_thing(scene):
    world, ids, things, before = scene
    speeds = world.director.speeds()
    moving = [t for t in things if label_of(t) == 'car' and speeds.get(t.id, 0) > 1]
    car = max(moving, key=lambda t: (ids[1] == t.id).sum())
    only = {camera: np.where(marks == car.id, marks, 0) for camera, marks in ids.items()}
    truth = seeing.seen_in(only, (1,), (10, 16), world.state.pose, things, before)[0]
    row, column = np.unravel_index(truth[..., 0].argmax(), truth.shape[:2])
    x, y, yaw = world.state.pose
    distance = np.hypot(car.x - x, car.y - y)
    speed = speeds[car.id] * np.cos(car.yaw - yaw)
    assert truth[row, column, -2] / 255 == pytest.approx(
        float(seeing.code_of_distance(distance)), abs=0.01)
    assert truth[row, column, -1] / 255 == pytest.approx(
        float(seeing.code_of_speed(speed)), abs=0.02)


def test_heads_learn_a_scene_token_by_token(scene):
    world, ids, things, before = scene
    truth = torch.from_numpy(seeing.seen_in(ids, (0, 1, 2, 6), (10, 16), world.state.pose, things,
                                            before))[None]
    torch.manual_seed(0)
    tokens = torch.randn(1, 4, 40, 256)  # 5 x 8 tokens, each its own pattern
    heads = seeing.Seeing(256, 2)
    optimiser = torch.optim.Adam(heads.parameters(), 0.01)
    first = last = None
    for _ in range(60):
        losses = heads(tokens, tokens, truth)
        last = sum(losses.values())
        first = first or float(last.detach())
        optimiser.zero_grad()
        last.backward()
        optimiser.step()
    assert float(last.detach()) < 0.25 * first
    said = heads.of_vision(tokens)[..., :heads.side ** 2 * seeing.CHANNELS].sigmoid().detach()
    said = said.view(4, 5, 8, 2, 2, seeing.CHANNELS).transpose(2, 3).reshape(4, 10, 16, -1)
    wanted = truth[0, ..., 0].float() / 255
    assert (said[..., 0] - wanted).abs().max() < 0.3, 'patches of a token lie where they were'


def test_nothing_in_sight_is_a_lesson_too():
    heads = seeing.Seeing(16, 2)
    truth = torch.zeros(1, 4, 4, 4, seeing.CHANNELS, dtype=torch.uint8)
    losses = heads(torch.zeros(1, 4, 4, 16), torch.zeros(1, 4, 4, 16), truth)
    assert all(torch.isfinite(v) and v > 0 for v in losses.values())
