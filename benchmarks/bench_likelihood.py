"""Speed of maximum likelihood: time to the same log-likelihood against statsmodels and dynamax, large plants, scaling.

Run: python benchmarks/bench_likelihood.py

Every timing runs in a process of its own (``bench_likelihood.py --worker ...``), one after the other, with the thread
setting that the table names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Found = dict[str, Any]
TOLERANCE = 1e-3  # of the log-likelihood, absolute: two runs have come to the same place
PATIENCE = 120.0  # seconds that a peer is given before the rest of its run is extrapolated
PEER = (4, 4, 16, 10_000)  # M, P, D (both a unit), T
DEFAULT = {"M": 4, "P": 4, "D": 16, "T": 10_000}
SCALING = {"M": (2, 4, 8, 16), "P": (2, 4, 8, 16), "D": (8, 16, 32, 64), "T": (5_000, 10_000, 20_000, 40_000)}


# Workers -------------------------------------------------------------------------------------------------------------


def make(M: int, P: int, D: int, T: int) -> tuple[Any, Any]:
    import counterflow as cf

    plant = cf.random_plant(units=M, states=P, outputs=D, rng=1)
    return plant, plant.simulate(T, rng=2)


def shared_of(plant: Any, recording: Any) -> Any:
    from counterflow.exchange.compression import sufficient_message
    from counterflow.learning.likelihood import SharedRecord

    messages = [sufficient_message(n, plant.local(n), recording[n].y, recording[n].u) for n in plant.names]
    return SharedRecord.from_messages(messages)


def median_of(call: Callable[[], Any], repeats: int) -> float:
    """Seconds; one call before is not timed."""
    call()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[len(seconds) // 2]


class Setting:
    """The peers' problem: the same compressed measurements, inputs, prior and parameters for all."""

    def __init__(self, start: str) -> None:
        import numpy as np

        from counterflow.learning.optimiser import _noise_root, least_squares_start
        from counterflow.learning.parameters import Parameters

        self.plant, recording = make(*PEER)
        self.record = shared_of(self.plant, recording)
        _ = self.record.prior, self.record.input_moment
        self.parameters = Parameters(self.record, "couplings", _noise_root(self.record))
        self.P = len(self.plant.A)
        self.fixed = np.hstack([self.record.A_local, self.record.B_local])  # zero where the parameters go
        begin = time.perf_counter()
        A, B = self.record.A_local, self.record.B_local
        if start == "least squares":
            A, B = least_squares_start(self.record, "couplings", 1.0 - 1e-9)
        self.start_seconds = time.perf_counter() - begin
        self.start = (A, B)
        self.vector = self.parameters.pack(np.hstack([A, B]))

    def matrices(self, x: Any) -> tuple[Any, Any]:
        whole = self.fixed + self.parameters.unpack(x)
        return whole[:, : self.P], whole[:, self.P :]


def worker_ours(start: str) -> Found:
    """Time to the top: the first pass whose log-likelihood is within the tolerance of the best known."""
    from counterflow.learning.likelihood import evaluate
    from counterflow.learning.optimiser import maximum_likelihood

    s = Setting(start)
    best = maximum_likelihood(s.record, start=s.start, tolerance=1e-7)
    runs = []
    for _ in range(5):
        seen: list[tuple[float, float]] = []
        begin = time.perf_counter()
        maximum_likelihood(
            s.record, start=s.start, progress=lambda _, v, b=begin, o=seen: o.append((time.perf_counter() - b, v))
        )
        near = next(k for k, (_, v) in enumerate(seen) if v >= best.log_likelihood - TOLERANCE)
        runs.append((seen[near][0], near + 1))
    seconds, passes = sorted(runs)[2]
    one = median_of(lambda: evaluate(s.record, *s.start, s.record.Q_local), 9)
    return {
        "seconds": seconds, "evaluations": passes, "one": one, "top": best.log_likelihood, "start": s.start_seconds
    }  # fmt: skip


