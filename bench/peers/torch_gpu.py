"""Times in PyTorch what bench/gpu.sh has just measured with tp_bench, on the same GPU.

    torch_gpu.py FOLDER      (the folder with gemm.csv, norm.csv, attention.csv, block.csv, model.csv and their like)

Prints one CSV row for each of ours that has a counterpart: ours and PyTorch's microseconds, by events, medians.
PyTorch gets its own best ways: fused attention, fused AdamW, cuBLAS, the same storage types; f32 is TF32 on both sides
for files with tf32 in their names, and on neither else. Exits 77 (skipped) where PyTorch or a GPU is missing.
"""
import csv
import glob
import os
import re
import statistics
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SECONDS = 0.15


def read_rows(path):
    """Rows as dictionaries; units in brackets are cut from the names."""
    with open(path) as file:
        lines = [line for line in file if not line.startswith("#")]
    rows = list(csv.reader(lines))
    names = [re.sub(r" \(.*", "", name) for name in rows[0]]
    return [dict(zip(names, row)) for row in rows[1:]]


def command_of(path):
    """The words after "# tp_bench" in the first line."""
    with open(path) as file:
        return file.readline().split()[2:]


def option(words, name, default=None):
    return words[words.index(name) + 1] if name in words else default


def microseconds(fn):
    """Median of one call, by events: as many samples as fit into SECONDS, of as many calls as take a millisecond."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample(calls):
        begin.record()
        for _ in range(calls):
            fn()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / calls

    for _ in range(3):
        fn()
    one = max(sample(1), 1.0)
    calls = max(1, min(1000, int(1000 / one)))
    count = max(5, min(200, int(SECONDS * 1e6 / (one * calls))))
    return statistics.median(sample(calls) for _ in range(count))


def tensor(*shape, dtype):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).mul(0.1).to(dtype)


def emit(writer, what, shape, dtype, phase, ours, theirs):
    writer.writerow([what, shape, dtype, phase, f"{ours:.2f}", f"{theirs:.2f}"])
    sys.stdout.flush()


def compare_gemm(writer, path):
    for row in read_rows(path):
        if row["layer"] == "geometric mean" or not row["rate"]:
            continue
        rows, cols, inner = (int(x) for x in row["shape"].split("x"))
        dtype = DTYPES[row["dtype"]]
        a, b = tensor(rows, inner, dtype=dtype), tensor(cols, inner, dtype=dtype)
        if row["variant"] == "NN":
            b = tensor(inner, cols, dtype=dtype).t()
        elif row["variant"] == "TN":
            a, b = tensor(inner, rows, dtype=dtype).t(), tensor(inner, cols, dtype=dtype).t()
        ours = 2.0 * rows * cols * inner / (float(row["rate"]) * 1e9) * 1e6
        emit(writer, f"{os.path.basename(path)[:-4]} {row['variant']}", row["shape"], row["dtype"], "forward", ours,
            microseconds(lambda: a @ b.t()))


class Attention(torch.nn.Module):
    def __init__(self, hidden, heads, kv_heads, dim, bias, dtype):
        super().__init__()
        self.sizes = [heads * dim, kv_heads * dim, kv_heads * dim]
        self.dim = dim
        self.qkv = torch.nn.Linear(hidden, sum(self.sizes), bias=bias, device="cuda", dtype=dtype)
        self.out = torch.nn.Linear(heads * dim, hidden, bias=bias, device="cuda", dtype=dtype)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (-1, self.dim)).transpose(1, 2) for y in self.qkv(x).split(self.sizes, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
        return self.out(y.transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self, hidden, ffn, gated, dtype):
        super().__init__()
        self.gated = gated
        self.up = torch.nn.Linear(hidden, ffn * (2 if gated else 1), bias=not gated, device="cuda", dtype=dtype)
        self.down = torch.nn.Linear(ffn, hidden, bias=not gated, device="cuda", dtype=dtype)

    def forward(self, x):
        y = self.up(x)
        if self.gated:
            gate, y = y.chunk(2, -1)
            return self.down(F.silu(gate) * y)
        return self.down(F.gelu(y, approximate="tanh"))


def make_norm(hidden, rms, dtype):
    return (torch.nn.RMSNorm if rms else torch.nn.LayerNorm)(hidden, eps=1e-5, device="cuda", dtype=dtype)


class Block(torch.nn.Module):
    def __init__(self, shape, dtype):
        super().__init__()
        self.norm1, self.norm2 = (make_norm(shape["hidden"], shape["llama"], dtype) for _ in range(2))
        self.attention = Attention(shape["hidden"], shape["heads"], shape["kv_heads"], shape["dim"], not shape["llama"],
            dtype)
        self.mlp = Mlp(shape["hidden"], shape["ffn"], shape["llama"], dtype)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


SHAPES = {
    "gpt2": {"hidden": 768, "heads": 12, "kv_heads": 12, "dim": 64, "ffn": 3072, "llama": False, "layers": 12,
        "vocabulary": 50257},
    "llama3-8b": {"hidden": 4096, "heads": 32, "kv_heads": 8, "dim": 128, "ffn": 14336, "llama": True},
}


def compare_layer(writer, path, make):
    words = command_of(path)
    batch, sequence = int(option(words, "--batch", 4)), int(option(words, "--sequence", 128))
    for row in read_rows(path):
        if row["ranks"] != "1" or not row["forward"]:
            continue
        dtype = DTYPES[row["dtype"]]
        layer, hidden = make(words, dtype)
        x = tensor(batch, sequence, hidden, dtype=dtype).requires_grad_()
        dy = tensor(batch, sequence, hidden, dtype=dtype)
        what = os.path.basename(path)[:-4]
        emit(writer, what, row["shape"], row["dtype"], "forward", float(row["forward"]), microseconds(lambda: layer(x)))
        y = layer(x)
        inputs = [x, *layer.parameters()]
        emit(writer, what, row["shape"], row["dtype"], "backward", float(row["backward"]),
             microseconds(lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)))


def make_attention(words, dtype):
    s = SHAPES[option(words, "--model")]
    return Attention(s["hidden"], s["heads"], s["kv_heads"], s["dim"], not s["llama"], dtype), s["hidden"]


def make_block(words, dtype):
    shape = SHAPES[option(words, "--model")]
    return Block(shape, dtype), shape["hidden"]


def make_norm_layer(words, dtype):
    hidden = int(option(words, "--hidden"))
    return make_norm(hidden, option(words, "--family") == "llama", dtype), hidden


class Gpt2(torch.nn.Module):
    def __init__(self, shape, positions, dtype):
        super().__init__()
        self.token = torch.nn.Embedding(shape["vocabulary"], shape["hidden"], device="cuda", dtype=dtype)
        self.place = torch.nn.Embedding(positions, shape["hidden"], device="cuda", dtype=dtype)
        self.blocks = torch.nn.Sequential(*(Block(shape, dtype) for _ in range(shape["layers"])))
        self.norm = make_norm(shape["hidden"], False, dtype)

    def forward(self, ids, targets):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        logits = F.linear(self.norm(self.blocks(x)), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def compare_model(writer, path):
    words = command_of(path)
    batch, sequence = int(option(words, "--batch", 4)), int(option(words, "--sequence", 128))
    for row in read_rows(path):
        if row["ranks"] != "1" or not row["step"]:
            continue
        model = Gpt2(SHAPES["gpt2"], sequence, DTYPES[row["dtype"]])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
        ids = torch.randint(0, 256, (batch, sequence + 1), device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            model(ids[:, :-1], ids[:, 1:]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        emit(writer, os.path.basename(path)[:-4], f"{batch}x{sequence} tokens", row["dtype"], "step",
            float(row["step"]) * 1e3, microseconds(step))


def main():
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU", file=sys.stderr)
        sys.exit(77)
    torch.manual_seed(1)
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["what", "shape", "dtype", "pass", "ours us", "torch us"])
    kinds = [("gemm", compare_gemm), ("norm", lambda w, p: compare_layer(w, p, make_norm_layer)),
             ("attention", lambda w, p: compare_layer(w, p, make_attention)),
             ("block", lambda w, p: compare_layer(w, p, make_block)),
             ("model", compare_model)]
    for kind, compare in kinds:
        for path in sorted(glob.glob(os.path.join(sys.argv[1], f"{kind}*.csv"))):
            torch.backends.cuda.matmul.allow_tf32 = "tf32" in os.path.basename(path)
            compare(writer, path)


main()
