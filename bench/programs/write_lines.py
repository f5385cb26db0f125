"""Write numbered lines as fast as possible, or `rate` per second, each with the time on the machine's monotonic clock."""

from __future__ import annotations

import sys
import time

count, rate = int(sys.argv[1]), float(sys.argv[2])
if not rate:
    for number in range(count):
        sys.stdout.write(f"step={number} loss=2.{number % 1000:03d} lr=0.0003 tokens/s=123456 memory=40.2GiB\n")
else:
    for number in range(count):
        sys.stdout.write(f"step={number} written={time.monotonic():.6f}\n")
        sys.stdout.flush()
        time.sleep(1 / rate)
