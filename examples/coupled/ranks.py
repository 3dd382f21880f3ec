"""Start so many processes of a script, each with its rank: what ``mpiexec -n 4 python ocean.py`` does where there is an MPI."""

import os
import subprocess
import sys

size, script = int(sys.argv[1]), sys.argv[2:]
processes = [
    subprocess.Popen(
        [sys.executable, *script], env={**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
    )
    for rank in range(size)
]
sys.exit(max(abs(process.wait()) for process in processes))
