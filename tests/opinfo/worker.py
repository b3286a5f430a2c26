"""A worker process: checks the operators named on its standard input, one JSON line a request and an answer; of at most as many
structures of samples as its argument says."""

from __future__ import annotations

import json
import logging
import os
import sys
import time


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    logging.disable(logging.ERROR)
    import torch

    torch.set_num_threads(1)
    from tests.opinfo.check import check
    from tests.opinfo.samples import operators

    ops = operators()
    structures = int(sys.argv[1]) if len(sys.argv) > 1 else None
    for line in sys.stdin:
        name, dtype = json.loads(line)
        start = time.perf_counter()
        results = check(ops[name], dtype, structures)
        answers.write(json.dumps({"samples": results, "seconds": round(time.perf_counter() - start, 2)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
