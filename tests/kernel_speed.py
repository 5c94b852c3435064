"""What a whole pass costs on each kernel, in turns: `python tests/kernel_speed.py MODEL [--kernels off,avx2] [--past 64]`.

MODEL is a folder with 4- or 8-bit weights. Every round measures every width with every kernel, so that a machine that
drifts drifts for all. The tables hold medians and, where others use the machine too, the least times; beside them how much
faster than ONNX Runtime's kernels (`off`) each is. Those take the best of this processor, whatever ours are told to take.
At the end: how fast one row reads the weights, beside a plain loop over memory in the same run.
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.kernels import SETTING, usable_sets
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.tui.bench.machine import physical_cores, processor_name

WIDTHS = (1, 2, 3, 4, 6, 8, 16, 32)
Costs = dict[str, dict[int, list[float]]]


def open_each(model: Path, settings: list[str], threads: int, capacity: int) -> dict[str, Decoder]:
    """A decoder for each setting; prints how long it took to open."""
    found = {}
    for setting in settings:
        os.environ[SETTING] = setting
        start = time.perf_counter()
        found[setting] = Decoder.open(open_model(model), capacity=capacity, threads=threads)
        print(
            f"{setting:12} opened in {time.perf_counter() - start:5.2f} s, runs on {found[setting].kernels}"
        )
    return found


def measure(decoders: dict[str, Decoder], past: int, rounds: int) -> Costs:
    """Seconds of each pass, by setting and width."""
    costs: Costs = {setting: {width: [] for width in WIDTHS} for setting in decoders}
    for decoder in decoders.values():
        decoder.forward([token % 1000 for token in range(past)], keep=1)
    for _ in range(rounds):
        for width in WIDTHS:
            for setting, decoder in decoders.items():
                decoder.rollback(past)
                start = time.perf_counter()
                decoder.forward(list(range(100, 100 + width)))
                costs[setting][width].append(time.perf_counter() - start)
    return costs


def weight_bytes(model: Path) -> int:
    """What a pass reads at least: the packed weights of every MatMulNBits, without scales and zero points."""
    graph = onnx.load(open_model(model).graph, load_external_data=False).graph
    read = {name for node in graph.node if node.op_type == "MatMulNBits" for name in node.input[1:2]}
    sizes = (
        (np.prod(tensor.dims), onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
        for tensor in graph.initializer
        if tensor.name in read
    )
    return int(sum(count * size for count, size in sizes))


def read_speed(threads: int, megabytes: int = 512, rounds: int = 7) -> float:
    """GB/s of a loop that only reads, on all threads."""
    parts = [np.ones(megabytes << 17, np.uint64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            times.append(time.perf_counter() - start)
    return threads * megabytes * 1.048576e-3 / median(times)


def show(costs: Costs, label: str, of: Callable[[list[float]], float]) -> None:
    """One number of each list of times, and its ratio against ONNX Runtime's kernels."""
    print(f"\n{label + ' ms, S =':18}" + "".join(f"{width:8}" for width in WIDTHS))
    for setting, found in costs.items():
        print(f"{setting:18}" + "".join(f"{of(found[width]) * 1e3:8.2f}" for width in WIDTHS))
    for setting, found in costs.items():
        if setting != "off" and "off" in costs:
            ratios = (of(costs["off"][width]) / of(found[width]) for width in WIDTHS)
            print(f"{setting + ' is faster ×':18}" + "".join(f"{ratio:8.2f}" for ratio in ratios))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--kernels", default=",".join(["off", *usable_sets()[:-1]]), help="settings, comma-separated"
    )
    parser.add_argument("--past", type=int, default=64, help="tokens before the pass")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=physical_cores())
    args = parser.parse_args()
    decoders = open_each(args.model, args.kernels.split(","), args.threads, args.past + 128)
    print(
        f"{processor_name()}, {args.threads} threads, load average {os.getloadavg()[0]:.1f}, {args.past} tokens before"
    )
    costs = measure(decoders, args.past, args.rounds)
    show(costs, "median", median)
    show(costs, "least", min)
    weights, plain = weight_bytes(args.model), read_speed(args.threads)
    print(f"\none row reads {weights / 1e6:.0f} MB of weights; a plain loop reads {plain:.1f} GB/s")
    for setting, found in costs.items():
        speed = weights / median(found[1]) / 1e9
        print(f"{setting:18} {speed:5.1f} GB/s, {speed / plain:4.0%}, with all else that a pass does")


if __name__ == "__main__":
    main()
