"""A variational autoencoder, 784-512-512 to a latent of width 32 and 512-784 back, with Adam.

The encoder returns a mean and a log-variance; a sample of that normal distribution is decoded, and
the negative evidence lower bound is minimized (Kingma and Welling,
https://arxiv.org/abs/1312.6114). Each image's noise is seeded by the image's number in the data, so
that it does not depend on how the batch is sharded.

The images are generated: bright strokes of random position and slope on 28 x 28 pixels.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.contract import PRECISIONS, WHOLE, ModelAxis, Precision, Problem
from bench.contract.layers import RowLinear
from bench.contract.rematerialization import rematerialized


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    side: int
    """Side of an image, in pixels."""
    width: int
    latent: int


SIZES = {
    "tiny": lambda: Config(side=6, width=16, latent=4),
    "base": lambda: Config(side=28, width=512, latent=32),  # 1.1 million parameters
}
DEFAULT_SIZE = "base"


class VAE(nnx.Module):
    """Maps images (batch, pixels) in 0 .. 1 to mean and log-variance (batch, latent), and back."""

    def __init__(
        self, config: Config, dtypes: Precision, rngs: nnx.Rngs,
        axis: ModelAxis = WHOLE, remat: str = "",
    ) -> None:  # fmt: skip
        common = dtypes.of_layer(rngs)
        divided: Any = {"dtypes": dtypes, "rngs": rngs, "axis": axis}
        pixels, width = config.side**2, axis.part(config.width)
        self.remat = remat
        self.encode_1 = nnx.Linear(pixels, width, **common)
        self.encode_2 = RowLinear((width,), config.width, **divided)
        self.mean = nnx.Linear(config.width, config.latent, **common)
        self.log_variance = nnx.Linear(config.width, config.latent, **common)
        self.decode_1 = nnx.Linear(config.latent, width, **common)
        self.decode_2 = RowLinear((width,), pixels, **divided)

    def encode(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return mean and log-variance of the latent distribution, (batch, latent) each."""
        x = nnx.relu(self.encode_2(nnx.relu(self.encode_1(images))))
        return self.mean(x), self.log_variance(x)

    def decode(self, latent: jax.Array) -> jax.Array:
        """Return the logits of the pixels."""
        return self.decode_2(nnx.relu(self.decode_1(latent)))

    def __call__(self, images: jax.Array, noise: jax.Array) -> tuple[jax.Array, ...]:
        """Return mean, log-variance and the logits of the sample that `noise` selects."""
        encode = rematerialized(VAE.encode, self.remat)
        decode = rematerialized(VAE.decode, self.remat)
        mean, log_variance = encode(self, images)
        return mean, log_variance, decode(self, mean + jnp.exp(log_variance / 2) * noise)


AXIS_NAMES = {
    "encode_1/kernel": ("embed", "mlp"),
    "encode_1/bias": ("mlp",),
    "encode_2/product/kernel": ("mlp", "embed"),
    "decode_1/kernel": (None, "mlp"),
    "decode_1/bias": ("mlp",),
    "decode_2/product/kernel": ("mlp", "embed"),
}


def noise_of(numbers: jax.Array, latent: int) -> jax.Array:
    """Return standard normal noise (batch, latent), seeded by the images' numbers (batch,).

    It is float32 at every precision, so that a proof in float64 sees the same noise.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), numbers)
    return jax.vmap(lambda key: jax.random.normal(key, (latent,), jnp.float32))(keys)


def negative_elbo(model: Any, batch: Any) -> jax.Array:
    """Return the mean over images of reconstruction error plus divergence, in nats."""
    images, numbers = batch
    noise = noise_of(numbers, model.mean.out_features).astype(images.dtype)
    mean, log_variance, logits = (x.astype(images.dtype) for x in model(images, noise))
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, images).sum(-1)
    divergence = 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1)
    return jnp.mean(reconstruction + divergence)


def strokes(rng: np.random.Generator, count: int, side: int) -> np.ndarray:
    """Return images (count, side * side) in 0 .. 1, each a bright line with soft edges."""
    middle = rng.uniform(0.3, 0.7, (count, 2, 1, 1))
    slope, width = rng.uniform(0, np.pi, (count, 1, 1)), rng.uniform(0.05, 0.12, (count, 1, 1))
    y, x = np.mgrid[0:side, 0:side] / (side - 1)
    across = (x - middle[:, 0]) * np.sin(slope) - (y - middle[:, 1]) * np.cos(slope)
    along = (x - middle[:, 0]) * np.cos(slope) + (y - middle[:, 1]) * np.sin(slope)
    bright = np.exp(-((across / width) ** 2)) * (np.abs(along) < 0.4)  # noqa: PLR2004
    return bright.reshape(count, side * side)


def problem(config: Config, batch_size: int, precision: str, remat: str = "") -> Problem:
    """Return a problem with images (batch, pixels) and their numbers, int32 (batch,)."""
    dtypes = PRECISIONS[precision]
    pixels = config.side**2

    def batch(index: int) -> tuple[np.ndarray, np.ndarray]:
        images = strokes(np.random.default_rng((2, index)), batch_size, config.side)
        numbers = index * batch_size + np.arange(batch_size, dtype=np.int32)
        return images.astype(dtypes.params), numbers

    inputs = pixels * config.width
    others = config.width**2 + 3 * config.width * config.latent + pixels * config.width
    return Problem(
        make_model=lambda: VAE(config, dtypes, nnx.Rngs(0), remat=remat),
        make_part=lambda axis: VAE(config, dtypes, nnx.Rngs(0), axis=axis, remat=remat),
        axis_names=AXIS_NAMES,
        loss=negative_elbo,
        optimizer=optax.adam(1e-3),
        batch=batch,
        batch_size=batch_size,
        # Three products of 2mnk FLOPs per layer: forward, the kernel's gradient and the inputs'
        # gradient, which the first layer does not need.
        model_flops=batch_size * (6.0 * (inputs + others) - 2.0 * inputs),
        units_per_step=batch_size,
    )
