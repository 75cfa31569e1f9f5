"""`integrations.sentence_transformers` beside the losses of sentence-transformers itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch
from processes import run_in_process_group
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses as reference
from sentences import WIDTH, WORDS, bert, columns, features, static
from tiers import every_row
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from contrapose import cosine, cross, dcl, hardest, learned, nt_xent, other_views, same_view, triplet
from contrapose.integrations import sentence_transformers as integration
from contrapose.integrations.sentence_transformers import CachedContrastiveLoss, ContrastiveLoss

BOTH = ("query_to_doc", "doc_to_query")
Results = list[Tensor]


def value_and_gradients(
    make: Callable[..., nn.Module],
    *,
    sentences: dict[str, list[str]] | None = None,
    factor: float = 1.0,
    **settings: Any,
) -> Results:
    """The loss in float64, the gradients of the model and, if it has any, of the loss's own parameters."""
    model = bert().double()
    loss_module = make(model, **settings).double()
    loss = loss_module(features(model, sentences or columns()), None)
    (loss * factor).backward()
    own = [p for name, p in loss_module.named_parameters() if "model" not in name.split(".")]
    gradients = [p.grad for p in [*model.parameters(), *own] if p.grad is not None]
    assert len(gradients) > 15
    return [loss.detach(), *gradients]


def assert_equal(ours: Results, theirs: Results, tolerance: float = 1e-10) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"temperature": 0.2}, {"scale": 5.0}),
        ({"hardness": 9.0}, {"hardness_mode": "all_negatives", "hardness_strength": 9.0}),
        ({"symmetric": True}, {"directions": BOTH, "partition_mode": "per_direction"}),
        ({"directions": ("query_to_doc", "query_to_query")}, {"directions": ("query_to_doc", "query_to_query")}),
        ({"directions": ("query_to_doc", "doc_to_doc")}, {"directions": ("query_to_doc", "doc_to_doc")}),
    ],
)
def test_values_and_gradients_equal_theirs(ours: dict[str, Any], theirs: dict[str, Any], negatives: int) -> None:
    sentences = columns(negatives=negatives)
    expected = value_and_gradients(reference.MultipleNegativesRankingLoss, sentences=sentences, **theirs)
    assert_equal(value_and_gradients(ContrastiveLoss, sentences=sentences, **ours), expected)
    cached = value_and_gradients(CachedContrastiveLoss, sentences=sentences, mini_batch_size=4, **ours)
    assert_equal(cached, expected)


def test_doc_to_query_in_one_sum_has_the_positive_once() -> None:
    model = bert().double()
    inputs = features(model, columns())
    loss = ContrastiveLoss(model, directions=BOTH)(inputs)
    queries, positives = (nn.functional.normalize(model(column)["sentence_embedding"]) for column in inputs)
    logits = queries @ positives.T / 0.05
    off_diagonal = logits - torch.diag(torch.full((6,), torch.inf, dtype=torch.float64))
    pool = torch.cat([logits.diag()[:, None], off_diagonal, off_diagonal.T], dim=1)
    torch.testing.assert_close(loss, (pool.logsumexp(1) - logits.diag()).mean())


@pytest.mark.parametrize("factor", [1.0, 0.125])
def test_the_cache_changes_nothing(factor: float) -> None:
    """Also not for a learned temperature, whose gradient is scaled like the model's."""
    settings: dict[str, Any] = {"sentences": columns(negatives=1), "factor": factor, "symmetric": True}
    plain = value_and_gradients(ContrastiveLoss, temperature=learned(0.05), **settings)
    cached = value_and_gradients(CachedContrastiveLoss, temperature=learned(0.05), mini_batch_size=2, **settings)
    assert_equal(plain, cached)
    assert plain[-1].ndim == 0  # the gradient of the temperature
    assert float(plain[-1]) != 0


