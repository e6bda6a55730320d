"""A residual network for 32 x 32 images, with BatchNorm and dropout: a model with model state.

ResNets for CIFAR (He et al. 2016, https://arxiv.org/abs/1512.03385, section 4.2) have three stages
of equal blocks, at widths 16, 32 and 64. `base` has one block per stage (ResNet-8), `20` three
(ResNet-20). There is dropout before the classifier. BatchNorm takes its statistics over the global
batch; in resnet_local, over each shard.

The images are generated: each class has a pattern of random waves, plus noise of equal variance.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.contract import PRECISIONS, Precision, Problem
from bench.contract.layers import SampleDropout
from bench.contract.rematerialization import rematerialized

CLASSES = 10
CHANNELS = 3


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    side: int
    """Side of an image, in pixels."""
    widths: tuple[int, ...]
    """Channels of each stage; each but the first halves the side."""
    blocks: int
    """Residual blocks in a stage."""


SIZES = {
    "tiny": lambda: Config(side=8, widths=(4, 8), blocks=1),
    "base": lambda: Config(side=32, widths=(16, 32, 64), blocks=1),  # 75 thousand parameters
    "20": lambda: Config(side=32, widths=(16, 32, 64), blocks=3),  # 270 thousand parameters
}
DEFAULT_SIZE = "base"


def convolution(inputs: int, outputs: int, stride: int, options: dict[str, Any]) -> nnx.Conv:
    """Return a 3 x 3 convolution without bias, which BatchNorm would remove."""
    return nnx.Conv(inputs, outputs, (3, 3), stride, use_bias=False, **options)


class Block(nnx.Module):
    """Two convolutions and a shortcut: (batch, side, side, inputs) to (..., outputs)."""

    def __init__(self, inputs: int, outputs: int, stride: int, options: dict[str, Any]) -> None:
        self.stride = stride
        self.conv_1 = convolution(inputs, outputs, stride, options)
        self.norm_1 = nnx.BatchNorm(outputs, momentum=0.9, **options)
        self.conv_2 = convolution(outputs, outputs, 1, options)
        self.norm_2 = nnx.BatchNorm(outputs, momentum=0.9, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.relu(self.norm_1(self.conv_1(x)))
        y = self.norm_2(self.conv_2(y))
        # The shortcut has no parameters: it skips pixels, and adds channels of zeros (option A).
        short = x[:, :: self.stride, :: self.stride]
        more = y.shape[-1] - x.shape[-1]
        return nnx.relu(y + jnp.pad(short, [(0, 0)] * 3 + [(0, more)]))


class ResNet(nnx.Module):
    """Maps images (batch, side, side, channels) to logits (batch, classes)."""

    def __init__(self, config: Config, dtypes: Precision, rngs: nnx.Rngs, remat: str = "") -> None:
        options, width = dtypes.of_layer(rngs), config.widths[0]
        self.remat = remat
        self.stem = convolution(CHANNELS, width, 1, options)
        self.norm = nnx.BatchNorm(width, momentum=0.9, **options)
        self.blocks = nnx.List()
        for stage, wider in enumerate(config.widths):
            for number in range(config.blocks):
                stride = 2 if stage and not number else 1
                self.blocks.append(Block(width, wider, stride, options))
                width = wider
        self.dropout = SampleDropout(0.1, rngs)
        self.classify = nnx.Linear(width, CLASSES, **options)

    def __call__(self, images: jax.Array, numbers: jax.Array) -> jax.Array:
        """Return logits. Samples' `numbers`, int32 (batch,), choose what dropout drops."""
        call = rematerialized(Block.__call__, self.remat)
        x = nnx.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = call(block, x)
        return self.classify(self.dropout(x.mean((1, 2)), numbers))


def cross_entropy(model: Any, batch: Any) -> jax.Array:
    """Return the mean cross-entropy, in nats and in the images' dtype."""
    images, labels, numbers = batch
    logits = model(images, numbers).astype(images.dtype)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def patterns(side: int) -> np.ndarray:
    """Return a pattern of unit variance for each class, (classes, side, side, channels)."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:side, 0:side, 0:1][:2] * 2 * np.pi / side
    shape = (CLASSES, 1, 1, CHANNELS)
    down, right = rng.integers(1, 4, shape), rng.integers(1, 4, shape)
    return np.sqrt(2) * np.sin(down * y + right * x + rng.uniform(0, 2 * np.pi, shape))


def products(config: Config) -> tuple[float, float]:
    """Count a sample's multiplications in the forward pass: in the first layer, and in all layers.

    Padding counts as pixels.
    """
    width, area = config.widths[0], config.side**2
    first = total = 9.0 * area * CHANNELS * width
    for stage, wider in enumerate(config.widths):
        area //= 4 if stage else 1
        total += 9.0 * area * (width * wider + (2 * config.blocks - 1) * wider**2)
        width = wider
    return first, total + width * CLASSES


def problem(config: Config, batch_size: int, precision: str, remat: str = "") -> Problem:
    """Return a problem with images (batch, side, side, 3), labels and numbers, int32 (batch,)."""
    dtypes = PRECISIONS[precision]
    clean = patterns(config.side)

    def batch(index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng((3, index))
        labels = rng.integers(0, CLASSES, batch_size, dtype=np.int32)
        images = clean[labels] + rng.normal(size=(batch_size, *clean.shape[1:]))
        numbers = index * batch_size + np.arange(batch_size, dtype=np.int32)
        return images.astype(dtypes.params), labels, numbers

    first, total = products(config)
    return Problem(
        make_model=lambda: ResNet(config, dtypes, nnx.Rngs(0), remat),
        loss=cross_entropy,
        optimizer=optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.05, momentum=0.9)),
        batch=batch,
        batch_size=batch_size,
        # Two FLOPs per multiplication: forward, the kernel's gradient and the inputs' gradient,
        # which the first layer does not need.
        model_flops=batch_size * (6.0 * total - 2.0 * first),
        units_per_step=batch_size,
    )
