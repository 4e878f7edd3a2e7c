"""The continuously batched engine. `engine.Engine` joins its parts.

On a CPU that other processes use too, OpenMP's default of spinning at barriers is ruinous: a spinning thread
waits for one that cannot run. Measured on 2 busy cores, 64 tokens of SmolLM2-135M took 3 s sleeping at
barriers and 13 to 35 s spinning. The runtime reads the setting when torch is loaded, hence here; what the
operator has set is kept.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
