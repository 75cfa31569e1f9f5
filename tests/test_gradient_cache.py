"""`large_batch` has the embeddings, the loss and the gradients of ordinary encoding, with the memory of a micro-batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from contrapose import Loss, cosine, cross, large_batch, learned, nt_xent, two_views

SAMPLES, WIDTH = 11, 6


def network(*, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    torch.manual_seed(2)
    norms = [nn.BatchNorm1d(9)] if norm else []
    return nn.Sequential(nn.Linear(WIDTH, 9), *norms, nn.Tanh(), nn.Dropout(dropout), nn.Linear(9, 4)).double()


def two_inputs(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, samples, WIDTH, dtype=torch.float64, generator=generator)
    return x[0], x[1]


def dystress(z1: Tensor, z2: Tensor) -> Tensor:
    return nt_xent(two_views(z1, z2), temperature=cosine(0.1, 0.3))


def in_micro_batches(encoder: nn.Module, *inputs: Tensor, size: int) -> list[Tensor]:
    """Encode the same micro-batches in the same order, keeping all graphs."""
    return [torch.cat([encoder(part) for part in x.split(size)]) for x in inputs]


def assert_same_gradients(ours: nn.Module, expected: nn.Module, atol: float = 1e-12) -> None:
    for (name, p), q in zip(ours.named_parameters(), expected.parameters(), strict=True):
        assert p.grad is not None, name
        assert q.grad is not None, name
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=atol)
        assert float(p.grad.abs().max()) > 0, name


@pytest.mark.parametrize("size", [1, 4, SAMPLES, 100])
def test_it_equals_the_full_batch(size: int) -> None:
    encoder, reference = network(), network()
    loss = dystress(*large_batch(encoder, *two_inputs(), micro_batch=size))
    expected = dystress(*(reference(x) for x in two_inputs()))
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    loss.backward()
    expected.backward()
    assert_same_gradients(encoder, reference)


def test_dropout_and_batch_norm_equal_those_of_the_same_micro_batches() -> None:
    """The second pass repeats the random numbers of the first; afterwards the random state is as after one pass."""
    encoder, reference = network(dropout=0.4, norm=True), network(dropout=0.4, norm=True)
    torch.manual_seed(7)
    loss = dystress(*large_batch(encoder, *two_inputs(), micro_batch=4))
    before = torch.rand(3)
    loss.backward()
    after = torch.rand(3)
    torch.manual_seed(7)
    expected = dystress(*in_micro_batches(reference, *two_inputs(), size=4))
    assert torch.equal(before, torch.rand(3))
    expected.backward()
    assert torch.equal(after, torch.rand(3))
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    assert_same_gradients(encoder, reference)
    for ours, theirs in zip(encoder.buffers(), reference.buffers(), strict=True):
        assert torch.equal(ours, theirs)  # each micro-batch counts once
    assert int(dict(encoder.named_buffers())["1.num_batches_tracked"]) == 6


def test_one_input_returns_a_tensor_and_one_without_gradient_needs_no_second_pass() -> None:
    encoder, (x, _) = network(), two_inputs()
    torch.testing.assert_close(large_batch(encoder, x, micro_batch=3), encoder(x))
    with torch.no_grad():
        z = large_batch(encoder, x, micro_batch=3)
    assert not z.requires_grad
    torch.testing.assert_close(z, encoder(x))


class Tower(nn.Module):
    """Takes a dictionary with a mask, as text encoders do, and a setting that is not split."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(20, 5), nn.Linear(5, 4)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        mask = batch["mask"].unsqueeze(-1).to(self.linear.weight.dtype)
        pooled = (self.embedding(batch["tokens"]) * mask).sum(1) / mask.sum(1)
        z: Tensor = self.linear(pooled) * batch["scale"]
        return z


