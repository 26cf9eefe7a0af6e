"""Checks logits, loss and every gradient of our GPT-2 and Llama models against PyTorch on the same weights.

    compare_torch.py DUMP_PROGRAM

Every tensor must agree to 1e-5 of its norm in f32. Then some steps of AdamW, with clipping and decay, in f32 and bf16:
losses, gradient norms, and how far the optimizer moved every weight, against PyTorch in double precision on weights
that are rounded as ours are. Exits 77 (skipped) where PyTorch is missing.
"""
import math
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOLERANCE = 1e-5
# Half an epsilon for every rounding on the way through three layers and back, about a dozen in each direction, as of a
# random walk; twice that.
ROUNDINGS = 3 * 2 * 12
BF16_TOLERANCE = 2 * math.sqrt(ROUNDINGS) * 2.0**-9
HEADS = 12


def read_dump(path):
    """Name to tensor; those of one column are vectors."""
    tensors = {}
    with open(path, "rb") as file:
        while line := file.readline():
            name, rows, cols = line.split()
            data = numpy.frombuffer(file.read(4 * int(rows) * int(cols)), "<f4")
            tensors[name.decode()] = torch.tensor(data if cols == b"1" else data.reshape(int(rows), int(cols)))
    return tensors


def attention(q, k, v):
    """Causal attention over [batch, heads, time, dim]; k and v may have fewer heads."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, -math.inf), -1) @ v


def split_heads(x, heads):
    batch, time, width = x.shape
    return x.view(batch, time, heads, width // heads).transpose(1, 2)


def rotate(x, theta=10000.0):
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend(w, name, x, kv_heads, rope):
    qkv = F.linear(x, w[f"{name}.qkv.weight"], w.get(f"{name}.qkv.bias"))
    dim = x.shape[-1] // HEADS
    q, k, v = qkv.split([HEADS * dim, kv_heads * dim, kv_heads * dim], -1)
    q, k, v = split_heads(q, HEADS), split_heads(k, kv_heads), split_heads(v, kv_heads)
    if rope:
        q, k = rotate(q), rotate(k)
    out = attention(q, k, v).transpose(1, 2).reshape(x.shape)
    return F.linear(out, w[f"{name}.proj.weight"], w.get(f"{name}.proj.bias"))


def gpt2(w, ids):
    width = w["wte.weight"].shape[1]
    norm = lambda x, name: F.layer_norm(x, (width,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)
    x = w["wte.weight"][ids] + w["wte.position"][: ids.shape[1]]
    for i in range(3):
        x = x + attend(w, f"h.{i}.attention", norm(x, f"h.{i}.norm1"), HEADS, False)
        y = F.linear(norm(x, f"h.{i}.norm2"), w[f"h.{i}.mlp.up.weight"], w[f"h.{i}.mlp.up.bias"])
        y = F.gelu(y, approximate="tanh")
        x = x + F.linear(y, w[f"h.{i}.mlp.down.weight"], w[f"h.{i}.mlp.down.bias"])
    return norm(x, "norm") @ w["wte.weight"].T


def llama(w, ids):
    norm = lambda x, name: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[f"{name}.weight"]
    x = w["wte.weight"][ids]
    for i in range(3):
        x = x + attend(w, f"h.{i}.attention", norm(x, f"h.{i}.norm1"), 4, True)
        gate, up = F.linear(norm(x, f"h.{i}.norm2"), w[f"h.{i}.mlp.up.weight"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, w[f"h.{i}.mlp.down.weight"])
    return norm(x, "norm") @ w["head.weight"].T


MODELS = {"gpt2": gpt2, "llama": llama}


def differs(what, ours, theirs, tolerance=TOLERANCE):
    error = ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()
    if error <= tolerance:
        return 0, error
    print(f"  {what}: differs by {error:.3g} of its norm, at most {tolerance:.3g}")
    return 1, error


def run_ours(*arguments):
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([*arguments[:4], file.name, *arguments[4:]], check=True)
        return read_dump(file.name)


def forward(family, weights, ours):
    logits = MODELS[family](weights, ours["ids"].long())
    return logits, F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ours["targets"].long().reshape(-1))


def check(program, family, tp, sequence_parallel):
    ours = run_ours(program, family, str(tp), str(sequence_parallel))
    weights = {name: t.clone().requires_grad_() for name, t in ours.items() if f"grad:{name}" in ours}
    logits, loss = forward(family, weights, ours)
    loss.backward()
    results = [differs("logits", ours["logits"], logits.detach().reshape(ours["logits"].shape)),
               differs("loss", ours["loss"].reshape(()), loss.detach())]
    for name, weight in weights.items():
        results.append(differs(name, ours[f"grad:{name}"].reshape(weight.shape), weight.grad))
    wrong, worst = sum(r[0] for r in results), max(r[1] for r in results)
    print(f"{family} tp {tp} sequence parallelism {sequence_parallel}: {len(results)} tensors, worst {worst:.2g}, "
          f"{wrong} wrong")
    return wrong


def train(family, ours, dtype):
    """The same steps in double precision: losses and gradient norms, and the masters that they leave."""
    masters = {name: ours[name].double().requires_grad_() for name in ours if f"after:{name}" in ours}
    groups = [{"params": [m for m in masters.values() if (m.dim() == 2) == decays],
        "weight_decay": 0.1 if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-3)
    figures = []
    while f"step:{len(figures)}" in ours:
        weights = {name: master.detach().to(dtype).double().requires_grad_() for name, master in masters.items()}
        loss = forward(family, weights, ours)[1]
        loss.backward()
        norm = torch.stack([weight.grad.norm() for weight in weights.values()]).norm()
        for name, master in masters.items():
            master.grad = weights[name].grad * min(1.0, 1.0 / norm.item())
        optimizer.step()
        figures.append(torch.tensor([loss.item(), norm.item()]))
    return figures, {name: master.detach() for name, master in masters.items()}


def check_training(program, family, dtype):
    """What is compared of a weight is its way from the first value to the last."""
    storage, tolerance = (torch.float32, TOLERANCE) if dtype == "f32" else (torch.bfloat16, BF16_TOLERANCE)
    ours, cut = run_ours(program, family, "1", "0", dtype), run_ours(program, family, "2", "1", dtype)
    figures, masters = train(family, ours, storage)
    results = [differs(f"loss and norm of step {i}", ours[f"step:{i}"], figure, tolerance)
               for i, figure in enumerate(figures)]
    for name, master in masters.items():
        way = master - ours[name].double()
        # Each step rounds the master to f32, which is far larger than its way.
        stored = len(figures) * 2.0**-24 * (master.norm() / way.norm()).item()
        results.append(differs(name, ours[f"master:{name}"].double() - ours[name].double(), way, tolerance + stored))
        rounded = ours[f"master:{name}"].to(storage).float()
        same = torch.equal(rounded, ours[f"after:{name}"]) and torch.equal(rounded, cut[f"after:{name}"])
        results.append((0 if same else 1, 0.0))
        if not same:
            print(f"  {name}: is not its rounded master, or not the same on two ranks")
    wrong, worst = sum(r[0] for r in results), max(r[1] for r in results)
    print(f"{family} {dtype}, {len(figures)} steps: {len(results)} comparisons, worst {worst:.2g}, {wrong} wrong")
    return wrong


def main():
    torch.set_num_threads(1)
    wrong = sum(check(sys.argv[1], family, tp, sp) for family in ("gpt2", "llama")
                for tp, sp in ((1, 0), (2, 1), (3, 0), (8, 1)))
    wrong += sum(check_training(sys.argv[1], family, dtype)
                 for family in ("gpt2", "llama") for dtype in ("f32", "bf16"))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
