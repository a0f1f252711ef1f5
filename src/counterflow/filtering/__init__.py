"""Kalman kernels: pure functions on arrays, time first. The model is stated in `counterflow.filtering.kalman`."""

from counterflow.filtering.compression import Compression, compress, compress_by_presence
from counterflow.filtering.covariances import SteadyState, steady_state
from counterflow.filtering.forecast import Forecast, forecast
from counterflow.filtering.kalman import kalman_filter, log_likelihood
from counterflow.filtering.results import FilterResult, SmootherResult
from counterflow.filtering.smoother import rts_smoother

__all__ = [
    "Compression", "FilterResult", "Forecast", "SmootherResult", "SteadyState", "compress", "compress_by_presence",
    "forecast", "kalman_filter", "log_likelihood", "rts_smoother", "steady_state",
]  # fmt: skip
