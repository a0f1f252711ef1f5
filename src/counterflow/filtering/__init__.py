"""Kalman kernels: pure functions on arrays, time first. The model is stated in `counterflow.filtering.kalman`."""

from counterflow.filtering.compression import Compression, compress, compress_by_presence
from counterflow.filtering.covariances import SteadyState, steady_state
from counterflow.filtering.kalman import kalman_filter
from counterflow.filtering.results import FilterResult, SmootherResult
from counterflow.filtering.smoother import rts_smoother

__all__ = [
    "Compression", "FilterResult", "SmootherResult", "SteadyState", "compress", "compress_by_presence",
    "kalman_filter", "rts_smoother", "steady_state",
]  # fmt: skip
