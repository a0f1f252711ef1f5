"""Kalman kernels: pure functions on arrays, time first. The model is stated in `counterflow.filtering.kalman`."""

from counterflow.filtering.compression import Compression, compress, compress_by_presence
from counterflow.filtering.covariances import SteadyState, steady_state
from counterflow.filtering.kalman import FilterResult, Run, kalman_filter
from counterflow.filtering.smoother import SmootherResult, rts_smoother, smoothed_states

__all__ = [
    "Compression", "FilterResult", "Run", "SmootherResult", "SteadyState", "compress", "compress_by_presence",
    "kalman_filter", "rts_smoother", "smoothed_states", "steady_state",
]  # fmt: skip
