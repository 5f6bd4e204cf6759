# SPDX-License-Identifier: Apache-2.0
"""Training steps of zerobox on one host device, and of the same model by PyTorch on the same CPU and threads.

Both take turns, so that a machine whose clock wanders is the same to both; figures are medians of the rounds. With
`--compile` PyTorch compiles the model (torch.compile), which takes minutes. Run by `make bench-pytorch`.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# name, model, sequences a step, steps to measure
CASES = [
    ("tiny: L4 C128 T128 B16", dict(n_layer=4, n_head=4, n_embd=128, seq_len=128, vocab_size=256), 16, 20),
    ("L6 C384 T256 B8", dict(n_layer=6, n_head=6, n_embd=384, seq_len=256, vocab_size=256), 8, 8),
    ("GPT-2 124M T256 B4", dict(n_layer=12, n_head=12, n_embd=768, seq_len=256, vocab_size=50257), 4, 3),
]
WARM_UP = 2


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {result.returncode}\n{result.stderr}")
    return result.stdout


def flags(values):
    return [f"--{name}={value}" for name, value in values.items()]


def zerobox(program, data, threads, dtype, model, batch, steps):
    out = data.parent / "run"
    run([program, "train", "--device=host", "--devices=1", f"--threads={threads}", f"--dtype={dtype}",
         f"--micro_batch={batch}", f"--steps={WARM_UP + steps}", "--eval_interval=0", "--sample_bytes=0", "--trace=off",
         f"--data={data}", f"--out={out}", *flags(model)])
    lines = (out / "metrics.jsonl").read_text().splitlines()
    speeds = [json.loads(line)["tokens_per_second"] for line in lines]
    shutil.rmtree(out)
    return statistics.median(speeds[WARM_UP:])


def pytorch(compile_it, threads, dtype, model, batch, steps):
    lines = run([sys.executable, str(HERE / "gpu_check/pytorch.py"), "--device=cpu", f"--threads={threads}",
                 f"--dtype={dtype}", f"--micro_batch={batch}", f"--warm_up={WARM_UP}", f"--steps={steps}",
                 *([] if compile_it else ["--nocompile"]), *flags(model)]).splitlines()
    values = dict(line.split(" ", 1) for line in lines if " " in line)
    return float(values["tokens_per_second"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/zerobox")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    config = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"bench-pytorch: {sys.executable} has no PyTorch; give it one in an environment of its own:\n"
                 "  python3 -m venv build/torch && build/torch/bin/pip install torch numpy\n"
                 "  make bench-pytorch PYTHON=build/torch/bin/python")
    print(f"Tokens a second on {config.threads} threads, median of {config.rounds} rounds")
    print(f"  {'':24}{'':6}{'zerobox':>10}{'PyTorch':>10}{'ratio':>8}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        data = pathlib.Path(name) / "data"
        data.write_bytes(bytes(i * i // 7 % 256 for i in range(1 << 18)))
        for case, model, batch, steps in CASES:
            for dtype in ("fp32", "bf16"):
                rounds = []
                for _ in range(config.rounds):
                    work = (config.threads, dtype, model, batch, steps)
                    rounds.append((zerobox(config.program, data, *work), pytorch(config.compile, *work)))
                ours, theirs = (statistics.median(column) for column in zip(*rounds))
                ratio = statistics.median(a / b for a, b in rounds)
                print(f"  {case:24}{dtype:6}{ours:10.0f}{theirs:10.0f}{ratio:7.2f}x", flush=True)


main()
