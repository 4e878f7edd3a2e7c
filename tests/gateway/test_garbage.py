"""The cycle collector of a serving process leaves alone what was loaded, and still frees what is garbage."""

import subprocess
import sys

SCRIPT = """
import gc, os
from gateway.garbage import collector_tune
collector_tune()
assert gc.get_freeze_count() > 1_000 and gc.isenabled()
full = gc.get_stats()[2]["collections"]
class Node:
    pass
def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
before = resident_mib()
for _ in range(500_000):
    node = Node()
    node.itself = node
print(resident_mib() - before < 64, gc.get_stats()[2]["collections"] - full)
"""


def test_garbage_is_freed_in_time_without_a_look_at_everything() -> None:
    answer = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("True 0\n", "")