@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
def test_evaluation_has_the_same_loss(make: type[ContrastiveLoss]) -> None:
    model = bert()
    loss = make(model, temperature=learned(0.05))
    with torch.no_grad():
        evaluated = loss(features(model, columns()))
    assert not evaluated.requires_grad
    torch.testing.assert_close(evaluated, loss(features(model, columns())).detach())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"objective": dcl}, lambda p: dcl(p, temperature=0.05)),
        ({"objective": "dcl"}, lambda p: dcl(p, temperature=0.1)),
        ({"objective": "dystress"}, lambda p: nt_xent(p, temperature=cosine(0.03, 0.05))),  # the values for text
        ({"temperature": cosine(0.05, 0.1)}, lambda p: nt_xent(p, temperature=cosine(0.05, 0.1))),
        ({"negatives": hardest(2)}, lambda p: nt_xent(p, temperature=0.05, negatives=hardest(2))),
        ({"objective": "triplet", "margin": 0.2}, lambda p: triplet(p, margin=0.2)),
        ({"objective": "nt_xent(temperature=0.2)"}, lambda p: nt_xent(p, temperature=0.2)),
    ],
)
def test_any_objective(settings: dict[str, Any], expected: Callable[[Any], Tensor]) -> None:
    model = bert()
    loss = ContrastiveLoss(model, **settings)(features(model, columns()))
    queries, positives = (model(column)["sentence_embedding"] for column in features(model, columns()))
    torch.testing.assert_close(loss, expected(cross(queries, positives)))


def mask_of_negatives(sentences: dict[str, list[str]]) -> Tensor:
    """Which documents are negatives of which query, read from the gradient of the loss with respect to documents."""
    model = static().double()
    inputs = features(model, sentences)
    embeddings = [model(column)["sentence_embedding"].detach().requires_grad_() for column in inputs]
    loss = ContrastiveLoss(model, temperature=1.0, reduction="none")
    values = loss._loss(embeddings, loss._describe(inputs))
    rows = []
    for value in values:
        documents = torch.autograd.grad(value, embeddings[1:], retain_graph=True)
        rows.append(torch.cat(documents).abs().sum(1) > 1e-9)
    return torch.stack(rows)


def test_duplicates_are_no_negatives() -> None:
    sentences = {
        "query": ["q0", "q1", "q2", "q0", "q4"],
        "positive": ["p0", "p1", "p0", "p3", "q1"],  # p0 twice; q0 twice; q1 is a query and a document
        "negative": ["n0", "p1", "n2", "n3", "n4"],  # p1 is the positive of q1
    }
    # Queries 0, 2 and 3 share texts, and so do queries 1 and 4.
    one, other = [0, 2, 3], [1, 4]
    expected = torch.ones(5, 10, dtype=torch.bool)
    for group in (one, other):
        for i in group:
            expected[i, group] = False
            expected[i, i] = True  # its own positive has a gradient
    for i in other:
        expected[i, 5 + 1] = False
    assert torch.equal(mask_of_negatives(sentences), expected)


def test_without_deduplication_duplicates_are_negatives() -> None:
    sentences = {"query": ["q0", "q1", "q2", "q0"], "positive": ["p0", "p1", "p0", "p3"]}
    expected = value_and_gradients(reference.MultipleNegativesRankingLoss, sentences=sentences)
    assert_equal(value_and_gradients(ContrastiveLoss, sentences=sentences, deduplicate=False), expected)
    assert float(value_and_gradients(ContrastiveLoss, sentences=sentences)[0]) < float(expected[0])


@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize(
    "sentences",
    [{"query": ["q0"], "positive": ["p0"]}, {"query": ["q0", "q1"], "positive": ["p0", "p0"]}],
    ids=["one pair", "one document"],
)
def test_a_batch_without_negatives_has_no_loss(make: type[ContrastiveLoss], sentences: dict[str, list[str]]) -> None:
    """The last batch of an epoch may be a single pair. All that is learned gets its gradient, of zero."""
    loss, *gradients = value_and_gradients(make, sentences=sentences, temperature=learned(0.05))
    assert float(loss) == 0
    assert not any(bool(gradient.any()) for gradient in gradients)
    assert gradients[-1].ndim == 0


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 0.25]])
def test_matryoshka(weights: list[float]) -> None:
    def matryoshka(of: Callable[..., nn.Module], **settings: Any) -> Callable[[SentenceTransformer], nn.Module]:
        return lambda model: reference.MatryoshkaLoss(model, of(model, **settings), [WIDTH, 4], weights)

    theirs = value_and_gradients(matryoshka(reference.MultipleNegativesRankingLoss))
    assert_equal(value_and_gradients(matryoshka(ContrastiveLoss)), theirs)
    assert_equal(value_and_gradients(matryoshka(CachedContrastiveLoss, mini_batch_size=4)), theirs)
    plain = value_and_gradients(matryoshka(ContrastiveLoss, temperature=learned(0.1)))
    cached = value_and_gradients(matryoshka(CachedContrastiveLoss, temperature=learned(0.1), mini_batch_size=4))
    assert_equal(plain, cached)