def run_lbfgs(s: Setting, value_and_gradient: Callable[[Any], tuple[float, Any]], top: float, limit: float) -> Found:
    """scipy's L-BFGS-B, stopped as soon as the top is reached, or after ``limit`` seconds."""
    import numpy as np
    from scipy.optimize import minimize

    class Stop(Exception):
        pass

    begin, count, best, within = time.perf_counter(), 0, -np.inf, False

    def negative(x: Any) -> tuple[float, Any]:
        nonlocal count, best, within
        value, gradient = value_and_gradient(x)
        count += 1
        best = max(best, value) if np.isfinite(value) else best
        within = best >= top - TOLERANCE
        if within or time.perf_counter() - begin > limit:
            raise Stop
        return -value, -gradient

    try:
        options = {"maxiter": 10_000, "maxfun": 100_000, "maxcor": 10, "ftol": 0.0, "gtol": 0.0}
        minimize(negative, s.vector, jac=True, method="L-BFGS-B", options=options)
    except Stop:
        pass
    return {"seconds": time.perf_counter() - begin, "evaluations": count, "best": best, "within": within}


def worker_count(start: str, top: float) -> Found:
    """How many values and gradients plain L-BFGS needs, whoever computes them: counted with ours."""
    import numpy as np

    from counterflow.learning.likelihood import evaluate

    s = Setting(start)

    def both(x: Any) -> tuple[float, Any]:
        A, B = s.matrices(x)
        at = evaluate(s.record, A, B, s.record.Q_local)
        return at.log_likelihood, s.parameters.pack(np.linalg.solve(at.Q, at.gap))

    return run_lbfgs(s, both, top, PATIENCE)


def worker_dynamax(start: str, top: float) -> Found:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import numpy as np
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM, lgssm_filter

    s = Setting(start)
    record, n, r, U = s.record, s.P, s.record.values.shape[1], s.record.u.shape[1]
    model = LinearGaussianSSM(n, r, U)
    y, u = jnp.array(record.values), jnp.array(np.vstack([np.zeros((1, U)), record.u[:-1]]))  # inputs[t] acts on row t

    def log_likelihood(A: Any, B: Any) -> Any:
        params, _ = model.initialize(
            jax.random.PRNGKey(0), initial_mean=jnp.zeros(n), initial_covariance=jnp.array(record.prior),
            dynamics_weights=A, dynamics_bias=jnp.zeros(n), dynamics_input_weights=B,
            dynamics_covariance=jnp.array(record.Q_local), emission_weights=jnp.array(record.observation),
            emission_bias=jnp.zeros(r), emission_input_weights=jnp.zeros((r, U)), emission_covariance=jnp.eye(r),
        )  # fmt: skip
        return lgssm_filter(params, y, u).marginal_loglik

    value = jax.jit(log_likelihood)
    gradient = jax.jit(jax.value_and_grad(log_likelihood, argnums=(0, 1)))

    def both(x: Any) -> tuple[float, Any]:
        v, slopes = gradient(*s.matrices(x))
        return float(v), s.parameters.pack(np.hstack([np.asarray(a) for a in slopes]))

    both(s.vector)  # compilation
    out = run_lbfgs(s, both, top, PATIENCE)
    out["one"] = median_of(lambda: both(s.vector), 3)
    out["value"] = median_of(lambda: value(*s.matrices(s.vector)).block_until_ready(), 3)
    return out


