"""The other side of `tp_bench model --peer torch`: the same training step in PyTorch on the CPU, one step whenever it
is asked for.

Standard input gives a line of names and numbers, then "param NAME ROWS COLS DECAY" lines, each followed by its f32
values, then "go". Every "step" after that is followed by a step's tokens and targets (i32). Answers: "hello VERSION" at
once, "ready WHAT" after "go", "step SECONDS FORWARD BACKWARD OPTIMIZER LOST LOSS NORM" (seconds that others took; the
norm of all gradients, before clipping), or "fail WHY". Ends with its input.

Settings, chosen by what this PyTorch has, or given: compiled (TorchInductor; needs a C++ compiler) or eager; for bf16
autocast (f32 weights, cast in every step) or master (bf16 weights, f32 masters in the optimizer). Always: fused AdamW
and fused attention where they are, its own best kernels in the precision that is compared.
"""
import logging
import os
import resource
import sys
import time

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever libraries print is no answer
logging.disable(logging.WARNING)


def fail(why):
    try:
        print("fail", " ".join(str(why).split())[:400], file=answers)
    except OSError:
        pass  # nobody listens any more
    os._exit(1)


try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    fail(f"no PyTorch: {error}")

SETTINGS = [("compiled", "eager"), ("autocast", "master")]
HAS_ATTENTION = hasattr(F, "scaled_dot_product_attention")


def read_exactly(count):
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = sys.stdin.buffer.readinto(view[done:])
        if not got:
            sys.exit(0)
        done += got
    return data


def read_job():
    words = sys.stdin.buffer.readline().decode().split()
    job = dict(zip(words[::2], words[1::2]))
    return {name: value if name in ("dtype", "settings") else
            float(value) if "." in value or "e" in value else int(value) for name, value in job.items()}


def read_weights():
    """Name to f32 tensor, and the names that decay."""
    weights, decayed = {}, set()
    while True:
        words = sys.stdin.buffer.readline().decode().split()
        if not words:
            sys.exit(0)
        if words[0] == "go":
            return weights, decayed
        name, rows, cols = words[1], int(words[2]), int(words[3])
        values = torch.frombuffer(read_exactly(4 * rows * cols), dtype=torch.float32)
        weights[name] = values.clone() if cols == 1 else values.clone().view(rows, cols)
        if words[4] == "1":
            decayed.add(name)


def attend(q, k, v):
    if HAS_ATTENTION:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    length = q.shape[-2]
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask, -1).to(v.dtype) @ v


class Block(torch.nn.Module):
    def __init__(self, weights, name, job):
        super().__init__()
        self.heads, self.epsilon = job["heads"], job["norm_epsilon"]
        for part in ("norm1", "attention.qkv", "attention.proj", "norm2", "mlp.up", "mlp.down"):
            for kind in ("weight", "bias"):
                self.register_parameter(f"{part}_{kind}".replace(".", "_"), weights[f"{name}.{part}.{kind}"])

    def forward(self, x):
        width = x.shape[-1:]
        qkv = F.linear(F.layer_norm(x, width, self.norm1_weight, self.norm1_bias, self.epsilon),
            self.attention_qkv_weight, self.attention_qkv_bias)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv.chunk(3, -1))
        y = attend(q, k, v).transpose(1, 2).flatten(2)
        x = x + F.linear(y, self.attention_proj_weight, self.attention_proj_bias)
        y = F.linear(F.layer_norm(x, width, self.norm2_weight, self.norm2_bias, self.epsilon), self.mlp_up_weight,
            self.mlp_up_bias)
        return x + F.linear(F.gelu(y, approximate="tanh"), self.mlp_down_weight, self.mlp_down_bias)


