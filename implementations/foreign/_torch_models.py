"""Models, optimizers and steps shared by torch_*.py, built from PyTorch's own modules.

Parameters keep the contract's names, except that a linear layer's `kernel` (in, out) is PyTorch's
`weight` (out, in).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows
from torch.utils.checkpoint import checkpoint

MODELS, PLATFORMS = ("linear", "mlp", "gpt2"), ("cpu", "gpu")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def why_unsupported(problem: Any) -> str | None:
    """Return why no step of torch_*.py can run the problem; None if one can."""
    if other := [axis for axis, size in problem.mesh.items() if axis != "data" and size > 1]:
        return f"it shards only the batch, but this mesh also has {', '.join(other)}"
    if problem.model not in MODELS or problem.platform not in PLATFORMS:
        known = f"{', '.join(MODELS)} on CPUs and GPUs"
        return f"it runs {known}, not {problem.model} on {problem.platform}"
    if problem.compute not in DTYPES:
        return f"{problem.compute} would need loss scaling, which it does not have"
    if getattr(problem, "remat", "") not in ("", "full"):
        return f"it can recompute only whole blocks (remat=full), not remat={problem.remat}"
    if getattr(problem, "scan_layers", False):
        return "its layers are separate modules; PyTorch has no loop over stacked layers"
    return None


def device_of(problem: Any) -> torch.device:
    """Return this process's device: its own GPU, or the CPU with its share of the cores."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if problem.platform == "gpu":
        torch.set_float32_matmul_precision("high")  # TF32, which is XLA's default on GPUs too
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, widths: list[int], remat: str) -> None:
        super().__init__()
        self.remat = remat
        self.layers = nn.ModuleList(nn.Linear(wide, out) for wide, out in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            if self.remat:
                x = checkpoint(activated, layer, x, use_reentrant=False)
            else:
                x = activated(layer, x)
        return self.layers[-1](x)


def activated(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer and ReLU."""
    return F.relu(layer(x))


class Attention(nn.Module):
    """Causal multi-head attention that keeps (batch, context, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and then an MLP, each on the normalized residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2, from tokens (batch, context) to logits; the output layer shares the embedding.

    The table has `rows` rows; those beyond the vocabulary are padding and get no logits.
    """

    def __init__(self, sizes: dict[str, int], rows: int, remat: str) -> None:
        super().__init__()
        width = sizes["width"]
        self.remat = remat
        self.vocabulary = sizes["vocabulary"]
        self.tokens = nn.Embedding(rows, width)
        self.positions = nn.Embedding(sizes["context"], width)
        self.blocks = nn.ModuleList(Block(width, sizes["heads"]) for _ in range(sizes["layers"]))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[-1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.remat else block(x)
        return F.linear(self.norm(x), self.tokens.weight)[..., : self.vocabulary]


def make_model(problem: Any) -> nn.Module:
    """Build the model with the problem's parameters, in their dtype, on this process's device."""
    shapes = {name: array.shape for name, array in problem.params.items()}
    model: nn.Module
    if problem.model == "linear":
        model = nn.Linear(*shapes["kernel"])
    elif problem.model == "mlp":
        numbers = {int(name.split("/")[1]): name for name in shapes if name.endswith("kernel")}
        kernels = [shapes[name] for _, name in sorted(numbers.items())]
        model = MLP([kernels[0][0], *(outputs for _, outputs in kernels)], problem.remat)
    else:
        model = GPT2(problem.sizes, shapes["tokens/table/embedding"][0], problem.remat)
    dtype = next(iter(problem.params.values())).dtype.name
    model = model.to(device_of(problem), DTYPES[dtype])
    with torch.no_grad():
        for name, tensor in named(model, problem.params):
            value = torch.from_numpy(problem.params[name])
            kernel = name.endswith("kernel")
            tensor.copy_(value.reshape(-1, len(tensor)).T if kernel else value.view_as(tensor))
    return model


def named(model: nn.Module, names: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield a model's parameters, each with its name in the contract."""
    weights = ("kernel", "product/kernel", "scale", "embedding", "table/embedding")
    for path, module in model.named_modules():
        for word, tensor in module.named_parameters(recurse=False):
            others = weights if word == "weight" else (word,)
            paths = ["/".join(filter(None, [*path.split("."), other])) for other in others]
            yield next(name for name in paths if name in names), tensor


def params_of(model: nn.Module, names: Any) -> dict[str, np.ndarray]:
    """Return the model's parameters on the host, by the contract's names and in its shapes."""
    arrays = {}
    for name, tensor in named(model, names):
        whole = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
        array = (whole.T if name.endswith("kernel") else whole).reshape(names[name].shape)
        arrays[name] = array.contiguous().cpu().numpy()  # transposed by the device, not by NumPy
    return arrays


def make_optimizer(problem: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Build the workload's optimizer, fused if PyTorch can: one kernel updates all parameters."""
    rule = dict(problem.optimizer)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[rule.pop("name")]
    rule.pop("clip_norm", None)
    sharded = any(isinstance(tensor, DTensor) for tensor in model.parameters())
    fused = not (sharded and kind is torch.optim.SGD)  # SGD has no fused kernel for DTensors
    return kind(model.parameters(), lr=rule.pop("learning_rate"), fused=fused, **rule)


def loss_of(problem: Any, model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Compute the mean loss over a batch, with matrix products in the problem's dtype."""
    device = batch[0].device.type
    low = problem.compute == "bfloat16"
    with torch.autocast(device, torch.bfloat16) if low else contextlib.nullcontext():
        if problem.loss == "squared error":
            return F.mse_loss(model(batch[0]).to(batch[1].dtype), batch[1])
        logits = model(batch[0][:, :-1]).flatten(0, 1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(wide), batch[0][:, 1:].flatten())


class Step:
    """A train step on one device, or in one of several equal processes.

    Args:
      problem: the problem to compute.
      model: the model, whose backward pass may average gradients over processes.
      loss: `loss(problem, model, batch)`, which may be compiled.
      parts: the number of processes that share the batch, and this process's rank.
    """

    def __init__(self, problem: Any, model: nn.Module, loss: Any = loss_of,
                 parts: tuple[int, int] = (1, 0)) -> None:  # fmt: skip
        self.problem, self.model, self.loss = problem, model, loss
        self.count, self.rank = parts
        self.optimizer = make_optimizer(problem, model)
        self.device = next(model.parameters()).device

    def place(self, arrays: list[np.ndarray]) -> list[list[Tensor]]:
        """Copy this process's rows of a batch to its device, as microbatches."""
        parts = [np.split(array, self.count)[self.rank] for array in arrays]
        count = self.problem.microbatches
        wide = [torch.from_numpy(part).to(self.device) for part in parts]
        wide = [part.long() if part.dtype == torch.int32 else part for part in wide]
        return [[part[number::count].contiguous() for part in wide] for number in range(count)]

    def step(self, microbatches: list[list[Tensor]]) -> Tensor:
        """Take one step; return the loss before its update."""
        self.optimizer.zero_grad(set_to_none=True)
        total: Any = 0.0
        for number, batch in enumerate(microbatches, 1):
            with self.exchanging(number == len(microbatches)):
                loss = self.loss(self.problem, self.model, batch) / len(microbatches)
                loss.backward()
            total = total + loss.detach()
        if norm := self.problem.optimizer.get("clip_norm"):
            nn.utils.clip_grad_norm_(self.model.parameters(), norm)
        self.optimizer.step()
        return total

    def exchanging(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a backward pass; subclasses reduce gradients only in the last."""
        return contextlib.nullcontext()

    def wait(self) -> None:
        """Wait until the device is done; on CPU, calls return when their work is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def params(self) -> dict[str, np.ndarray]:
        """Return the parameters on the host."""
        return params_of(self.model, self.problem.params)
