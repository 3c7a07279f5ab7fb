"""What imagenet.py trains on: which images in which order, how they are augmented, and the libraries that may read
them."""

import io
import os
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "training_examples"
sys.path.insert(0, str(EXAMPLES))

from imagenet_training.batches import Batch, ToDevice, Waiting  # noqa: E402
from imagenet_training.dali_source import DaliSource  # noqa: E402
from imagenet_training.folder_source import FolderSource, Images, StepKeys, loader_of  # noqa: E402
from imagenet_training.images import MEAN, STANDARD_DEVIATION, Damaged, decode, normalize  # noqa: E402
from imagenet_training.pictures import write_pictures  # noqa: E402
from imagenet_training.processes import Processes  # noqa: E402
from imagenet_training.recipe import Recipe  # noqa: E402
from imagenet_training.shard_source import ShardSource  # noqa: E402
from imagenet_training.synthetic_source import SyntheticSource  # noqa: E402

pytestmark = pytest.mark.cpu_only("what is read here has nothing to do with GPUs")

CPU = torch.device("cpu")
ALONE = Processes(0, 1, CPU)
CLASSES, IMAGES = 3, 30
RECIPE = Recipe(batch_size=8, train_size=24, resize=28, eval_size=24, seed=5)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    write_pictures(folder, CLASSES, {"train": IMAGES // CLASSES, "val": 5})
    return folder


def keys(recipe, processes=ALONE, first=0, end=6, images=IMAGES):
    return list(StepKeys(images, recipe, processes, first, end))


def test_every_image_once_in_an_epoch_in_an_order_of_its_own():
    epochs = [keys(RECIPE, first=3 * epoch, end=3 * epoch + 3) for epoch in (0, 1)]
    for number, epoch in enumerate(epochs):
        assert {key[0] for batch in epoch for key in batch} == {number}
        assert len({key[1] for batch in epoch for key in batch}) == 24
    orders = [[key[1] for batch in epoch for key in batch] for epoch in epochs]
    assert orders[0] != orders[1]
    assert keys(replace(RECIPE, seed=6)) != keys(RECIPE)


def test_steps_are_the_same_wherever_a_run_begins():
    assert keys(RECIPE)[4:] == keys(RECIPE, first=4)


@pytest.mark.parametrize(("count", "accumulate"), [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_processes_and_parts_share_a_step(count, accumulate):
    recipe = replace(RECIPE, accumulate=accumulate)
    shares = [keys(recipe, Processes(rank, count, CPU)) for rank in range(count)]
    for step, whole in enumerate(keys(RECIPE)):
        parts = [share[step * accumulate + part] for share in shares for part in range(accumulate)]
        assert all(len(part) == 8 // count // accumulate for part in parts)
        assert sorted(key for part in parts for key in part) == sorted(whole)


REPEATED = replace(RECIPE, repeats=4)


@pytest.mark.parametrize(("size", "repeats"), [(8, 4), (8, 3), (8, 16), (6, 2)])
def test_repeated_images_are_those_of_torchvisions_sampler(size, repeats):
    """Whose processes have every so manieth time of each image, one time behind the other."""
    recipe, count = replace(RECIPE, batch_size=size, repeats=repeats), 2
    steps = IMAGES // size
    once = keys(replace(recipe, repeats=1, batch_size=IMAGES), end=2)
    for epoch, order in enumerate(once):
        expected = [(epoch, index, copy) for _, index, _ in order for copy in range(repeats)]
        shares = [expected[rank::count] for rank in range(count)]
        for step, found in enumerate(keys(recipe, first=epoch * steps, end=(epoch + 1) * steps)):
            of_all = [key for share in shares for key in share[step * size // count : (step + 1) * size // count]]
            assert sorted(found) == sorted(of_all)


def test_repeated_images_go_on_anywhere():
    assert keys(REPEATED)[4:] == keys(REPEATED, first=4)
    assert keys(REPEATED) == keys(REPEATED)
    epochs = [keys(REPEATED, first=3 * epoch, end=3 * epoch + 3) for epoch in (0, 1)]
    assert all(len({key[1] for batch in epoch for key in batch}) == 24 // 4 for epoch in epochs)
    assert len({key for epoch in epochs for batch in epoch for key in batch}) == 2 * 24


@pytest.mark.parametrize(("count", "accumulate"), [(4, 1), (2, 2), (1, 4)])
def test_a_process_has_no_image_twice_in_a_part(count, accumulate):
    recipe = replace(REPEATED, accumulate=accumulate)
    shares = [keys(recipe, Processes(rank, count, CPU)) for rank in range(count)]
    for step, whole in enumerate(keys(REPEATED)):
        parts = [share[step * accumulate + part] for share in shares for part in range(accumulate)]
        assert sorted(key for part in parts for key in part) == sorted(whole)
        assert all(len({key[1] for key in part}) == len(part) for part in parts)
    for batch in keys(REPEATED):
        assert all(one[1] != other[1] for one, other in zip(batch, batch[1:] + batch[:1], strict=True)), "mixup's pairs"


def test_each_time_is_augmented_in_another_way(pictures):
    source = FolderSource(pictures, REPEATED, ALONE, workers=0)
    images = Images(source.train, REPEATED, training=True)
    times = [images[0, 7, copy] for copy in range(4)]
    assert {label for _, label in times} == {source.train.labels[7]}
    assert not any(torch.equal(one[0], other[0]) for i, one in enumerate(times) for other in times[:i])
    assert torch.equal(images[0, 7, 2][0], times[2][0])
    plain = Images(source.train, RECIPE, training=True)
    assert torch.equal(plain[0, 7, 0][0], times[0][0])


def test_augmentation_follows_seed_epoch_and_image_alone(pictures):
    source = FolderSource(pictures, RECIPE, ALONE, workers=0)
    images = Images(source.train, RECIPE, training=True)
    before = torch.get_rng_state()
    first, label = images[0, 7, 0]
    assert torch.equal(torch.get_rng_state(), before), "the process's random numbers go on"
    torch.manual_seed(3)
    assert torch.equal(images[0, 7, 0][0], first)
    assert label == source.train.labels[7]
    others = (images[1, 7, 0], images[0, 8, 0], Images(source.train, replace(RECIPE, seed=6), training=True)[0, 7, 0])
    assert not any(torch.equal(image, first) for image, _ in others)
    assert first.shape == (3, 24, 24)
    assert first.dtype == torch.uint8


def test_batches_are_the_same_from_workers(pictures):
    alone, workers = (list(FolderSource(pictures, RECIPE, ALONE, n).train_batches(1, 4)) for n in (0, 2))
    assert len(alone) == 3
    for batch, other in zip(alone, workers, strict=True):
        assert torch.equal(batch.images, other.images)
        assert torch.equal(batch.labels, other.labels)


class ProcessGroups:
    """In place of images: the group of the process that loads."""

    def __getitem__(self, key):
        return os.getpgrp()


def test_workers_get_no_signals_of_the_training():
    """Of Ctrl-C or torchrun, which go to the whole group of processes."""
    alone, worker = (list(loader_of(ProcessGroups(), [[(0, 0, 0)]], workers, list, pinned=False)) for workers in (0, 1))
    assert alone == [[os.getpgrp()]]
    assert worker != alone


@pytest.mark.parametrize("auto_augment", ["none", "rand"])
def test_device_augments_as_workers_do(pictures, auto_augment):
    recipe = replace(RECIPE, auto_augment=auto_augment, random_erase=0.5)
    batches = []
    for place in ("workers", "device"):
        recipe = replace(recipe, augment=place)
        source = FolderSource(pictures, recipe, ALONE, workers=0)
        batches.append(list(ToDevice(recipe, CPU)(source.train_batches(0, 2), training=True)))
    torch.testing.assert_close(batches[0], batches[1], rtol=0, atol=0)


def test_evaluation_sees_each_image_once(pictures):
    labels = []
    for rank in range(2):
        source = FolderSource(pictures, RECIPE, Processes(rank, 2, CPU), workers=0)
        batches = list(source.eval_batches(3))
        assert [len(batch.labels) for batch in batches] == ([3, 3, 2] if rank == 0 else [3, 3, 1])
        labels += [label for batch in batches for label in batch.labels.tolist()]
    assert sorted(labels) == [0] * 5 + [1] * 5 + [2] * 5


def test_normalized_images():
    pixels = torch.randint(256, (2, 3, 4, 5), dtype=torch.uint8)
    found = normalize(pixels, torch.float32, torch.channels_last)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for channel in range(3):
        expected = (pixels[:, channel].double() / 255 - MEAN[channel]) / STANDARD_DEVIATION[channel]
        torch.testing.assert_close(found[:, channel].double(), expected, rtol=1e-5, atol=1e-6)


def test_formats():
    """JPEG and PNG by torchvision, others by PIL; grey, with a palette, of four channels: always three of bytes."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (9, 7), dtype=np.uint8)
    for kind in ("png", "bmp", "webp", "ppm", "tiff"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).convert("RGB").save(buffer, kind, **({"lossless": True} if kind == "webp" else {}))
        found = decode(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))
        assert torch.equal(found, torch.from_numpy(pixels).expand(3, -1, -1)), kind
    for mode in ("L", "P", "RGBA", "I;16"):
        buffer = io.BytesIO()
        image = (
            Image.fromarray(pixels.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(pixels).convert(mode)
        )
        image.save(buffer, "png")
        found = decode(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))
        assert torch.equal(found, torch.from_numpy(pixels).expand(3, -1, -1)), mode


def test_waiting_is_measured():
    def slow():
        for _ in range(5):
            time.sleep(0.03)
            yield 0

    waiting = Waiting(CPU)
    for count, _ in enumerate(waiting.timed(slow())):
        if count == 0:
            waiting.restart()
        time.sleep(0.01)
    share, seconds = waiting.share()
    assert 0.5 < share < 0.95
    assert seconds > 0.16


def test_synthetic_images_are_on_the_device():
    source = SyntheticSource(replace(RECIPE, accumulate=2), ALONE, steps=3)
    batches = list(source.train_batches(1, 3))
    assert source.train_images == 24
    assert [batch.images.shape for batch in batches] == [(4, 3, 24, 24)] * 4
    assert not list(source.eval_batches(8))


@pytest.fixture(scope="module")
def shards(pictures, tmp_path_factory):
    """The same pictures in tar files: three for training, three for validation."""
    folder = tmp_path_factory.mktemp("shards")
    for part in ("train", "val"):
        (folder / part).mkdir()
        paths = sorted((pictures / part).rglob("*.*"))
        labels = sorted({path.parent.name for path in paths})
        for number in range(3):
            with tarfile.open(folder / part / f"{number:06}.tar", "w") as tar:
                for path in paths[number::3]:
                    key = f"{path.parent.name}-{path.stem}"
                    label = str(labels.index(path.parent.name)).encode()
                    for name, content in ((f"{key}{path.suffix}", path.read_bytes()), (f"{key}.cls", label)):
                        member = tarfile.TarInfo(name)
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
    return folder


def shard_source(shards, recipe=RECIPE, processes=ALONE, workers=0):
    pytest.importorskip("webdataset")
    return ShardSource(shards, recipe, processes, workers, CLASSES, IMAGES)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_shards_go_on_anywhere(shards, workers, accumulate):
    recipe = replace(RECIPE, accumulate=accumulate)
    whole = list(shard_source(shards, recipe, workers=workers).train_batches(0, 6))
    assert len(whole) == 6 * accumulate
    assert all(batch.images.shape == (8 // accumulate, 3, 24, 24) for batch in whole)
    for first in (1, 2, 4):
        rest = list(shard_source(shards, recipe, workers=workers).train_batches(first, 6))
        for batch, other in zip(whole[first * accumulate :], rest, strict=True):
            assert torch.equal(batch.images, other.images)
            assert torch.equal(batch.labels, other.labels)


@pytest.mark.parametrize(("count", "workers"), [(1, 0), (1, 2), (2, 0), (3, 2)])
def test_shards_are_evaluated_once(shards, count, workers):
    labels = []
    for rank in range(count):
        source = shard_source(shards, processes=Processes(rank, count, CPU), workers=workers)
        labels += [label for batch in source.eval_batches(4) for label in batch.labels.tolist()]
    assert sorted(labels) == [0] * 5 + [1] * 5 + [2] * 5


def test_shards_that_are_damaged(shards, tmp_path):
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        for path in (shards / part).iterdir():
            (tmp_path / part / path.name).write_bytes(path.read_bytes())
    with tarfile.open(tmp_path / "val" / "000001.tar", "w") as tar:
        for name in ("a.jpg", "a.cls"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"0   "))
    first = [batch for batch in shard_source(tmp_path).eval_batches(8) if isinstance(batch, Damaged)]
    assert "000001.tar: a" in first[0].name
    skipping = shard_source(tmp_path, replace(RECIPE, skip_damaged=True)).eval_batches(8)
    assert sum(len(batch.labels) for batch in skipping) == 10
    (tmp_path / "train" / "000000.tar").write_bytes(b"no tar file, but as long as a block of one" * 20)
    batches = shard_source(tmp_path).train_batches(0, 3)
    assert any(isinstance(batch, Damaged) and "000000.tar" in batch.name for batch in batches)


def test_dali_reads_the_same(pictures):
    """The same images in the same order, cut and mirrored alike; its filter rounds differently."""
    pytest.importorskip("nvidia.dali")
    ours, dali = (kind(pictures, RECIPE, ALONE, 0) for kind in (FolderSource, DaliSource))
    for expected, found in (
        (list(ours.train_batches(1, 4)), list(dali.train_batches(1, 4))),
        (list(ours.eval_batches(8)), list(dali.eval_batches(8))),
    ):
        for batch, other in zip(expected, found, strict=True):
            assert isinstance(other, Batch)
            assert torch.equal(batch.labels, other.labels)
            assert (batch.images.float() - other.images.float()).abs().mean() < 2


def test_dali_names_damaged_files(pictures, tmp_path):
    pytest.importorskip("nvidia.dali")
    write_pictures(tmp_path, 2, {"train": 4, "val": 2})
    path = sorted(tmp_path.glob("train/*/*.jpg"))[0]
    path.write_bytes(b"nothing")
    batches = DaliSource(tmp_path, RECIPE, ALONE, 0).train_batches(0, 1)
    assert [str(path)] == [batch.name for batch in batches]