ALL_BUT_DOC_TO_QUERY = {"directions": ("query_to_doc", "query_to_query", "doc_to_doc")}
ONLY_DOCUMENTS = {"contrast_anchors": False, "contrast_positives": False}


@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize(
    ("negatives", "ours", "theirs"),
    every_row(3, [(1, {}, ONLY_DOCUMENTS), (0, {}, ONLY_DOCUMENTS), (0, ALL_BUT_DOC_TO_QUERY, {})]),
)
@pytest.mark.parametrize("margin_strategy", ["absolute", "relative"])
def test_a_guide_equals_gist(
    make: type[ContrastiveLoss], negatives: int, ours: dict[str, Any], theirs: dict[str, Any], margin_strategy: str
) -> None:
    """The guide has another tokenizer: texts are decoded and tokenised again."""
    common: dict[str, Any] = {"sentences": columns(negatives=negatives), "temperature": 0.1}
    guide = bert(seed=5, words=[*reversed(WORDS)]).double().eval()
    theirs = {**theirs, "guide": guide, "margin": 0.02, "margin_strategy": margin_strategy}
    options = {"guide": guide, "guide_margin": 0.02, "guide_margin_strategy": margin_strategy}
    results = value_and_gradients(make, **common, **options, **ours)
    assert_equal(results, value_and_gradients(reference.GISTEmbedLoss, **common, **theirs))
    # The guide leaves out negatives, or nothing would be tested.
    assert float(value_and_gradients(make, **common, **ours)[0]) > float(results[0])


@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
def test_a_guide_gives_soft_targets(make: type[ContrastiveLoss]) -> None:
    """Against the whole matrices of the model and of the guide, for queries and documents with hard negatives."""
    guide = bert(seed=5).double().eval()
    common: dict[str, Any] = {"sentences": columns(negatives=1), "temperature": 0.1, "guide": guide}
    found = value_and_gradients(make, objective="soft_nt_xent", guide_temperature=0.2, **common)

    class Dense(nn.Module):
        def __init__(self, model: SentenceTransformer, **settings: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, features: Any, labels: Any = None) -> Tensor:
            features = list(features)
            with torch.no_grad():
                judged = [normalize(guide(dict(one))["sentence_embedding"]) for one in features]
            own = [normalize(self.model(one)["sentence_embedding"]) for one in features]
            p = (judged[0] @ torch.cat(judged[1:]).T / 0.2).softmax(1)
            return -(p * (own[0] @ torch.cat(own[1:]).T / 0.1).log_softmax(1)).sum(1).mean()

    assert_equal(found, value_and_gradients(Dense, **common))
    with pytest.raises(ValueError, match="guide_margin: expected 0, since the guide gives soft targets"):
        make(bert(), "soft_nt_xent", guide=guide, guide_margin=0.1)
    with pytest.raises(ValueError, match="soft_nt_xent has soft targets, which come from another model: pass guide="):
        make(bert(), "soft_nt_xent")


def test_the_trainer_does_not_replace_the_guide() -> None:
    model, guide = bert(), bert(seed=5)
    loss = ContrastiveLoss(model, guide=guide)
    other = bert(seed=6)
    SentenceTransformerTrainer.__new__(SentenceTransformerTrainer).override_model_in_loss(loss, other)
    assert loss.model is other
    assert loss.guide is not None
    assert loss.guide.encoder is guide


