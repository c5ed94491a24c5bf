"""How long an audit of a big dump takes and how much memory. Writes the dump first; prints one JSON object.

The comparison is a plain loop that only parses the same lines: what no reader can do without.
"""

import argparse
import json
import os
import platform
import random
import resource
import tempfile
import time
from pathlib import Path

from qae.audit import audit_paths


def write_dump(path: Path, size: int) -> None:
    """Rollouts of 8 completions a prompt, about 430 bytes each, with one broken line in a thousand steps."""
    rng = random.Random(0)
    words = "the a number we add then times is so wait equals carry digit sum product".split()
    texts = [" ".join(rng.choice(words) for _ in range(40)) for _ in range(5000)]
    step = 0
    with path.open("w") as file:
        while file.tell() < size:
            step += 1
            lines: list[str] = []
            for group in range(32):
                rate = rng.random()
                for _ in range(8):
                    outcome = float(rng.random() < rate)
                    record = {
                        "schema": 1, "step": step, "prompt_id": f"{step}-{group}", "group": group,
                        "prompt": f"what is 3*4+{group}?", "completion": rng.choice(texts), "tokens": 40,
                        "reward": outcome, "outcome": outcome, "regime": "hard", "truncated": False,
                    }  # fmt: skip
                    lines.append(json.dumps(record))
            if step % 1000 == 0:
                lines[0] = lines[0][:100]
            file.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump.jsonl"
        write_dump(path, options.megabytes * 1_000_000)
        start, cpu = time.perf_counter(), time.process_time()
        found = audit_paths([path])
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.process_time()
        with path.open() as file:
            for line in file:
                try:
                    json.loads(line)
                except ValueError:
                    continue
        parse_seconds = time.process_time() - start
    result = {
        "benchmark": "audit",
        "megabytes": options.megabytes,
        "completions": found["rows"],
        "broken_lines": found["broken"],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "cpu_seconds_of_parsing_alone": round(parse_seconds, 1),
        "memory_peak_mb": round(memory),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
