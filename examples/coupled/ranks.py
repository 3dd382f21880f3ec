"""Start so many processes of a script, each with its rank: what ``mpiexec -n 4 python ocean.py`` does where there is an MPI."""

import os
import subprocess
import sys
import time

size, script = int(sys.argv[1]), sys.argv[2:]
processes = [
    subprocess.Popen(
        [sys.executable, *script], env={**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
    )
    for rank in range(size)
]
while any(process.poll() is None for process in processes):
    if any(process.poll() for process in processes):
        # One has failed: the others would wait for it.
        for process in processes:
            process.terminate()
    time.sleep(0.05)
sys.exit(max(abs(process.wait()) for process in processes))