class Model(torch.nn.Module):
    def __init__(self, weights, job):
        super().__init__()
        self.token, self.place = weights["wte.weight"], weights["wte.position"]
        self.norm_weight, self.norm_bias = weights["norm.weight"], weights["norm.bias"]
        self.epsilon = job["norm_epsilon"]
        self.blocks = torch.nn.ModuleList(Block(weights, f"h.{i}", job) for i in range(job["layers"]))

    def forward(self, ids, targets):
        x = F.embedding(ids, self.token) + self.place[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.loss(x, targets)

    def loss(self, x, targets):
        """The tied head and the mean cross-entropy."""
        x = F.layer_norm(x, x.shape[-1:], self.norm_weight, self.norm_bias, self.epsilon)
        return F.cross_entropy(F.linear(x, self.token).flatten(0, 1).float(), targets.flatten())


def copy_all(to, tensors):
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(to, tensors)
        return
    for left, right in zip(to, tensors):
        left.copy_(right)


class Side:
    """A model, its optimizer, and how they are run."""

    def __init__(self, job, weights, decayed, chosen):
        self.autocast = job["dtype"] == "bf16" and "autocast" in chosen
        self.master = job["dtype"] == "bf16" and "master" in chosen
        dtype = torch.bfloat16 if self.master else torch.float32
        self.params = {name: torch.nn.Parameter(value.to(dtype)) for name, value in weights.items()}
        self.masters = {name: value.clone() for name, value in weights.items()} if self.master else self.params
        self.model = Model(self.params, job)
        self.clip = job["clip"] or float("inf")
        self.optimizer, self.kind = self.make_optimizer(job, decayed)
        if "compiled" in chosen:
            for block in self.model.blocks:  # twelve times the same code: compiled once
                block.compile(dynamic=False)
            self.model.loss = torch.compile(self.model.loss, dynamic=False)

    def make_optimizer(self, job, decayed):
        groups = [{"params": [p for name, p in self.masters.items() if (name in decayed) == decays],
            "weight_decay": job["decay"] if decays else 0.0}
                  for decays in (True, False)]
        settings = {"lr": job["lr"], "betas": (job["beta1"], job["beta2"]), "eps": job["epsilon"]}
        try:
            return torch.optim.AdamW(groups, fused=True, **settings), "fused AdamW"
        except (TypeError, ValueError, RuntimeError):
            return torch.optim.AdamW(groups, foreach=True, **settings), "AdamW in lists"

    def forward(self, ids, targets):
        if not self.autocast:
            return self.model(ids, targets)
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(ids, targets)

    def update(self):
        """Clips and takes the optimizer's step; the norm of all gradients."""
        params, masters = list(self.params.values()), list(self.masters.values())
        if self.master:
            grads = [torch.empty_like(master) for master in masters]
            copy_all(grads, [param.grad for param in params])
            for master, grad in zip(masters, grads):
                master.grad = grad
        norm = torch.nn.utils.clip_grad_norm_(masters, self.clip)
        self.optimizer.step()
        if self.master:
            with torch.no_grad():
                copy_all(params, masters)
        self.forget()
        return norm

    def forget(self):
        for tensor in [*self.params.values(), *self.masters.values()]:
            tensor.grad = None


def choose(job):
    given = [word for word in job["settings"].split(",") if word != "auto"]
    for word in given:
        if not any(word in pair for pair in SETTINGS):
            fail(f"unknown setting '{word}' (known: {' '.join(word for pair in SETTINGS for word in pair)})")
    can_compile = hasattr(torch.nn.Module, "compile")
    if "compiled" in given and not can_compile:
        fail(f"PyTorch {torch.__version__} can't compile modules")
    first = "eager" if "eager" in given or not can_compile else "compiled"
    second = next((word for word in SETTINGS[1] if word in given), "master" if first == "compiled" else "autocast")
    return [first, second], "compiled" in given


def prepare(job, weights, decayed):
    """A side that has run once, so that all is compiled; and what it is, in words."""
    chosen, forced = choose(job)
    zeros = torch.zeros(job["batch"], job["sequence"], dtype=torch.int64)
    without = ""
    while True:
        side = Side(job, weights, decayed, chosen)
        try:
            side.forward(zeros, zeros).backward()
            break
        except Exception as error:
            if chosen[0] != "compiled" or forced:
                raise
            without = f" (compiling failed: {' '.join(str(error).split())[:80]})"
            chosen[0] = "eager"
    side.forget()
    settings = f"{chosen[0]}, {chosen[1]}" if job["dtype"] == "bf16" else chosen[0]
    attention = "fused attention" if HAS_ATTENTION else "attention by products"
    threads = torch.get_num_threads()
    several = "s" if threads > 1 else ""
    return side, f"{torch.__version__} {settings}; {side.kind}, {attention}, {threads} thread{several}{without}"


def taken_away(threads):
    """Seconds a thread that this process was ready to run and did not, so far: it waited for a core, or the host kept
    the core for itself. None where the system doesn't count them."""
    try:
        waited = 0
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/schedstat") as file:
                waited += int(file.read().split()[1])
        with open("/proc/stat") as file:
            stolen = int(file.readline().split()[8])
        return 1e-9 * waited / threads + stolen / os.sysconf("SC_CLK_TCK") / os.cpu_count()
    except (OSError, IndexError, ValueError):
        return None


def switches():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def take_step(side, job, data):
    time.sleep(0.005)  # threads of the other side, and idle ones of this, have gone to sleep
    taken, before, start = taken_away(job["threads"]), switches(), time.perf_counter()
    ids, targets = torch.frombuffer(data, dtype=torch.int32).to(torch.int64).view(2, job["batch"], job["sequence"])
    loss = side.forward(ids, targets)
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    norm = side.update()
    value = loss.item()
    end = time.perf_counter()
    switched, now_taken = switches() - before, taken_away(job["threads"])
    uncounted = end - start if switched else 0  # then any switch counts as all of the time
    lost = uncounted if taken is None or now_taken is None else max(now_taken - taken, 0)
    time.sleep(0.02)  # OpenMP's threads spin for a while before they sleep
    seconds = f"{end - start:.9f} {forward - start:.9f} {backward - forward:.9f} {end - backward:.9f}"
    return f"step {seconds} {lost:.9f} {value:.9g} {norm.item():.9g}"


def main():
    print("hello", torch.__version__, file=answers)
    job = read_job()
    torch.set_num_threads(job["threads"])
    if hasattr(torch, "set_float32_matmul_precision"):
        torch.set_float32_matmul_precision("highest")
    weights, decayed = read_weights()
    side, words = prepare(job, weights, decayed)
    del weights
    print("ready", words, file=answers)
    while sys.stdin.buffer.readline() == b"step\n":
        print(take_step(side, job, read_exactly(8 * job["batch"] * job["sequence"])), file=answers)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        fail(f"{type(error).__name__}: {error}")