def test_two_towers_with_dictionaries() -> None:
    image, text, (x, _) = network(dropout=0.2), Tower().double(), two_inputs()
    mask = torch.arange(7) < torch.randint(1, 8, (SAMPLES, 1))
    tokens = {"tokens": torch.randint(20, (SAMPLES, 7)), "mask": mask, "scale": 2.0}
    references = copy.deepcopy([image, text])
    torch.manual_seed(7)
    z1, z2 = large_batch([image, text], x, tokens, micro_batch=4)
    nt_xent(cross(z1, z2), temperature=0.2).backward()
    torch.manual_seed(7)
    (y1,) = in_micro_batches(references[0], x, size=4)
    nt_xent(cross(y1, references[1](tokens)), temperature=0.2).backward()
    assert_same_gradients(image, references[0])
    assert_same_gradients(text, references[1])


def test_inputs_of_different_lengths_and_tuples() -> None:
    """There may be more documents than queries; `forward` says how a tuple is used."""
    encoder, (x, y) = network(), two_inputs()
    add = lambda module, pair: module(pair[0] + pair[1])  # noqa: E731
    z, longer = large_batch(encoder, (x, y), (x.repeat(3, 1), y.repeat(3, 1)), micro_batch=4, forward=add)
    torch.testing.assert_close(z, encoder(x + y))
    torch.testing.assert_close(longer, encoder(x + y).repeat(3, 1))


def test_a_frozen_tower_gets_no_second_pass() -> None:
    """As when texts are aligned with a fixed image encoder."""
    frozen, encoder, (x1, x2) = network().requires_grad_(False), network(), two_inputs()
    calls: list[int] = []
    frozen.register_forward_hook(lambda *_: calls.append(1))
    z1, z2 = large_batch([frozen, encoder], x1, x2, micro_batch=4)
    assert (z1.requires_grad, z2.requires_grad) == (False, True)
    dystress(z1, z2).backward()
    assert len(calls) == 3
    reference = network()
    dystress(frozen(x1), reference(x2)).backward()
    assert_same_gradients(encoder, reference)


