"""A result such as the simulator gives, with a value in every field: for tests of what is made of it."""

from math import sin
from random import Random

from fleetsim.report.result import (
    Check,
    Counts,
    LevelChange,
    Plot,
    PromptBand,
    Result,
    Series,
    TenantService,
    Variant,
    percentiles,
)

STEPS = 120


def sample_result(seed: int = 7, tenants: int = 11) -> Result:
    rng = Random(seed)

    def milliseconds(median: float, count: int = 500):
        return percentiles([rng.lognormvariate(0, 0.6) * median for _ in range(count)])

    def wave(name: str, middle: float, swing: float) -> Series:
        return Series(
            name, tuple(max(0.0, middle + swing * sin(i / 9) + rng.gauss(0, swing / 4)) for i in range(STEPS))
        )

    names = ["noisy", *(f"chat-{number:02}" for number in range(tenants - 1))]
    bands = ((16, 255), (256, 1023), (1024, 4095), (4096, 8192))
    return Result(
        scenario="noisy-neighbour",
        title="Noisy neighbour: 10,000 long generations at once",
        seed=seed,
        replica_model="spec",
        replicas=8,
        simulated_s=120.0,
        wall_s=14.2,
        ttft_ms=milliseconds(186),
        itl_ms=milliseconds(24, 5000),
        added_ttft_ms=milliseconds(26),
        added_over="the same arrivals without the noise",
        output_tokens_per_s=17_412.0,
        utilisation=0.968,
        usd_per_million=2.04,
        events_sha256="9f" * 32,
        counts=Counts(11_204, 3_020, 7, 2, 1, 8_174, 5_604_112, 1_204_224, 2_089_440),
        bands=tuple(PromptBand(a, b, milliseconds(40 + b / 9), milliseconds(23)) for a, b in bands),
        tenants=tuple(
            TenantService(
                name,
                1.0,
                name == "noisy",
                310,
                300,
                1,
                190_000,
                (0.55 if name == "noisy" else 0.45 / (tenants - 1)),
                milliseconds(180),
            )
            for name in names
        ),
        plots=(
            Plot("ttft_ms", "ms", 1.0, (wave("p50", 180, 30), wave("p95", 430, 90))),
            Plot("queue_depth", "", 1.0, (wave("interactive", 6, 5), wave("batch", 40, 20))),
            Plot("arrivals_per_s", "", 1.0, (wave("arrived", 22, 4), wave("refused", 1, 1))),
            Plot("tokens_per_s", "", 1.0, (wave("output", 17_000, 900), wave("prompt", 20_000, 4000))),
            Plot(
                "tenant_tokens_per_s",
                "",
                1.0,
                tuple(wave(name, 1200 - 90 * i, 60) for i, name in enumerate(names)),
            ),
            Plot("utilisation", "share", 1.0, (wave("all", 0.9, 0.08),)),
            Plot("usd_per_million", "USD", 1.0, (wave("all", 2.1, 0.3),)),
        ),
        levels=(
            LevelChange(21.0, 0, 1, "wait is 0.42 of the deadline"),
            LevelChange(26.5, 1, 2, "wait is 0.61 of the deadline"),
            LevelChange(90.0, 2, 0, "wait below half for 60 s"),
        ),
        checks=(
            Check("Added first token, p50", 26.0, "≤", 50.0, "ms", holds=True),
            Check("Added first token, p95", 91.0, "≤", 150.0, "ms", holds=True),
            Check("Noisy tenant's output a replica", 871.0, ">", 900.0, "tokens/s", holds=False),
        ),
        variants=(
            Variant(
                "first come, first served",
                *(0, 3_020),
                *(percentiles([]), percentiles([]), milliseconds(39)),
                *(15_204.0, 0.91, 2.34, 0.21),
            ),
            Variant(
                "virtual token counter",
                *(2_410, 3_020),
                *(milliseconds(747), milliseconds(580), milliseconds(38)),
                *(16_180.0, 0.94, 2.2, 0.21),
            ),
        ),
    )