def train(model: SentenceTransformer, loss: nn.Module, folder: Path, learning_rate: float = 1e-2) -> list[float]:
    from datasets import Dataset  # here, because new processes import this module

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=20,
        per_device_train_batch_size=12,
        learning_rate=learning_rate,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(columns(12, negatives=1)), loss=loss
    )
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.mark.thorough
@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
def test_the_trainer_trains_model_and_temperature(make: type[ContrastiveLoss], tmp_path: Path) -> None:
    model = bert(dropout=0.1)
    loss = make(model, temperature=learned(0.3), symmetric=True)
    losses = train(model, loss, tmp_path)
    assert losses[-1] < 0.7 * losses[0]
    # Lower is better, once positives are closer than negatives.
    assert float(loss.criterion.settings["temperature"]().detach()) < 0.28


def test_a_static_embedding_learns(tmp_path: Path) -> None:
    model = static()
    losses = train(model, ContrastiveLoss(model), tmp_path, learning_rate=0.1)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.thorough
def test_the_model_card_names_the_loss(tmp_path: Path) -> None:
    model = bert()
    loss = CachedContrastiveLoss(model, temperature=cosine(0.03, 0.05), negatives=hardest(4))
    train(model, loss, tmp_path)
    model.save(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "cosine(low=0.03, high=0.05)" in card
    assert "hardest(4)" in card
    assert "@software{contrapose" in card


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"directions": ["query_to_docs"]}, "did you mean 'query_to_doc'"),
        ({"directions": ["query_to_query"]}, "directions: expected 'query_to_doc'"),
        ({"directions": BOTH, "symmetric": True}, "expected only 'query_to_doc' with symmetric=True"),
        ({"objective": "isogclr"}, "needs a value for each sample"),
        ({"objective": "nt_xnet"}, "did you mean 'nt_xent'"),
        ({"scale": 20.0}, "scale: expected a temperature, which is 1 / scale: write temperature=0.05, got 20.0"),
        ({"scale": "20"}, "write temperature=1 / scale, got '20'"),
        (
            {"guide_margin_strategy": "both"},
            "guide_margin_strategy: expected one of 'absolute', 'relative', got 'both'",
        ),
        ({"guide_margin": 0.1}, "guide_margin: expected 0 without a guide, got 0.1"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContrastiveLoss(static(), **settings)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (static, {}, "model: expected one whose inputs can be split into mini-batches, got a StaticEmbedding"),
        (bert, {"mini_batch_size": 0}, "mini_batch_size: expected"),
        (bert, {"mini_batch_num_tokens": -3}, "mini_batch_num_tokens: expected"),
    ],
)
def test_bad_arguments_of_the_cache(
    make: Callable[[], SentenceTransformer], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CachedContrastiveLoss(make(), **settings)


def test_only_the_methods_choice_of_views_follows_from_the_directions() -> None:
    """A choice that the user has written stays, and so does that of DHEL."""
    model = bert()
    settings: dict[str, Any] = {"directions": ("query_to_doc", "query_to_query"), "temperature": 0.3}

    def chosen(objective: str, **more: Any) -> object:
        return ContrastiveLoss(model, objective, **settings, **more).criterion.settings.get("negatives")

    assert chosen("simclr") is None
    assert chosen("dhel") == same_view()
    assert chosen("simclr(negatives=other_views())") == other_views()
    assert chosen("simclr", negatives=other_views()) == other_views()


@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
def test_the_objective_has_one_name_in_all_integrations(make: type[ContrastiveLoss]) -> None:
    assert make(bert(), objective="dcl").get_config_dict()["objective"] == "dcl"
    with pytest.warns(DeprecationWarning, match="loss= is now objective="):
        former = make(bert(), loss="dcl")
    assert former.get_config_dict()["objective"] == "dcl"


def test_one_column_is_refused() -> None:
    model = static()
    with pytest.raises(ValueError, match="expected a query, a positive"):
        ContrastiveLoss(model)(features(model, {"query": ["q0", "q1"]}))


def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_transformers, "__version__", "6.1.0")
    monkeypatch.delitem(sys.modules, integration.__name__)
    with pytest.raises(ImportError, match=r"expected version 6\.2 or newer, got 6\.1\.0"):
        importlib.import_module(integration.__name__)