def test_an_embedding_that_the_loss_does_not_use() -> None:
    encoder, reference, (x1, x2) = network(dropout=0.3), network(dropout=0.3), two_inputs()
    torch.manual_seed(7)
    _, z2 = large_batch(encoder, x1, x2, micro_batch=4)
    z2.square().sum().backward()
    torch.manual_seed(7)
    _, y2 = in_micro_batches(reference, x1, x2, size=4)
    y2.square().sum().backward()
    assert_same_gradients(encoder, reference)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_learned_temperature_and_a_scaled_loss(scale: float) -> None:
    """What the loss learns gets its gradient once; a scaled loss scales all gradients."""
    encoder, reference = network(), network()
    criterion = Loss(nt_xent, temperature=learned(0.1)).double()
    expected = copy.deepcopy(criterion)
    optimiser = torch.optim.SGD([*encoder.parameters(), *criterion.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    loss = criterion(*large_batch(encoder, *two_inputs(), micro_batch=4))
    scaler.scale(loss).backward()
    expected(*(reference(x) for x in two_inputs())).backward()
    gradient, wanted = (next(c.parameters()).grad for c in (criterion, expected))
    assert gradient is not None
    assert wanted is not None
    torch.testing.assert_close(gradient, scale * wanted, rtol=1e-10, atol=0)
    scaler.unscale_(optimiser)
    assert_same_gradients(encoder, reference)


def test_gradients_accumulate_over_calls() -> None:
    encoder, reference = network(), network()
    (x1, x2), (y1, y2) = two_inputs(), two_inputs(2 * SAMPLES)
    for inputs in ((x1, x2), (y1, y2)):
        (dystress(*large_batch(encoder, *inputs, micro_batch=4)) / 2).backward()
        (dystress(*(reference(x) for x in inputs)) / 2).backward()
    assert_same_gradients(encoder, reference)


def test_two_losses_of_one_batch_in_one_or_two_backward_passes() -> None:
    encoder, reference = network(), network()
    z1, z2 = large_batch(encoder, *two_inputs(), micro_batch=4)
    z1.square().sum().backward(retain_graph=True)
    dystress(z1, z2).backward()
    y1, y2 = (reference(x) for x in two_inputs())
    (y1.square().sum() + dystress(y1, y2)).backward()
    assert_same_gradients(encoder, reference)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("inside", [True, False])
def test_autocast_is_that_of_the_first_pass(inside: bool) -> None:
    """Also if the backward pass is outside the block. The first pass has no graph, and must not leave its cast weights behind."""
    encoder, reference = network(dropout=0.2).float(), network(dropout=0.2).float()
    x1, x2 = (x.float() for x in two_inputs())
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16):
        z1, z2 = large_batch(encoder, x1, x2, micro_batch=4)
        if inside:
            dystress(z1, z2).backward()
            assert encoder(x1).requires_grad
    if not inside:
        dystress(z1, z2).backward()
    torch.manual_seed(7)
    y1, y2 = (torch.cat([in_low_precision(reference, part) for part in x.split(4)]) for x in (x1, x2))
    assert y1.dtype == z1.dtype == torch.bfloat16
    assert torch.equal(z1, y1)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        dystress(y1, y2).backward()
    assert_same_gradients(encoder, reference, atol=1e-6)


def in_low_precision(encoder: nn.Module, x: Tensor) -> Tensor:
    """Encode in a block of its own, so that gradients of several calls are added in float32: weights are cast in each."""
    with torch.autocast("cpu", torch.bfloat16):
        z: Tensor = encoder(x)
    return z


class SavedElements:
    """Counts the elements that autograd keeps for the backward pass, and their maximum."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(lambda tensor: _Saved(self, tensor), lambda saved: saved.tensor)


class _Saved:
    def __init__(self, count: SavedElements, tensor: Tensor) -> None:
        self.count, self.tensor = count, tensor
        count.now += tensor.numel()
        count.peak = max(count.peak, count.now)

    def __del__(self) -> None:
        self.count.now -= self.tensor.numel()


def test_memory_is_that_of_a_micro_batch() -> None:
    def peak(samples: int, encode: Callable[[nn.Module, Tensor], Tensor]) -> int:
        encoder, saved = network(dropout=0.2), SavedElements()
        with saved.hooks():
            encode(encoder, two_inputs(samples)[0]).sum().backward()
        return saved.peak

    def cached(encoder: nn.Module, x: Tensor) -> Tensor:
        return large_batch(encoder, x, micro_batch=8)

    assert peak(8, cached) == peak(64, cached) == peak(8, lambda encoder, x: encoder(x))
    assert peak(64, lambda encoder, x: encoder(x)) > 4 * peak(64, cached)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("low_precision", [False, True])
def test_a_gpu_repeats_its_random_numbers_and_its_precision(low_precision: bool) -> None:
    encoder, reference = (network(dropout=0.3).float().cuda() for _ in range(2))
    x1, x2 = (x.float().cuda() for x in two_inputs())
    autocast = partial(torch.autocast, "cuda", torch.bfloat16, enabled=low_precision)
    torch.manual_seed(7)
    with autocast():
        z1, z2 = large_batch(encoder, x1, x2, micro_batch=4)
    dystress(z1, z2).backward()
    after = torch.rand(3, device="cuda")
    torch.manual_seed(7)
    parts = []
    for part in (*x1.split(4), *x2.split(4)):
        with autocast():
            parts.append(reference(part))
    dystress(torch.cat(parts[:3]), torch.cat(parts[3:])).backward()
    assert torch.equal(after, torch.rand(3, device="cuda"))
    assert_same_gradients(encoder, reference, atol=1e-5)


def test_a_transformer_with_dropout() -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).double()
    reference = copy.deepcopy(model)
    batch = {"input_ids": torch.randint(50, (10, 6)), "attention_mask": torch.ones(10, 6, dtype=torch.long)}

    def first_token(bert: nn.Module, part: dict[str, Tensor]) -> Tensor:
        states: Tensor = bert(**part).last_hidden_state
        return states[:, 0]

    torch.manual_seed(7)  # SimCSE: the same sentences twice, with different dropout
    dystress(*large_batch(model, batch, batch, micro_batch=4, forward=first_token)).backward()
    torch.manual_seed(7)
    parts = [{name: x[start : start + 4] for name, x in batch.items()} for start in range(0, 10, 4)]
    dystress(*(torch.cat([first_token(reference, part) for part in parts]) for _ in range(2))).backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert p.grad is not None, name
        assert q.grad is not None, name
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-12)


def as_dictionary(net: nn.Module, x: Tensor) -> Any:
    return {"sentence_embedding": net(x)}


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (lambda net, x: large_batch(net, x, micro_batch=0), "micro_batch: expected a whole number of at least 1, got 0"),
        (lambda net, x: large_batch(net, x, micro_batch=True), "micro_batch: expected a whole number"),
        (lambda net, x: large_batch(net, *[], micro_batch=4), "inputs: expected at least one batch"),
        (lambda net, x: large_batch(net.forward, x, micro_batch=4), "encoder: expected a module, .*got method"),
        (lambda net, x: large_batch([net], x, x, micro_batch=4), "encoder: expected one for each of the 2 inputs, got 1"),
        (lambda net, x: large_batch(net, (x, x[1:]), micro_batch=4), "input 1: .*one row per sample, got 11, 10 rows"),
        (lambda net, x: large_batch(net, x, x[:0], micro_batch=4), "input 2: .*got 0 rows"),
        (lambda net, x: large_batch(net, {"x": x, "text": ["a"] * 11}, micro_batch=4), r"input 1\['text'\]: .*got str"),
        (lambda net, x: large_batch(net, {"scale": 1.0}, micro_batch=4), "input 1: expected a tensor, .* got none"),
        (lambda net, x: large_batch(net, x.sum(), micro_batch=4), "input 1: .*got a tensor without dimensions"),
        (lambda net, x: large_batch(net, x, micro_batch=4, forward=lambda n, b: n(b).mean(0)),
         r"encoder: expected embeddings of shape \(4, d\), .*got torch.float64 of shape \(4,\)"),
        (lambda net, x: large_batch(net, x, micro_batch=4, forward=as_dictionary),
         r"encoder: expected embeddings .* got dict; use `forward=`"),
        (lambda net, x: large_batch(net, x.requires_grad_(), micro_batch=4), "inputs: expected tensors without gradient"),
        (lambda net, x: large_batch(net.requires_grad_(False), x, micro_batch=4), "encoder: no parameter requires a grad"),
        (lambda net, x: large_batch(net, x, micro_batch=4, forward=lambda n, b: n(b).detach()).sum().backward(),
         "encoder: expected embeddings that depend on its parameters"),
        (lambda net, x: large_batch(net, x, micro_batch=4).sum().backward(create_graph=True), "create_graph: "),
        (lambda net, x: torch.func.grad(lambda scale: large_batch(net, x, micro_batch=4).sum() * scale)(torch.ones(())),
         r"torch\.func: large_batch works with backward\(\) only"),
    ],
)  # fmt: skip
def test_bad_calls_are_refused(encode: Callable[[Any, Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(network(), two_inputs()[0])


@pytest.mark.parametrize("what", ["inputs", "parameters"])
def test_values_that_change_between_the_passes_are_refused(what: str) -> None:
    """A second pass over other values would not give the gradient of the loss."""
    encoder, (x, _) = network(), two_inputs()
    loss = large_batch(encoder, x, micro_batch=4).square().sum()
    with torch.no_grad():
        (x if what == "inputs" else next(encoder.parameters())).add_(1.0)
    with pytest.raises(ValueError, match=f"the {what} were changed in place"):
        loss.backward()


def test_a_lazy_module() -> None:
    encoder = nn.LazyLinear(3)
    large_batch(encoder, torch.randn(5, 2), micro_batch=2).sum().backward()
    torch.testing.assert_close(encoder.bias.grad, torch.full((3,), 5.0))


class Batch(NamedTuple):
    x: Tensor
    weight: Tensor


def test_a_named_tuple_as_input() -> None:
    encoder = nn.Linear(3, 2)
    batch = Batch(torch.randn(5, 3), torch.ones(5, 1))
    z = large_batch(encoder, batch, micro_batch=2, forward=lambda model, part: model(part.x) * part.weight)
    torch.testing.assert_close(z, encoder(batch.x))
