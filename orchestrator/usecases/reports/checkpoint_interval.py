"""
The interval between checkpoints that loses the least time. Pure.

A short one loses time to saving, a long one to steps that are repeated after a failure. J. W. Young, "A first order
approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974; J. T. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006, equation 37. The
expected ETTR is that of A. Kokolis et al., "Revisiting reliability in large-scale machine learning research clusters",
arXiv:2410.21680, section 4.
"""

from __future__ import annotations

from math import sqrt

ASSUMED_MTTF_NODE_S = 86400 / 0.0065
"""The mean time to failure of a node where none has failed yet: 6.5 failures in 1,000 node-days, RSC-1 in arXiv:2410.21680."""


def best_interval_s(save_s: float, mttf_s: float) -> float:
    """The time between the end of a save and the begin of the next one, by Daly; by Young it is √(2 save_s mttf_s)."""
    if save_s >= 2 * mttf_s:
        return mttf_s
    share = save_s / (2 * mttf_s)
    return sqrt(2 * save_s * mttf_s) * (1 + sqrt(share) / 3 + share / 9) - save_s


def expected_ettr(save_s: float, mttf_s: float, interval_s: float, restart_s: float) -> float:
    """The share of the time in steps that count, if a failure costs `restart_s` and half an interval of steps."""
    return max(0.0, 1 - (restart_s + interval_s / 2) / mttf_s) / (1 + save_s / interval_s)