def worker_statsmodels(start: str, top: float) -> Found:
    """Seconds of one log-likelihood by its fastest filter, and a fit with gradients from its smoother."""
    import numpy as np
    from statsmodels.tsa.statespace import kalman_filter as kf
    from statsmodels.tsa.statespace.kalman_smoother import (
        SMOOTHER_STATE,
        SMOOTHER_STATE_AUTOCOV,
        SMOOTHER_STATE_COV,
        KalmanSmoother,
    )  # fmt: skip

    from counterflow.recurrence import linear_recurrence

    s = Setting(start)
    record, n, r = s.record, s.P, s.record.values.shape[1]
    small = sum(
        getattr(kf, f"MEMORY_NO_{name}")
        for name in (
            "FORECAST_COV", "PREDICTED_COV", "FILTERED_COV", "SMOOTHING", "GAIN", "STD_FORECAST", "FORECAST_MEAN",
            "PREDICTED_MEAN", "FILTERED_MEAN",
        )
    )  # fmt: skip

    def prepared(kind: Any, method: int) -> Any:
        model = kind(r, n, loglikelihood_burn=0)
        model.bind(np.ascontiguousarray(record.values))
        model["design"], model["obs_cov"] = record.observation, np.eye(r)
        model["selection"], model["state_cov"] = np.eye(n), record.Q_local
        model.initialize_known(np.zeros(n), record.prior)
        model.set_filter_method(method)
        return model

    def response(A: Any, B: Any) -> Any:
        h = np.zeros((len(record.u), n))
        h[1:] = linear_recurrence(A, record.u[:-1] @ B.T, np.zeros(n))
        return h

    def value(model: Any, A: Any, B: Any, subtract: bool) -> float:
        model["transition"] = A
        if subtract:  # its settled filter needs a model without inputs
            model.bind(np.ascontiguousarray(record.values - response(A, B) @ record.observation.T))
        else:
            model["state_intercept"] = np.ascontiguousarray((record.u @ B.T).T)
        return float(model.loglike())

    by_way = {}
    for method, code in {"plain": kf.FILTER_CONVENTIONAL, "univariate": kf.FILTER_UNIVARIATE}.items():
        for subtract in (False, True):
            model = prepared(kf.KalmanFilter, code)
            model.set_conserve_memory(small)
            label = method + (", inputs' response subtracted in every evaluation" if subtract else ", state intercept")
            by_way[label] = median_of(lambda m=model, w=subtract: value(m, *s.start, w), 5)

    smoother = prepared(KalmanSmoother, kf.FILTER_CONVENTIONAL)

    def both(x: Any) -> tuple[float, Any]:
        """Value and gradient by Fisher's identity on the smoothed moments, written by hand around its smoother."""
        A, B = s.matrices(x)
        smoother["transition"] = A
        smoother["state_intercept"] = np.ascontiguousarray((record.u @ B.T).T)
        done = smoother.smooth(smoother_output=SMOOTHER_STATE | SMOOTHER_STATE_COV | SMOOTHER_STATE_AUTOCOV)
        h, cov, lag = done.smoothed_state.T, done.smoothed_state_cov, done.smoothed_state_autocov
        before, after, u = h[:-1], h[1:], record.u[:-1]
        U = u.shape[1]
        S_xx = np.empty((n + U, n + U))
        S_xx[:n, :n] = before.T @ before + cov[:, :, :-1].sum(axis=2)
        S_xx[:n, n:] = before.T @ u
        S_xx[n:, :n] = S_xx[:n, n:].T
        S_xx[n:, n:] = record.input_moment
        S_yx = np.hstack([after.T @ before + lag[:, :, :-1].sum(axis=2), after.T @ u])
        gap = S_yx - np.hstack([A, B]) @ S_xx
        return float(done.llf_obs.sum()), s.parameters.pack(np.linalg.solve(record.Q_local, gap))

    from counterflow.learning.likelihood import evaluate

    at = evaluate(record, *s.start, record.Q_local)
    here, slope = both(s.vector)
    true = s.parameters.pack(np.linalg.solve(at.Q, at.gap))
    assert abs(here - at.log_likelihood) < 1e-5, (here, at.log_likelihood)
    assert np.abs(slope - true).max() < 1e-5 * np.abs(true).max(), "statsmodels' moments"
    out = run_lbfgs(s, both, top, PATIENCE)
    out["one"], out["by_way"], out["size"] = median_of(lambda: both(s.vector), 3), by_way, len(s.vector)
    return out


