# SPDX-License-Identifier: Apache-2.0
"""The speed of GPT-2's training step in PyTorch: torch.compile, scaled_dot_product_attention, fused AdamW.

Weights are fp32, and with `--dtype=bf16` computed with in bf16 (autocast), as is usual there. Prints lines
"name value"; where PyTorch or a GPU is missing, one line "skipped why". `--device=cpu` measures this machine's CPU.
"""
import argparse
import statistics
import sys
import time


def parse_flags():
    parser = argparse.ArgumentParser()
    for name, default in [("n_layer", 12), ("n_head", 12), ("n_embd", 768), ("seq_len", 1024), ("vocab_size", 50304),
                          ("micro_batch", 16), ("warm_up", 3), ("steps", 20)]:
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, help="of the CPU (default: as PyTorch decides)")
    parser.add_argument("--nocompile", action="store_true")
    return parser.parse_args()


def skip(why):
    print("skipped", why)
    sys.exit(0)


try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    skip(f"no PyTorch here ({error})")


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.n_embd
        self.heads = config.n_head
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, positions, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attention.transpose(1, 2).reshape(batch, positions, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Embedding(config.seq_len, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[:inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def synchronize(config):
    if config.device == "cuda":
        torch.cuda.synchronize()


def adamw(parameters):
    parameters = list(parameters)
    settings = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    try:
        return torch.optim.AdamW(parameters, **settings, fused=True)
    except RuntimeError:  # older versions have it for GPUs only
        return torch.optim.AdamW(parameters, **settings)


def measure(config, micro_batch):
    """Seconds of the median step."""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device(config.device):
        model = Gpt2(config)
        tokens = torch.randint(config.vocab_size, (micro_batch, config.seq_len + 1))
    optimizer = adamw(model.parameters())
    step = model if config.nocompile else torch.compile(model)
    times = []
    for _ in range(config.warm_up + config.steps):
        synchronize(config)
        begin = time.perf_counter()
        with torch.autocast(config.device, dtype=torch.bfloat16, enabled=config.dtype == "bf16"):
            loss = step(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize(config)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[config.warm_up:])


def main():
    config = parse_flags()
    if config.device == "cuda" and not torch.cuda.is_available():
        skip(f"torch {torch.__version__} sees no GPU")
    if config.threads:
        torch.set_num_threads(config.threads)
    micro_batch = config.micro_batch
    while True:
        try:
            seconds = measure(config, micro_batch)
            break
        except torch.cuda.OutOfMemoryError:
            if micro_batch == 1:
                skip("not even one sequence fits the GPU's memory")
        # Outside the handler, whose exception holds on to what the step had allocated.
        torch.cuda.empty_cache()
        micro_batch //= 2
    print("torch", torch.__version__)
    print("micro_batch", micro_batch)
    print("tokens_per_second", micro_batch * config.seq_len / seconds)
    print("peak_bytes", torch.cuda.max_memory_allocated() if config.device == "cuda" else 0)


main()
