"""What every head must do, as a test class that the tests of each head inherit."""

from typing import Any, ClassVar

import pytest
import torch

from gpldla.heads import Head, create_head, list_heads
from gpldla.testing.episodes import random_episode
from gpldla.utils.errors import UserError


class HeadContract:
    """Tests of one head on plain features.

    name:        the registered name of the head
    options:     the head's options, passed to `create_head`
    feature_dim: the number of features in these tests
    """

    name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    feature_dim: ClassVar[int] = 24

    @pytest.fixture
    def head(self) -> Head:
        """The head in float64, in evaluation mode."""
        torch.manual_seed(0)
        return create_head(self.name, feature_dim=self.feature_dim, **self.options).double().eval()

    def test_is_listed(self) -> None:
        assert self.name in list_heads()

    def test_unknown_option_names_the_nearest(self) -> None:
        with pytest.raises(UserError, match="no option 'normalise'"):
            create_head(self.name, feature_dim=8, normalise=True)

    def test_probabilities_sum_to_one(self, head: Head) -> None:
        support, labels, query, _ = random_episode(3, 5, 4, self.feature_dim)
        log_prob = head.adapt(support, labels, 5).log_prob(query)
        assert log_prob.shape == (20, 5)
        torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(20).double(), atol=2e-3, rtol=0)

    def test_learns_separable_classes(self, head: Head) -> None:
        generator = torch.Generator().manual_seed(0)
        centres = 5 * torch.eye(5, self.feature_dim, dtype=torch.float64) + 0.1
        labels = torch.arange(5).repeat_interleave(5)
        noise = 0.1 * torch.rand(2, 25, self.feature_dim, generator=generator, dtype=torch.float64)
        log_prob = head.adapt(centres[labels] + noise[0], labels, 5).log_prob(centres[labels] + noise[1])
        assert (log_prob.argmax(-1) == labels).all()

    def test_batch_equals_loop(self, head: Head) -> None:
        support, labels, query, _ = random_episode(2, 4, 3, self.feature_dim, batch=(2, 3))
        together = head.adapt(support, labels, 4).log_prob(query)
        for i in range(2):
            for j in range(3):
                alone = head.adapt(support[i, j], labels[i, j], 4).log_prob(query[i, j])
                torch.testing.assert_close(together[i, j], alone, atol=1e-9, rtol=1e-9)

    def test_permuting_classes_permutes_the_probabilities(self, head: Head) -> None:
        support, labels, query, _ = random_episode([1, 2, 3, 4], 4, 3, self.feature_dim)
        renamed = torch.tensor([2, 0, 3, 1])
        before = head.adapt(support, labels, 4).log_prob(query)
        after = head.adapt(support, renamed[labels], 4).log_prob(query)
        torch.testing.assert_close(after[:, renamed], before, atol=1e-9, rtol=1e-9)

    def test_permuting_shots_changes_nothing(self, head: Head) -> None:
        support, labels, query, _ = random_episode([1, 2, 3, 4], 4, 3, self.feature_dim)
        order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
        before = head.adapt(support, labels, 4).log_prob(query)
        after = head.adapt(support[order], labels[order], 4).log_prob(query)
        torch.testing.assert_close(after, before, atol=1e-9, rtol=1e-9)

    @pytest.mark.parametrize("training", [False, True])
    def test_one_shot_and_odd_features_stay_finite(self, head: Head, training: bool) -> None:
        head.train(training)
        support, labels, query, query_labels = random_episode(1, 5, 3, self.feature_dim)
        cases = {
            "as drawn": support,
            "identical": support[:1].expand_as(support).clone(),
            "one is zero": support * (torch.arange(5) > 0).unsqueeze(-1),
            "all are zero": torch.zeros_like(support),
        }
        for name, features in cases.items():
            features = features.clone().requires_grad_()
            query = query.detach().requires_grad_()
            loss = head.loss(features, labels, query, query_labels, 5)
            torch.autograd.backward(loss)
            assert loss.isfinite(), name
            for tensor in (features, query, *head.parameters()):
                assert tensor.grad is None or tensor.grad.abs().max() < 1e3, name

    def test_class_without_examples_has_probability_zero(self, head: Head) -> None:
        support, labels, query, _ = random_episode(3, 4, 2, self.feature_dim)
        relabelled = torch.where(labels == 3, 4, labels)  # class 3 of 5 is empty
        log_prob = head.adapt(support, relabelled, 5).log_prob(query)
        assert (log_prob[:, 3] == -torch.inf).all()
        without = head.adapt(support, labels, 4).log_prob(query)
        torch.testing.assert_close(log_prob[:, [0, 1, 2, 4]], without, atol=1e-9, rtol=1e-9)

    @pytest.mark.parametrize("training", [False, True])
    def test_class_without_examples_leaves_gradients_finite(self, head: Head, training: bool) -> None:
        head.train(training)
        support, labels, query, query_labels = random_episode(3, 4, 2, self.feature_dim)
        labels, query_labels = (torch.where(y == 3, 4, y) for y in (labels, query_labels))
        support.requires_grad_()
        query.requires_grad_()
        log_prob = head.adapt(support, labels, 5).log_prob(query)
        torch.autograd.backward(log_prob.gather(-1, query_labels.unsqueeze(-1)).sum())
        for tensor in (support, query, *head.parameters()):
            assert tensor.grad is None or tensor.grad.isfinite().all()

    def test_float32_input_gives_float32_output(self, head: Head) -> None:
        head.float()
        support, labels, query, query_labels = random_episode(2, 3, 2, self.feature_dim, dtype=torch.float32)
        assert head.adapt(support, labels, 3).log_prob(query).dtype == torch.float32
        assert head.loss(support, labels, query, query_labels, 3).dtype == torch.float32

    def test_loss_decreases_under_its_own_gradient(self, head: Head) -> None:
        """A small step against the gradient in the query features makes the loss smaller."""
        head.train()
        support, labels, query, query_labels = random_episode(2, 4, 5, self.feature_dim)
        query.requires_grad_()
        torch.manual_seed(0)
        loss = head.loss(support, labels, query, query_labels, 4)
        (gradient,) = torch.autograd.grad(loss, query)
        torch.manual_seed(0)
        smaller = head.loss(support, labels, query - 1e-3 * gradient / gradient.norm(), query_labels, 4)
        assert smaller < loss

    @pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
    def test_labels_may_have_any_integer_dtype(self, head: Head, dtype: torch.dtype) -> None:
        support, labels, query, _ = random_episode(2, 3, 2, self.feature_dim)
        expected = head.adapt(support, labels, 3).log_prob(query)
        assert torch.equal(head.adapt(support, labels.to(dtype), 3).log_prob(query), expected)

    def test_empty_query_and_empty_batch(self, head: Head) -> None:
        support, labels, query, _ = random_episode(2, 3, 2, self.feature_dim, batch=(2,))
        assert head.adapt(support, labels, 3).log_prob(query[:, :0]).shape == (2, 0, 3)
        with torch.no_grad():
            assert head.adapt(support[:0], labels[:0], 3).log_prob(query[:0]).shape == (0, 6, 3)

    def test_invalid_input_is_refused(self, head: Head) -> None:
        support, labels, _, _ = random_episode(2, 3, 1, self.feature_dim)
        with pytest.raises(UserError, match=r"run from 0 to 2"):
            head.adapt(support, labels, 2)
        with pytest.raises(UserError, match="at least 2 classes"):
            head.adapt(support, labels * 0, 1)
        with pytest.raises(UserError, match="must match"):
            head.adapt(support, labels[:-1], 3)
        with pytest.raises(UserError, match="whole numbers"):
            head.adapt(support, labels.double(), 3)
        for dtype in (torch.int64, torch.float16, torch.bfloat16):
            with pytest.raises(UserError, match="floating-point numbers, 32 or 64 bits"):
                head.adapt(support.to(dtype), labels, 3)
