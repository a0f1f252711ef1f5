"""Figures and tables of docs/theory/paper.md: ``python docs/theory/make_figures.py`` (about a minute).

Every number in that page is printed here, with the settings it belongs to.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import counterflow as cf
from counterflow.paper.augmented import ClientData
from counterflow.paper.experiments.conditions import slowed
from counterflow.paper.experiments.effects import cosine, pairs
from counterflow.paper.experiments.effects import coupling_error as error
from counterflow.plant import excitation

FIGURES = Path(__file__).parent / "figures"
T = 5000
WEIGHTS = (0.0, 0.1, 1.0, 10.0, 100.0, 1e4, 1e6)
# Okabe and Ito's palette, told apart with any colour vision; marks and line styles differ too
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
norm = np.linalg.norm

plt.rcParams.update({
    "figure.dpi": 110, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "axes.titlesize": 9.5, "lines.linewidth": 1.6,
})  # fmt: skip


def recorded(outputs: int, seed: int, *, mean=0.0, pole=0.0, slow=False, weak=False, steps: int = T):
    """A plant and a recording; the recording's seed is 100 + the plant's."""
    plant = cf.random_plant(outputs=outputs, rng=seed)
    if slow:
        plant = slowed(plant, seed)
    if weak:
        plant = weakened(plant)
    if pole:
        inputs = excitation.autoregressive(plant, steps, rng=100 + seed, pole=pole)
    else:
        inputs = excitation.white(plant, steps, rng=100 + seed, mean=mean)
    return plant, plant.simulate(steps, rng=100 + seed, inputs=inputs)


def penalty(recording: cf.Recording, plant: cf.Plant, xi: float, **options) -> cf.Fit:
    return cf.fit(recording, plant.locals(), method="penalty", xi=xi, **options)


def weakened(plant: cf.Plant) -> cf.Plant:
    """The same plant with every B_mn a third of what it was."""
    B = np.array(plant.B)
    for m, n in pairs(plant):
        B[plant.state_slice(m), plant.input_slice(n)] /= 3
    return plant.replace(B=B)


def theta_norm(fit: cf.Fit) -> float:
    return float(np.sqrt(sum(np.sum(part.theta**2) for part in fit.parts.values())))


def ratios(fit: cf.Fit) -> list[float]:
    history = fit.history
    return [float(history.client_loss[n][-1] / history.proprietary_loss[n][-1]) for n in fit.names]


def table(title: str, head: list[str], rows: list[list[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(cell if isinstance(cell, str) else f'{cell:.3g}' for cell in row)} |")


# ---- one unit's stationary point, densely, and with gamma_1 = 0, which the conjugate solver does not offer


def moments(plant: cf.Plant, recording: cf.Recording, fit: cf.Fit, name: str, gamma_1: float, xi: float) -> dict:
    """What the statements speak of, for unit ``name``, at the point where the update stands still."""
    data = {n: ClientData.from_rows(*fit.parts[n].estimates(recording[n].y, recording[n].u)) for n in plant.names}
    own, others = data[name], [n for n in plant.names if n != name]
    model = plant.local(name)
    H, U = np.hstack([data[n].refined for n in others]), np.hstack([data[n].inputs for n in others])
    steps, size = own.steps, model.states
    base = own.refined @ model.A.T + own.inputs @ model.B.T
    target = own.measured - base @ model.C.T

    # p = (vec theta, phi, vec Â, vec B̂), row by row; S = [y[t-1], 1, ĥ_n, u_n] holds every column that is needed
    S = np.hstack([own.previous, np.ones((steps, 1)), H, U])
    widths = [own.previous.shape[1], 1, H.shape[1], U.shape[1]]
    gram, right = S.T @ S / steps, S.T @ target / steps
    eye, zero = np.eye(size), np.zeros((size, size))
    factors = {"own": [model.C @ model.A, model.C, 0 * model.C, 0 * model.C], "residual": [model.A, eye, -eye, -eye],
               "D": [model.A, zero, -eye, zero]}  # fmt: skip
    cuts = np.cumsum([0, *widths])

    def normal(kind: str, weights: list[float]) -> np.ndarray:
        blocks = [
            [weights[i] * np.kron(a.T @ b, gram[cuts[i] : cuts[i + 1], cuts[j] : cuts[j + 1]])
             for j, b in enumerate(factors[kind])]
            for i, a in enumerate(factors[kind])
        ]  # fmt: skip
        return np.block(blocks)

    pull = [1.0, gamma_1, 0.0, 0.0]
    matrix = normal("own", pull) + normal("residual", [1.0] * 4) + xi * normal("D", [1.0] * 4)
    vector = np.concatenate([
        pull[i] * (a.T @ right[cuts[i] : cuts[i + 1]].T).ravel() for i, a in enumerate(factors["own"])
    ])  # fmt: skip
    p = np.split(np.linalg.solve(matrix, vector), np.cumsum([size * w for w in widths])[:-1])
    theta, phi, A, B = p[0].reshape(size, -1), p[1], p[2].reshape(size, -1), p[3].reshape(size, -1)
    z, x = own.previous @ (model.A @ theta).T, H @ A.T
    D = z - x
    r_s, r_a = D + phi - U @ B.T, target - (z + phi) @ model.C.T

    def equations(r: np.ndarray) -> tuple[float, float]:
        return float(norm((model.C @ model.A).T @ r.T @ own.previous) / steps), float(norm(model.C.T @ r.mean(0)))

    Z = np.hstack([own.previous, *(data[n].inputs for n in plant.names), own.refined])
    second, mean_z = Z.T @ Z / steps, Z.mean(axis=0)
    weighted = np.linalg.solve(second, mean_z)
    e = (D + phi - U @ B.T) @ model.C.T
    mu = U.mean(axis=0)
    return {
        "z": norm(z.mean(0)), "x": norm(x.mean(0)), "gap": norm(D.mean(0)), "step": norm((r_s + xi * D).mean(0)),
        "phi": norm(phi), "Bu": norm(B @ mu), "delta_d": norm(phi - B @ mu), "theta": norm(theta), "A": norm(A),
        "closed": norm(phi) / (1 + mu @ np.linalg.solve(np.cov(U.T, bias=True), mu)),
        "lemma": equations(r_a), "lemma_start": equations(target),
        "left": own.measured.T @ Z @ weighted / steps - (own.measured - r_a).mean(0),
        "right": e.T @ Z @ weighted / steps,
        "cross": r_a.T @ U / steps,
    }  # fmt: skip


# ---- tables


def recovery_table() -> None:
    for outputs, seed in ((2, 0), (8, 1)):
        rows = []
        plant, recording = recorded(outputs, seed)
        for xi in WEIGHTS:
            fit = penalty(recording, plant, xi=xi)
            rows.append([f"{xi:g}", error(fit.plant, plant, "A"), error(fit.plant, plant, "B"),
                         fit.history.disentanglement[-1], theta_norm(fit), ", ".join(f"{r:.3f}" for r in ratios(fit)),
                         str(fit.status.rounds)])  # fmt: skip
        fit = cf.fit(recording, plant.locals(), method="fedgc")
        rows.append(["FedGC, 0", error(fit.plant, plant, "A"), error(fit.plant, plant, "B"),
                     fit.history.disentanglement[-1], theta_norm(fit), ", ".join(f"{r:.3f}" for r in ratios(fit)),
                     str(fit.status.rounds)])  # fmt: skip
        head = ["ξ", "error of Â", "error of B̂", "mean of D²", "norm of θ", "L_a / proprietary, by unit", "rounds"]
        table(f"Recovery: random_plant(outputs={outputs}, rng={seed}), T={T}, white inputs", head, rows)


def coloured_table() -> None:
    rows = []
    settings = {
        "white": {}, "AR(0.9)": {"pole": 0.9}, "AR(0.9), slow plants": {"pole": 0.9, "slow": True},
        "AR(0.9), B_mn a third": {"pole": 0.9, "weak": True},
        "AR(0.9), slow plants, B_mn a third": {"pole": 0.9, "slow": True, "weak": True},
    }  # fmt: skip
    for label, setting in settings.items():
        cases = [recorded(8, seed, **setting) for seed in range(20)]
        for xi in (0.0, 0.1, 1.0, 10.0, 100.0, 1e6, "sufficient"):
            if isinstance(xi, str):  # the default method, on the same recordings
                found = [cf.fit(r, p.locals(), method=xi, uncertainty=False).plant for p, r in cases]
            else:
                found = [penalty(r, p, xi=xi).plant for p, r in cases]
            errors = [error(f, p, "B") for f, (p, _) in zip(found, cases, strict=True)]
            cosines = [cosine(f, p) for f, (p, _) in zip(found, cases, strict=True)]
            below, above = (f"{np.mean(mask):.0%}" for mask in (np.array(errors) < 0.97, np.array(errors) > 1))
            rows.append([label, xi if isinstance(xi, str) else f"{xi:g}", *np.quantile(errors, [0, 0.25, 0.5, 0.75, 1]),
                         below, above, np.median(cosines), f"{np.mean(np.array(cosines) < 0):.0%}"])  # fmt: skip
    head = ["inputs and plants", "ξ", "least", "25 %", "median", "75 %", "largest", "below 0.97", "above 1",
            "median cosine", "negative"]  # fmt: skip
    table(f"Error of B̂ over 20 plants: random_plant(outputs=8, rng=0..19), T={T}", head, rows)


def more_data_table() -> None:
    rows = []
    for seed in range(5):
        cases = [recorded(8, seed, pole=0.9, steps=steps) for steps in (T, 16 * T)]
        rows.append([f"{seed}", *(error(penalty(r, p, xi=0.1).plant, p, "B") for p, r in cases)])
    table("Error of B̂, AR(0.9), ξ=0.1, random_plant(outputs=8)", ["rng", f"T={T}", f"T={16 * T}"], rows)


def statement_tables() -> None:
    disentangled, offsets, lemma, oracle = [], [], [], []
    for outputs, seed in ((2, 0), (8, 1)):
        for mean in (0.0, 1.0):
            plant, recording = recorded(outputs, seed, mean=mean)
            fit = penalty(recording, plant, xi=1.0)  # for the units' estimates
            for name in plant.names:
                label = f"D={outputs}, {name}"
                for xi in (1.0, 10.0, 100.0, 1e4, 1e6):
                    m = moments(plant, recording, fit, name, 1.0, xi)
                    if mean:
                        disentangled.append([label, f"{xi:g}", m["z"], m["x"], m["gap"], m["gap"] / m["z"], m["step"]])
                    if xi in (1.0, 10.0, 1e6):
                        relative = m["lemma"][0] / m["lemma_start"][0]
                        lemma.append([label, f"{mean:g}", f"{xi:g}", relative, m["lemma"][1]])
                    if xi in (10.0, 1e6):
                        oracle.append([label, f"{mean:g}", f"{xi:g}", norm(m["left"]), norm(m["right"]),
                                       norm(m["left"] - m["right"])])  # fmt: skip
                    if mean and xi in (10.0, 1e4, 1e6):
                        alone = moments(plant, recording, fit, name, 0.0, xi)
                        offsets.append([label, f"{xi:g}", m["phi"], m["Bu"], m["delta_d"], m["closed"],
                                        alone["phi"], alone["Bu"], alone["delta_d"]])  # fmt: skip
    head = ["unit", "ξ", "mean A θ y", "mean Σ Â ĥ", "gap", "gap / left side", "mean of r_s + ξD"]
    table(f"Theorem 6.1, white inputs of mean 1, T={T}", head, disentangled)
    head = ["unit", "ξ", "φ", "mean Σ B̂u", "δ_d", "φ/(1+μᵀΣ⁻¹μ)"]
    head += ["γ₁=0: φ", "γ₁=0: mean Σ B̂u", "γ₁=0: δ_d"]
    table(f"Corollary 6.2, white inputs of mean 1, T={T}", head, offsets)
    table(f"Lemma 8.2 at the combined stationary point, T={T}",
          ["unit", "mean of u", "ξ", "first equation, relative to θ=φ=0", "second equation"], lemma)  # fmt: skip
    table(f"Theorem 8.3, T={T}", ["unit", "mean of u", "ξ", "left side", "right side", "left - right"], oracle)


def oracle_replicates() -> None:
    """Theorem 8.3 and its circular step over independent recordings, in standard errors."""
    for outputs in (2, 4):
        oracle_replicates_of(cf.random_plant(outputs=outputs, rng=0), outputs)


def oracle_replicates_of(plant: cf.Plant, outputs: int) -> None:
    runs, steps = 60, 1000
    rows = []
    for mean in (0.0, 1.0):
        found: dict[str, list[dict]] = {n: [] for n in plant.names}
        for run in range(runs):
            inputs = excitation.white(plant, steps, rng=2000 + run, mean=mean)
            recording = plant.simulate(steps, rng=2000 + run, inputs=inputs)
            fit = penalty(recording, plant, xi=1.0)
            for n in plant.names:
                found[n].append(moments(plant, recording, fit, n, 1.0, 1e6))
        for n, other in pairs(plant):
            left, right = (np.array([m[k] for m in found[n]]) for k in ("left", "right"))

            def score(draws: np.ndarray) -> float:
                return float(np.abs(draws.mean(0) / draws.std(0, ddof=1) * np.sqrt(runs)).max())

            cross = np.array([m["cross"] for m in found[n]])
            effect = plant.block("C", n) @ plant.block("B", n, other)
            white = [score(cross), score(cross - effect)] if mean == 0 else ["", ""]
            rows.append([n, f"{mean:g}", norm(left.mean(0)), norm(right.mean(0)), norm((left - right).mean(0)),
                         score(left), score(left - right), *white])  # fmt: skip
    head = ["unit", "mean of u", "left", "right", "left - right", "left (s.e.)", "left - right (s.e.)",
            "E[r_a u_nᵀ] (s.e.)", "E[r_a u_nᵀ] - C B_mn (s.e.)"]  # fmt: skip
    table(f"Theorem 8.3, {runs} recordings of random_plant(outputs={outputs}, rng=0), T={steps}, ξ=1e6", head, rows)


def held_out_table() -> None:
    rows, models = [], ("proprietary", "augmented", "server", "oracle")
    for outputs, seed in ((2, 0), (8, 1)):
        plant, recording = recorded(outputs, seed)
        fresh = plant.simulate(T, rng=900 + seed)
        default = cf.fit(recording, plant.locals(), uncertainty=False)
        for xi in (0.1, 10.0, 1e6):
            fit = penalty(recording, plant, xi=xi)
            mean = fit.validate(fresh, oracle=plant).mean()
            # one Kalman filter of all units on the default method's couplings, which is what its server can run
            filtered = fit.validate(fresh, oracle=plant.replace(A=default.plant.A, B=default.plant.B)).mean()["oracle"]
            for name in plant.names:
                rows.append([f"D={outputs}, {name}", f"{xi:g}", *(mean[k][name] for k in models), filtered[name]])
    head = ["unit", "ξ", *models, "default method"]
    table(f"Mean squared one-step error on a fresh recording, T={T}, white inputs", head, rows)


def rounds_table() -> None:
    rows = []
    plant, recording = recorded(8, 1)
    for xi in (0.1, 10.0, 1e4):
        best = penalty(recording, plant, xi=xi, tol=1e-10)
        slow = penalty(recording, plant, xi=xi, solver="gradient", rounds=20000)
        gap = max(norm(slow.parts[n].theta - best.parts[n].theta) / norm(best.parts[n].theta) for n in plant.names)
        conjugate = penalty(recording, plant, xi=xi)
        rows.append([f"{xi:g}", str(conjugate.status.rounds), str(slow.status.rounds), slow.status.gradient, gap])
    head = ["ξ", "rounds, conjugate", "rounds, gradient", "relative gradient at its end", "its distance in θ"]
    table(f"Rounds: random_plant(outputs=8, rng=1), T={T}, white inputs, tol=1e-8", head, rows)


# ---- figures


def save(figure: plt.Figure, name: str) -> None:
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / name, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def effects_figure() -> None:
    weights, colours, marks = (0.1, 10.0, 1e6), (BLUE, ORANGE, GREEN), ("o", "s", "^")
    figure, axes = plt.subplots(1, 2, figsize=(7.8, 4.0), sharex=True, sharey=True)
    for axis, pole, title in ((axes[0], 0.0, "white inputs"), (axes[1], 0.9, "AR(0.9) inputs")):
        axis.axline((0, 0), slope=1, color=GREY, lw=1, zorder=0)
        axis.axhline(0, color=GREY, lw=0.6, ls=":", zorder=0)
        for xi, colour, mark in zip(weights, colours, marks, strict=True):
            true, found = [], []
            for seed in range(6):
                plant, recording = recorded(8, seed, pole=pole)
                estimate = penalty(recording, plant, xi=xi).plant
                for pair in pairs(plant):
                    C = plant.block("C", pair[0])
                    true.append((C @ plant.block("B", *pair)).ravel())
                    found.append((C @ estimate.block("B", *pair)).ravel())
            axis.plot(np.concatenate(true), np.concatenate(found), mark, ms=4.2, color=colour, alpha=0.6, mew=0,
                      label=f"ξ = {xi:g}")  # fmt: skip
        axis.set(title=title, xlabel="true one-step effect, entries of $C_{mm}B_{mn}$")
        axis.set_aspect("equal")
    axes[0].set_ylabel("estimated, $C_{mm}\\hat{B}_{mn}$")
    axes[0].text(1.86, 1.98, "exact recovery", color=GREY, fontsize=8, rotation=45, ha="center", va="bottom",
                 rotation_mode="anchor")  # fmt: skip
    axes[0].legend(loc="lower right", markerscale=1.8, handletextpad=0.2)
    limit = 3.3
    axes[0].set(xlim=(-limit, limit), ylim=(-limit, limit))
    save(figure, "effects.png")


def weights_figure() -> None:
    grid = np.logspace(-1, 6, 22)
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.1))
    for seed in range(8):
        plant, recording = recorded(8, seed, pole=0.9)
        errors = [error(penalty(recording, plant, xi=float(xi)).plant, plant, "B") for xi in grid[::3]]
        label = "B̂, AR(0.9), 8 plants" if seed == 0 else ""
        axes[0].plot(grid[::3], errors, "--", color=ORANGE, lw=0.8, alpha=0.6, label=label)
    for pole, style, label in ((0.0, "-", "white"), (0.9, "--", "AR(0.9)")):
        plant, recording = recorded(8, 1, pole=pole)
        fits = [penalty(recording, plant, xi=float(xi)) for xi in grid]
        axes[0].plot(grid, [error(f.plant, plant, "A") for f in fits], style, color=BLUE, label=f"Â, {label}")
        if not pole:
            axes[0].plot(grid, [error(f.plant, plant, "B") for f in fits], style, color=ORANGE, label=f"B̂, {label}")
        entangled = [np.sqrt(f.history.disentanglement[-1]) for f in fits]
        axes[1].plot(grid, entangled, style, color=GREEN, label=f"root mean square D, {label}")
        axes[1].plot(grid, [theta_norm(f) for f in fits], style, color=PURPLE, label=f"norm of θ, {label}")
        for m, colour in enumerate((BLUE, ORANGE)):
            axes[2].plot(grid, [ratios(f)[m] for f in fits], style, color=colour, label=f"unit {m + 1}, {label}")
    axes[0].set(title="relative error of the couplings", ylim=(0, 1.3), xlabel="ξ")
    axes[0].axhline(1, color=GREY, lw=0.6, ls=":")
    axes[1].set(title="entanglement and augmentation", yscale="log", xlabel="ξ")
    axes[2].set(title="augmented / proprietary loss", ylim=(0.4, 1.02), xlabel="ξ")
    for axis, place in zip(axes, ("lower right", "lower left", "lower right"), strict=True):
        axis.set_xscale("log")
        axis.legend(loc=place, fontsize=7)
    figure.tight_layout()
    save(figure, "weights.png")


def rounds_figure() -> None:
    plant, recording = recorded(2, 0)
    rounds, warm = 600, 200
    runs = {
        "penalty, ξ = 10": ({"method": "penalty", "solver": "gradient", "xi": 10.0, "rounds": rounds}, BLUE, "-"),
        "augmented Lagrangian, ρ = 10": ({"method": "lagrangian", "rho": 10.0, "rounds": rounds}, ORANGE, "--"),
        "hybrid, switch at 200": ({"method": "hybrid", "solver": "gradient", "xi": 10.0, "rho": 10.0,
                                   "warm_rounds": warm, "rounds": rounds - warm}, GREEN, "-."),
    }  # fmt: skip
    figure, axes = plt.subplots(1, 4, figsize=(11.4, 2.9))
    for label, (options, colour, style) in runs.items():
        history = cf.fit(recording, plant.locals(), seed=3, **options).history
        at = np.arange(1, len(history) + 1)
        total = history.residual_loss + 10.0 * history.disentanglement + sum(history.client_loss.values())
        axes[0].plot(at, total, style, color=colour, label=label)
        axes[1].plot(at, history.disentanglement, style, color=colour)
        for axis, name in zip(axes[2:], plant.names, strict=True):
            axis.plot(at, history.client_loss[name] / history.proprietary_loss[name], style, color=colour)
    axes[0].set(title="$L_s + L_a$ of both units, ξ = 10")
    axes[1].set(title="entanglement, mean $|D|^2$", yscale="log")
    for axis, name in zip(axes[2:], plant.names, strict=True):
        axis.axhline(1, color=GREY, lw=0.8, ls=":")
        axis.set(title=f"{name}: augmented / proprietary loss", ylim=(0.5, 1.25))
    for axis in axes:
        axis.set(xscale="log", xlabel="round")
    figure.legend(loc="upper center", ncol=3, bbox_to_anchor=(0.5, 1.07))
    figure.tight_layout()
    save(figure, "rounds.png")


def main() -> None:
    effects_figure()
    weights_figure()
    rounds_figure()
    recovery_table()
    coloured_table()
    more_data_table()
    statement_tables()
    oracle_replicates()
    held_out_table()
    rounds_table()


if __name__ == "__main__":
    main()
