"""The two stages of `mr_images.py`: plain functions on NumPy arrays, which know nothing of Exoskel.

This file lies beside the script, so it travels to the workers with it.
"""

from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

Image = NDArray[numpy.float32]

# The longer side of a rendered image: a whole number of times that of the slice, and at most this long.
RENDERED_PIXELS_MAX = 512


class Slice(NamedTuple):
    """A slice of a volume, and what to do with it."""

    pixels: NDArray[Any]
    """As the scanner's file has them."""
    strength: float
    """How much noise to take out."""
    window: tuple[float, float]
    """Which percentiles become black and white."""


def denoise(job: Slice) -> tuple[Image, tuple[float, float]]:
    """Take out noise by non-local means: each pixel becomes a mean of those around it whose own surroundings look alike.

    Parameters
    ----------
    job : Slice
        The slice.

    Returns
    -------
    image : numpy.ndarray
        The slice with less noise.
    window : tuple of float
        As in the slice.
    """
    image = numpy.ascontiguousarray(job.pixels, dtype=numpy.float32)
    noise = _noise(image)
    reach = 5
    padded = numpy.pad(image, reach, mode="reflect")
    total = image.copy()
    weights = numpy.ones_like(image)
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            if down == right == 0:
                continue
            rows = slice(reach + down, reach + down + image.shape[0])
            columns = slice(reach + right, reach + right + image.shape[1])
            other = padded[rows, columns]
            unlikeness = _mean_of_neighbours((image - other) ** 2)
            weight = numpy.exp(-unlikeness / (job.strength * noise) ** 2)
            total += weight * other
            weights += weight
    return total / weights, job.window


def render(stage: tuple[Image, tuple[float, float]]) -> NDArray[numpy.uint8]:
    """Make a picture of a slice: enlarged, its window stretched, lit from the side, with lines of equal intensity.

    Parameters
    ----------
    stage : tuple
        What `denoise` returned.

    Returns
    -------
    numpy.ndarray
        Grey values.
    """
    image, (low, high) = stage
    black, white = numpy.percentile(image, (low, high))
    level = numpy.clip((image - black) / max(white - black, 1e-6), 0, 1)
    level = _enlarged(level, max(1, RENDERED_PIXELS_MAX // max(image.shape)))
    down, right = numpy.gradient(level)
    steepness = 40.0
    light = (1 + steepness * (0.6 * right - 0.5 * down)) / numpy.sqrt(
        1 + steepness**2 * (down**2 + right**2)
    )
    lines = 0.5 + 0.5 * numpy.cos(2 * numpy.pi * 8 * level)
    grey = level * (0.65 + 0.35 * numpy.clip(light, 0, 1)) + 0.06 * lines**16 * (level > 0.05)
    return numpy.asarray(numpy.rint(255 * numpy.clip(grey, 0, 1)), dtype=numpy.uint8)


def _noise(image: Image) -> float:
    """Return the spread of the noise, by the differences of neighbours (Immerkaer's mask)."""
    rows = image[:-2] - 2 * image[1:-1] + image[2:]
    mask = rows[:, :-2] - 2 * rows[:, 1:-1] + rows[:, 2:]
    return max(float(numpy.sqrt(numpy.pi / 2) / 6 * numpy.abs(mask).mean()), 1e-3)


def _mean_of_neighbours(image: Image) -> Image:
    """Return the mean over 3 x 3 pixels."""
    padded = numpy.pad(image, 1, mode="edge")
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    mean: Image = (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) / numpy.float32(9)
    return mean


def _enlarged(image: Image, factor: int) -> Image:
    """Return an image that is a whole number of times as large, by linear interpolation along each axis."""
    for axis in (0, 1):
        length = image.shape[axis]
        position = numpy.linspace(0, length - 1, length * factor, dtype=numpy.float32)
        before = numpy.minimum(position.astype(numpy.intp), length - 2)
        share = numpy.expand_dims(position - before, 1 - axis).astype(numpy.float32)
        image = (
            numpy.take(image, before, axis) * (1 - share)
            + numpy.take(image, before + 1, axis) * share
        )
    return image
