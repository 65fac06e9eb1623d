"""GPLDLA written once more with plain loops in float64, straight from the paper's equations."""

import math

import numpy as np


def adapt(support, labels, n_way, beta, beta_b, normalize=True, dimension=None):
    """Return w* [C, d], b* [C], V* [C, d], v* [C], σ²* for one episode; every class needs an example.

    dimension: D in place of d in Eq. 19
    """
    n, d = len(support), len(support[0])
    phi = np.zeros((n, d))
    for i in range(n):
        norm = math.sqrt(sum(float(x) ** 2 for x in support[i])) if normalize else 1.0
        for k in range(d):
            phi[i, k] = float(support[i][k]) / norm

    # Eq. 14: π_j = n_j / n, μ_j = mean of the class
    pi, mu = np.zeros(n_way), np.zeros((n_way, d))
    for j in range(n_way):
        members = [i for i in range(n) if labels[i] == j]
        pi[j] = len(members) / n
        for i in members:
            mu[j] += phi[i] / len(members)

    # Eq. 19: σ²* = 1/(β√d) · sqrt(1/C Σ_j ‖μ_j‖²), w_j* = μ_j/σ²*
    total = 0.0
    for j in range(n_way):
        for k in range(d):
            total += mu[j, k] ** 2
    sigma2 = math.sqrt(total / n_way) / (beta * math.sqrt(dimension or d))
    w = np.zeros((n_way, d))
    for j in range(n_way):
        for k in range(d):
            w[j, k] = mu[j, k] / sigma2

    # Eq. 17 and 20: b̂_j = log π_j − ‖μ_j‖²/(2σ²*), α* = −mean(b̂), b_j* = b̂_j + α*
    b_hat = [math.log(pi[j]) - sum(mu[j, k] ** 2 for k in range(d)) / (2 * sigma2) for j in range(n_way)]
    alpha = -sum(b_hat) / n_way
    b = np.array([b_hat[j] + alpha for j in range(n_way)])

    # Eq. 11-12: curvature a*(x, y, j) = p − p² summed over the support
    precision, precision_b = np.full((n_way, d), beta**-2), np.full(n_way, beta_b**-2)
    for i in range(n):
        f = [sum(w[j, k] * phi[i, k] for k in range(d)) + b[j] for j in range(n_way)]
        top = max(f)
        normaliser = sum(math.exp(value - top) for value in f)
        for j in range(n_way):
            p = math.exp(f[j] - top) / normaliser
            for k in range(d):
                precision[j, k] += (p - p**2) * phi[i, k] ** 2
            precision_b[j] += p - p**2
    return w, b, 1 / precision, 1 / precision_b, sigma2


def logits(query, w, b, V, v, normalize=True):
    """Return mean and variance of f_j at each query, [q, C] each."""
    mean, var = np.zeros((len(query), len(b))), np.zeros((len(query), len(b)))
    for i, x in enumerate(query):
        x = np.asarray(x, dtype=float)
        phi = x / math.sqrt(sum(x**2)) if normalize else x
        for j in range(len(b)):
            mean[i, j] = sum(w[j] * phi) + b[j]
            var[i, j] = sum(V[j] * phi**2) + v[j]
    return mean, var


def predictive(query, w, b, V, v, noise_w, noise_b, normalize=True):
    """Eq. 21 with given noise: noise_w [M, C, d], noise_b [M, C] → p [q, C]."""
    p = np.zeros((len(query), len(b)))
    for m in range(len(noise_w)):
        w_m, b_m = w + np.sqrt(V) * noise_w[m], b + np.sqrt(v) * noise_b[m]
        for i, x in enumerate(query):
            x = np.asarray(x, dtype=float)
            phi = x / math.sqrt(sum(x**2)) if normalize else x
            f = np.array([sum(w_m[j] * phi) + b_m[j] for j in range(len(b))])
            e = np.exp(f - f.max())
            p[i] += e / e.sum() / len(noise_w)
    return p
