"""Learning from unlabelled rows, against plain loops in numpy."""

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power

from gpldla.heads import create_head
from gpldla.heads.base import class_one_hot
from gpldla.heads.gp import unlabelled as module
from gpldla.heads.gp.task_space import TaskSpace
from gpldla.heads.gp.unlabelled import MOST_ROWS, NONE, WEIGHT, label_softly, least_rows, usable_rows


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def task(n_way=3, m=12, d=8, apart=2.0, seed=0):
    rng = np.random.default_rng(seed)
    means = apart * rng.standard_normal((n_way, d))
    labelled = means + rng.standard_normal((n_way, d))
    more = means.repeat(m // n_way, 0) + rng.standard_normal((m // n_way * n_way, d))
    return labelled, more


def step_by_loops(labelled, more, sigma):
    """Return responsibilities, centre and A^{-1/2} after one step from centred rows, and the class means."""
    n, d = labelled.shape
    u = unit(np.concatenate([labelled, more]))
    phi = unit(u - u[:n].mean(0))
    soft = np.zeros((len(u), n))
    soft[:n] = np.eye(n)
    for i in range(n, len(u)):
        odds = [np.exp(phi[i] @ phi[j] / sigma) for j in range(n)]
        soft[i] = WEIGHT * np.array(odds) / (np.exp(NONE) + sum(odds))
    counts = soft.sum(0)
    means = [sum(soft[i, j] * u[i] for i in range(len(u))) / counts[j] for j in range(n)]
    scatter = sum(
        soft[i, j] * np.outer(u[i] - means[j], u[i] - means[j]) for i in range(len(u)) for j in range(n)
    )
    kappa = (counts.sum() - n) / np.trace(scatter)
    centre = np.mean(means, 0)
    root = fractional_matrix_power(np.eye(d) + kappa * scatter, -0.5)
    z = unit((u - centre) @ root)
    directions = [sum(soft[i, j] * z[i] for i in range(len(u))) for j in range(n)]
    return soft, centre, root, unit(np.array(directions))


@pytest.mark.parametrize(("m", "d"), [(12, 30), (30, 4)])
def test_a_step_is_that_of_the_formulas(monkeypatch, m, d):
    monkeypatch.setattr(module, "STEPS", 1)
    labelled, more = task(m=m, d=d)
    soft, centre, root, means = step_by_loops(labelled, more, 0.4)
    rows, extra = torch.tensor(labelled), torch.tensor(more)
    space = TaskSpace(True, torch.tensor(unit(labelled).mean(0)))
    sigma = torch.tensor([0.4], dtype=torch.float64)
    found = label_softly(space, rows, torch.eye(3, dtype=torch.float64), extra, sigma, whiten=True)
    np.testing.assert_allclose(found.member, soft, atol=1e-12)
    np.testing.assert_allclose(found.space.center, centre, atol=1e-12)
    np.testing.assert_allclose(found.space(rows), (unit(labelled) - centre) @ root, atol=1e-10)
    np.testing.assert_allclose(found.means, means, atol=1e-10)


def adapted(labelled, more, **options):
    head = create_head("gpldla-auto", **options).eval()
    labels = torch.arange(labelled.shape[-2])
    return head.adapt(labelled, labels, labelled.shape[-2], unlabelled=more)


def test_the_order_of_rows_makes_no_difference():
    labelled, more = (torch.tensor(rows) for rows in task(5, 60, 20))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    query = torch.tensor(task(5, 60, 20, seed=1)[1])
    first, second = (adapted(labelled, rows).log_prob(query) for rows in (more, more[order]))
    torch.testing.assert_close(first, second)


def test_a_batch_is_the_tasks_one_by_one():
    tasks = [[torch.tensor(rows) for rows in task(4, 24, 10, seed=seed)] for seed in range(3)]
    head, labels = create_head("gpldla-auto").eval(), torch.arange(4).expand(3, -1)
    labelled, more = (torch.stack(rows) for rows in zip(*tasks))
    together = head.adapt(labelled, labels, 4, unlabelled=more).log_prob(more)
    for one, (rows, extra) in zip(together, tasks):
        torch.testing.assert_close(one, adapted(rows, extra).log_prob(extra))


def test_rows_of_the_classes_improve_the_answers():
    right = {"with": 0.0, "without": 0.0}
    for seed in range(20):
        labelled, more = (torch.tensor(rows) for rows in task(5, 100, 40, apart=0.35, seed=seed))
        query, truth = more[1::2], torch.arange(5).repeat_interleave(20)[1::2]
        for name, rows in (("without", None), ("with", more[::2])):
            right[name] += (
                (adapted(labelled, rows).log_prob(query).argmax(-1) == truth).double().mean().item()
            )
    assert right["with"] > right["without"] + 20 * 0.05


def test_a_class_without_examples_stays_impossible():
    labelled, more = (torch.tensor(rows) for rows in task(4, 40, 10))
    member = class_one_hot(torch.arange(4), 6, labelled.dtype)
    assert member.shape == (4, 6)
    posterior = create_head("gpldla-auto").eval().adapt(labelled, torch.arange(4), 6, unlabelled=more)
    p = posterior.log_prob(more).exp()
    assert (p[:, 4:] == 0).all()
    torch.testing.assert_close(p[:, :4], adapted(labelled, more).log_prob(more).exp())


def test_more_shots_keep_the_measured_beta():
    labelled, more = (torch.tensor(rows) for rows in task(3, 60, 12))
    twice, labels = torch.cat([labelled, more[::20]]), torch.arange(3).repeat(2)
    head = create_head("gpldla-auto").eval()
    assert torch.equal(head.adapt(twice, labels, 3).beta, head.adapt(twice, labels, 3, unlabelled=more).beta)
    assert adapted(labelled, more).beta < adapted(labelled, None).beta


def test_few_rows_are_not_used_and_of_many_the_content_decides():
    rows = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0))
    assert usable_rows(rows[: least_rows(3) - 1], 3) is None
    assert usable_rows(rows[:39], 20) is None
    assert usable_rows(rows[:40], 20) is not None
    chosen = usable_rows(rows, 3)
    assert chosen.shape == (MOST_ROWS, 6)
    again = usable_rows(rows.flip(0), 3)
    assert torch.equal(chosen, again)


@pytest.mark.parametrize("rows", [torch.zeros(20, 8), torch.full((20, 8), 1e30)], ids=["zeros", "equal"])
def test_degenerate_rows_give_finite_answers(rows):
    labelled = torch.tensor(task()[0], dtype=torch.float32)
    assert adapted(labelled, rows).log_prob(labelled).isfinite().all()
    assert adapted(labelled, labelled.repeat(10, 1)).log_prob(labelled).isfinite().all()