def gradients_of(
    model: SentenceTransformer, make: Callable[..., nn.Module], *, rows: slice = slice(None), **settings: Any
) -> Results:
    """Gradients of the model and of the loss's own parameters for some of six pairs."""
    loss = make(model.double(), **settings).double()
    if torch.distributed.is_initialized():
        loss.model = DistributedDataParallel(model, find_unused_parameters=True)  # the pooler of BERT
    sentences = {**columns(negatives=1), "query": ["q0", "q1", "q2", "q3", "q4", "q0"]}
    loss(features(model, {name: texts[rows] for name, texts in sentences.items()}), None).backward()
    own_parameters = loss.criterion.parameters() if isinstance(loss, ContrastiveLoss) else ()
    return [p.grad.clone() for p in [*model.parameters(), *own_parameters] if p.grad is not None]


def own_temperatures(rank: int, world: int, out: str) -> None:
    """Write the gradients of learned temperatures, one of them of an added part, of each process's own pairs."""
    texts = {name: rows[:3] if rank == 0 else rows[3:] for name, rows in columns().items()}
    model = SentenceTransformer(f"{out}.model", device="cpu").double()
    loss = ContrastiveLoss(model, "dcl(temperature=learned(0.05)) + 0.5*nt_xent(temperature=learned(0.1))").double()
    loss(features(model, texts)).backward()
    torch.manual_seed(0)
    network = ContrastiveLoss(model, temperature=learned(nn.Linear(WIDTH, 1), low=0.02, high=0.5)).double()
    network(features(model, texts)).backward()
    parameters = [*loss.criterion.parameters(), *network.criterion.parameters()]
    torch.save([p.grad for p in parameters], f"{out}.{rank}")


@pytest.mark.thorough
def test_learned_temperatures_stay_equal(tmp_path: Path) -> None:
    """Those of both parts of a sum, and that of a network of the anchors, although each process has its own pairs."""
    bert().save(str(tmp_path / "own.model"))
    run_in_process_group(own_temperatures, 2, tmp_path / "own")
    one, other = (torch.load(tmp_path / f"own.{rank}", weights_only=True) for rank in range(2))
    assert len(one) == 4
    assert all(bool((gradient != 0).all()) for gradient in one)
    assert_equal(one, other)


def work(rank: int, world: int, out: str) -> None:
    def gradients(make: Callable[..., nn.Module], *, first: int = 3, **settings: Any) -> Results:
        model = SentenceTransformer(f"{out}.model", device="cpu")
        return gradients_of(model, make, rows=slice(first, None) if rank else slice(first), **settings)

    gathered: dict[str, Any] = {"gather_across_devices": True}
    results = [
        gradients(ContrastiveLoss, temperature=learned(0.05), **gathered),
        gradients(CachedContrastiveLoss, temperature=learned(0.05), mini_batch_size=2, **gathered),
        gradients(ContrastiveLoss, deduplicate=False, **gathered),
        gradients(reference.MultipleNegativesRankingLoss, **gathered),
        # The last process has a single pair, which has no negatives in both directions.
        gradients(ContrastiveLoss, temperature=learned(0.05), symmetric=True, first=5),
        gradients(ContrastiveLoss, objective="dcl + 0.5*nt_xent(temperature=learned(0.05))", **gathered),
    ]
    torch.save(results, f"{out}.{rank}")


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    """Of the model and, outside of DistributedDataParallel, of the learned temperature."""
    bert().save(str(tmp_path / "gradients.model"))
    run_in_process_group(work, 2, tmp_path / "gradients")
    for rank in range(2):
        plain, cached, kept, theirs, uneven, total = torch.load(tmp_path / f"gradients.{rank}", weights_only=True)
        expected = gradients_of(bert(), ContrastiveLoss, temperature=learned(0.05))
        assert_equal(plain, expected)
        assert_equal(cached, expected)
        expected = gradients_of(bert(), ContrastiveLoss, deduplicate=False)
        assert_equal(kept, expected)
        assert_equal(theirs, expected)  # theirs is exact as well; its value is that of a process's own queries
        first = gradients_of(bert(), ContrastiveLoss, temperature=learned(0.05), symmetric=True, rows=slice(5))
        assert_equal(uneven, [gradient / 2 for gradient in first])
        expected = gradients_of(bert(), ContrastiveLoss, objective="dcl + 0.5*nt_xent(temperature=learned(0.05))")
        assert_equal(total, expected)
