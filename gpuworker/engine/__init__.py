"""The continuously batched engine. `engine.Engine` joins its parts.

On a CPU that other processes use too, OpenMP's default of spinning long at barriers is ruinous: a spinning
thread waits for one that cannot run. Measured on 2 busy cores with SmolLM2-135M, 8 streams: 276 tokens/s when
threads spin for 1,000 rounds and then sleep, 52 with the default, 177 when they sleep at once. The runtime
reads the setting when torch is loaded, hence here; what the operator has set is kept.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