def worker_fit(M: int, P: int, D: int, T: int, traced: bool) -> Found:
    """A whole cf.fit, messages included: seconds, memory of the process, and (traced) what the fit itself allocates."""
    import resource
    import tracemalloc

    import counterflow as cf

    plant, recording = make(M, P, D, T)
    models = plant.locals()
    small = cf.random_plant(units=2, rng=0)
    cf.fit(small.simulate(100, rng=0), small.locals())  # everything is imported
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    found = cf.fit(recording, models)
    seconds = time.perf_counter() - begin
    assert found.couplings is not None
    out = {
        "seconds": seconds, "passes": found.couplings.found.evaluations, "converged": found.status.converged,
        "uncertainty": found.couplings.spread is not None, "loaded": loaded * 1024,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip
    if traced:
        del found
        tracemalloc.start()
        cf.fit(recording, models, evaluations=13, uncertainty=out["uncertainty"])  # all twelve pairs are there by then
        out["peak"] = tracemalloc.get_traced_memory()[1]
    return out


def worker_pass(M: int, P: int, D: int, T: int) -> Found:
    """One filter and smoother pass at the truth."""
    from counterflow.learning.likelihood import evaluate

    plant, recording = make(M, P, D, T)
    shared = shared_of(plant, recording)
    one = median_of(lambda: evaluate(shared, plant.A, plant.B, plant.Q), 9 if M < 64 else 2)
    return {"one": one, "flops": pass_flops(sum(shared.states), shared.values.shape[1], shared.u.shape[1], T + 1)}


def worker_gemm() -> Found:
    import machine

    return {"gemm": machine.gemm_rate(), "text": machine.description("statsmodels", "dynamax", "jax")}


def pass_flops(n: int, r: int, U: int, rows: int) -> float:
    """Useful operations of one filter and smoother pass with its moments, covariances (independent of T) left out.

    A multiplication and an addition count as two. By row: whitening 2r²; inputs 2nU; gain into the recurrence 2rn;
    its recurrence 2n²; innovation 2nr; filtered state 2rn; adjoint's source 2rn, its recurrence 2n², smoothed state
    2n²; moments 6n² + 4nU. That marching through blocks does a recurrence twice is not counted.
    """
    return float(rows * (2 * r * r + 8 * r * n + 12 * n * n + 6 * n * U))


WORKERS: dict[str, Callable[..., Found]] = {
    "ours": worker_ours, "count": worker_count, "dynamax": worker_dynamax, "statsmodels": worker_statsmodels,
    "fit": worker_fit, "pass": worker_pass, "gemm": worker_gemm,
}  # fmt: skip


def call(threads: int | None, name: str, *arguments: Any, limit: float | None = None) -> Found:
    """Run a worker in a process of its own; nothing is found if it takes longer than ``limit`` seconds."""
    environment = dict(os.environ)
    environment.pop("OPENBLAS_NUM_THREADS", None)
    if threads is not None:
        environment["OPENBLAS_NUM_THREADS"] = str(threads)
    command = [sys.executable, __file__, "--worker", json.dumps([name, *arguments])]
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {}
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    print(name, *arguments, "threads", threads, json.dumps(found), file=sys.stderr, flush=True)
    return found


# Tables --------------------------------------------------------------------------------------------------------------


def peer_table() -> list[str]:
    M, P, D, T = PEER
    lines = [
        "## Time to the same log-likelihood",
        "",
        f"M={M}, P={P} and D={D} a unit, U=2, T={T:,}; couplings estimated, local blocks and noise given. Time until "
        f"within {TOLERANCE:g} (absolute) of the maximum, from the same start; all see the same compressed "
        "measurements (16 numbers a row instead of 64, which helps the peers too), inputs and prior. "
        "Compilation not timed.",
        "",
        "| start | who | values and gradients | s each | s in all | times ours |",
        "|---|---|---:|---:|---:|---:|",
    ]
    notes: list[str] = []
    for start in ("no coupling", "least squares"):
        ours = call(1, "ours", start)
        base, top = ours["seconds"], ours["top"]
        both = call(None, "ours", start)
        lines.append(
            f"| {start} | **Counterflow**, 1 thread | {ours['evaluations']} | {ours['one']:.4f} | {base:.3f} | 1 |"
        )
        lines.append(
            f"| {start} | Counterflow, default threads | {both['evaluations']} | {both['one']:.4f} "
            f"| {both['seconds']:.3f} | {both['seconds'] / base:.1f} |"
        )
        counted = call(1, "count", start, top)
        passes = counted["evaluations"]
        lines.append(
            f"| {start} | plain L-BFGS (scipy) on Counterflow's gradient, for the count | {passes} | {ours['one']:.4f} "
            f"| {counted['seconds']:.2f} | {counted['seconds'] / base:.1f} |"
        )
        rivals = []
        jax_run = call(None, "dynamax", start, top)
        total, how = finished(jax_run, passes)
        rivals.append(total)
        lines.append(
            f"| {start} | dynamax: value_and_grad of its filter, jitted, L-BFGS{how} | {jax_run['evaluations']} "
            f"| {jax_run['one']:.3f} | {total:.1f} | {total / base:.0f} |"
        )
        other = call(1, "statsmodels", start, top)
        total, how = finished(other, passes)
        rivals.append(total)
        lines.append(
            f"| {start} | statsmodels' smoother, gradient by hand (not its fit), L-BFGS{how} | {other['evaluations']} "
            f"| {other['one']:.3f} | {total:.1f} | {total / base:.0f} |"
        )
        way, one = min(other["by_way"].items(), key=lambda item: item[1])
        each = one * (other["size"] + 1)
        lines.append(
            f"| {start} | statsmodels, L-BFGS with its numerical gradients (extrapolated) | {passes} | {each:.1f} "
            f"| {each * passes:.0f} | {each * passes / base:.0f} |"
        )
        notes.append(
            f"- From {start}: **{min(rivals) / base:.0f} times** as fast as the best peer (target 10: "
            f"{'met' if min(rivals) / base >= 10 else 'MISSED'}). statsmodels' fastest log-likelihood takes "
            f"{one:.3f} s ({way}; all: {', '.join(f'{k} {v:.3f}' for k, v in other['by_way'].items())}); "
            f"forward differences of {other['size']} couplings make {other['size'] + 1} of them a gradient. dynamax's "
            f"value alone: {jax_run['value']:.3f} s."
        )
        if start == "least squares":
            notes.append(f"- The least-squares start itself takes {ours['start']:.3f} s, not counted for anybody.")
    notes.append(
        "- Extrapolated means: seconds of one evaluation, measured here, times the number of evaluations that scipy's "
        "L-BFGS needs with exact gradients, measured in the same table. It was not run to its end. Everything not "
        "marked so was. statsmodels and Counterflow with 1 BLAS thread, dynamax with the threads it takes by itself."
    )
    return [*lines, "", *notes]


def finished(run: Found, passes: int) -> tuple[float, str]:
    if run["within"]:
        return run["seconds"], ""
    return run["one"] * passes, f" (extrapolated: stopped after {run['seconds']:.0f} s)"


def large_table() -> list[str]:
    lines = [
        "## Large plants",
        "",
        "A whole `cf.fit` with default options, messages included; peak resident memory of the process, which also "
        "holds and has simulated the raw recording. Standard errors are computed by default only where that takes "
        "seconds, which here it does not.",
        "",
        "| M | P, D a unit | T | threads | couplings | passes | fit, s | s a pass | peak memory, GiB | of it before "
        "the fit | target |",
        "|---:|---|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for M, T, limit in ((16, 10_000, 10.0), (64, 20_000, 180.0)):
        for threads in (1, None):
            got = call(threads, "fit", M, 4, 32, T, False, limit=2 * limit + 60)
            head = f"| {M} | 4, 32 | {T:,} | {threads or 'default'} | {M * (M - 1) * 4 * 6:,} | "
            if not got:
                lines.append(f"{head} | stopped after {2 * limit + 60:.0f} | | | | {limit:g} s, 4 GiB: MISSED |")
                continue
            got |= call(threads, "pass", M, 4, 32, T)
            met = got["seconds"] < limit and got["rss"] < 4 * 2**30 and got["converged"]
            lines.append(
                f"{head}{got['passes']} | {got['seconds']:.1f} | {got['one']:.3f} | {got['rss'] / 2**30:.2f} "
                f"| {got['loaded'] / 2**30:.2f} | {limit:g} s, 4 GiB: {'met' if met else 'MISSED'} |"
            )
    return lines


def scaling_table() -> list[str]:
    import numpy as np

    lines = [
        "## Scaling",
        "",
        f"Around M={DEFAULT['M']}, P={DEFAULT['P']}, D={DEFAULT['D']} (a unit), T={DEFAULT['T']:,}, 1 thread. "
        "Exponents: slopes of straight lines through the logarithms. Memory: peak of what the fit allocates "
        "(tracemalloc), recording not counted.",
        "",
        "| grows | values | s a pass | exponent | fit, s (standard errors where default) | exponent | memory, MiB "
        "| exponent |",
        "|---|---|---|---:|---|---:|---|---:|",
    ]
    for letter, values in SCALING.items():
        runs, peaks = [], []
        for value in values:
            size = {**DEFAULT, letter: value}
            arguments = [size[k] for k in "MPDT"]
            runs.append({**call(1, "fit", *arguments, True), **call(1, "pass", *arguments)})
            peaks.append(runs[-1]["peak"] / 2**20)

        def slope(series: list[float], at: tuple[int, ...] = values) -> str:
            return f"{np.polyfit(np.log(at), np.log(series), 1)[0]:.2f}"

        one, whole = [r["one"] for r in runs], [r["seconds"] for r in runs]
        lines.append(
            f"| {letter} | {', '.join(f'{v:,}' for v in values)} | {', '.join(f'{v:.3f}' for v in one)} | {slope(one)} "
            f"| {', '.join(f'{v:.2f}' + mark(r) for v, r in zip(whole, runs, strict=True))} "
            f"| {slope(whole)} | {', '.join(f'{v:.0f}' for v in peaks)} | {slope(peaks)} |"
        )
    return [
        *lines,
        "",
        "\\* without standard errors (too many couplings for the default). † not converged in 200 passes.",
    ]


def mark(run: Found) -> str:
    return ("" if run["uncertainty"] else "*") + ("" if run["converged"] else "†")


def rate_table() -> list[str]:
    lines = [
        "## Arithmetic rate of one pass",
        "",
        "Filter, smoother and moments; operations counted as in `pass_flops` of this script (what the rows need; "
        "covariances and the second march of the recurrence not counted), over the measured time of a pass, all in.",
        "",
        "| M | P a unit | T | threads | GFLOP a pass | s a pass | GFLOP/s | matrix product, GFLOP/s | share |",
        "|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for threads in (None, 1):
        gemm = call(threads, "gemm")["gemm"]
        for M, T in ((4, 10_000), (4, 100_000), (16, 10_000), (16, 50_000)):
            got = call(threads, "pass", M, 4, 16, T)
            rate = got["flops"] / got["one"] / 1e9
            lines.append(
                f"| {M} | 4 | {T:,} | {threads or 'default'} | {got['flops'] / 1e9:.2f} | {got['one']:.3f} "
                f"| {rate:.1f} | {gemm:.0f} | {100 * rate / gemm:.0f} % |"
            )
    return lines


def main() -> None:
    begin, load = time.perf_counter(), os.getloadavg()[0]
    text = call(None, "gemm")["text"]
    import machine

    parts: list[str] = []
    for part in (peer_table, large_table, scaling_table, rate_table):  # written after each: the later ones take minutes
        parts += ["", *part()]
        heading = [
            "# Speed of maximum likelihood",
            "",
            f"{text}. Default threads: as many as cores. Load average before and after: {load:.1f}, "
            f"{os.getloadavg()[0]:.1f} (about 1: this run alone; more: others wanted the cores too, which stalls BLAS "
            f"threads). {time.perf_counter() - begin:.0f} s in all.",
        ]
        machine.write("likelihood", "\n".join(heading + parts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        which, *rest = json.loads(sys.argv[2])
        print(json.dumps(WORKERS[which](*rest)))
    else:
        main()
