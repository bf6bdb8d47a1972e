"""The paper's equations in float64 NumPy, written from the paper and sharing no code with the package.

Loops over time, tokens and rows are left as they stand in the text; nothing here is meant to be fast. Weights come as a
mapping of parameter names to arrays, so that only names tie this to the model under test.
"""

import math
from types import SimpleNamespace

import numpy as np

erf = np.vectorize(math.erf)


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def silu(x):
    return x / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


ACTIVATIONS = {"gelu": gelu, "relu": relu, "tanh": np.tanh}


def softplus(x):
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def layer_norm(x, weight, bias, epsilon):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weight + bias


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Equations:
    """One encoder for one set of weights.

    Args:
        config: Any object with the configuration's fields.
        weights: Parameter name to float64 array, names relative to the encoder.
    """

    def __init__(self, config, weights):
        self.c = config
        self.w = weights
        self.m = None

    def linear(self, name, x):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, name, x):
        bias = self.w[name + ".bias"] if self.c.norm_bias else 0
        return layer_norm(x, self.w[name + ".weight"], bias, self.c.layer_norm_eps)

    def sub_layer(self, name, h, function):
        """H + f(LN(H)), or BERT's LN(H + f(H)); ModernBERT's first has no norm."""
        if name == "layers.0.mixer_norm" and not self.c.first_norm:
            return h + function(h)
        if self.c.norm_position == "post":
            return self.norm(name, h + function(h))
        return h + function(self.norm(name, h))

    def encode(self, ids, mask=None, segments=None, positions=None):
        """H of the last layer, (batch, time, D)."""
        batch, time = ids.shape
        self.m = np.ones((batch, time)) if mask is None else np.asarray(mask, dtype=np.float64)
        if positions is None:
            positions = np.zeros((batch, time), dtype=int)
            for b in range(batch):
                count = 0
                for t in range(time):
                    count += int(self.m[b, t])
                    positions[b, t] = max(count - 1, 0)
        segments = np.zeros_like(ids) if segments is None else segments
        h = self.w["embeddings.word_embeddings.weight"][ids]
        h = h + self.w["embeddings.token_type_embeddings.weight"][segments]
        if self.c.position_embedding == "learned":
            h = h + self.w["embeddings.position_embeddings.weight"][positions]
        h = self.norm("embeddings.norm", h)
        if self.c.embedding_size not in (None, self.c.hidden_size):
            h = self.linear("embeddings.projection", h)
        for index, letter in enumerate(self.c.layer_pattern):
            block = self.mamba_block if letter == "M" else self.transformer_block
            h = block(index, h, positions)
        h = self.norm("norm", h) if self.c.final_norm else h
        return h * self.m[..., None] if self.c.padding_safe_masking == "exact" else h

    def feed_forward(self, name, x):
        inner = self.linear(name + ".up", x)
        if self.c.feed_forward == "glu":
            gate, value = np.split(inner, 2, axis=-1)
            return self.linear(name + ".down", gelu(gate) * value)
        return self.linear(name + ".down", gelu(inner))

    def transformer_block(self, index, h, positions):
        """Eq. 1."""
        name = f"layers.{index}"
        h = self.sub_layer(name + ".mixer_norm", h, lambda x: self.attention(index, x, positions))
        return self.sub_layer(name + ".feed_forward_norm", h, lambda x: self.feed_forward(name + ".feed_forward", x))

    def attention(self, index, x, positions):
        name, base, window = f"layers.{index}.attention", self.c.rotary_base, self.c.attention_window
        base = base[index] if isinstance(base, list) else base
        window = None if window is None else window[index]
        batch, time, width = x.shape
        size = width // self.c.num_attention_heads
        q, k, v = (self.linear(f"{name}.{part}", x) for part in ("query", "key", "value"))
        out = np.zeros_like(x)
        for b in range(batch):
            for head in range(self.c.num_attention_heads):
                part = slice(head * size, (head + 1) * size)
                qh, kh = q[b, :, part], k[b, :, part]
                if self.c.position_embedding == "rotary":
                    qh, kh = self.turn(qh, positions[b], base), self.turn(kh, positions[b], base)
                scores = qh @ kh.T / math.sqrt(size)
                for t in range(time):
                    for s in range(time):
                        seen = self.m[b, s] or not self.m[b].any()
                        if window is not None:
                            seen = abs(t - s) <= window and (seen or s == t)
                        if not seen:
                            scores[t, s] = -1e30
                out[b, :, part] = softmax(scores) @ v[b, :, part]
        return self.linear(name + ".output", out)

    def turn(self, x, positions, base):
        """Each pair (i, i + size/2) of features turned by position times base^(-2i/size)."""
        half = x.shape[1] // 2
        y = np.empty_like(x)
        for t, position in enumerate(positions):
            for i in range(half):
                angle = position * base ** (-2 * i / x.shape[1])
                cosine, sine = math.cos(angle), math.sin(angle)
                y[t, i] = x[t, i] * cosine - x[t, i + half] * sine
                y[t, i + half] = x[t, i + half] * cosine + x[t, i] * sine
        return y

    def mamba_block(self, index, h, positions):
        """Eqs. 2 and 3, with those masks that `padding_safe_masking` names."""
        name, masking = f"layers.{index}", self.c.padding_safe_masking
        m = self.m[..., None]
        before = m if masking in ("pre", "pre+post", "exact") else 1
        h = self.sub_layer(name + ".mixer_norm", h, lambda x: self.ssm(name + ".mixer", before * x))
        out = self.sub_layer(name + ".feed_forward_norm", h, lambda x: self.feed_forward(name + ".feed_forward", x))
        return m * out if masking in ("post", "pre+post", "exact") else out

    def ssm(self, name, x):
        """Eqs. 4 and 9 around one core or two."""
        u, z = np.split(self.linear(name + ".in_proj", x), 2, axis=-1)
        directions = {"forward": [False], "backward": [True], "bidirectional": [False, True]}[self.c.ssm_direction]
        o = sum(self.core(f"{name}.cores.{i}", u, z, reverse) for i, reverse in enumerate(directions))
        return self.linear(name + ".out_proj", o)

    def core(self, name, u, z, reverse):
        out = np.zeros_like(u)
        for b in range(u.shape[0]):
            keep = self.m[b] > 0 if self.c.padding_safe_masking == "exact" else np.ones(u.shape[1], dtype=bool)
            order = np.arange(u.shape[1])[::-1] if reverse else np.arange(u.shape[1])
            read = self.scan(name, self.convolve(name, u[b][order], keep[order]), keep[order])
            back = np.empty_like(read)
            back[order] = read
            out[b] = silu(z[b]) * back
        return out

    def convolve(self, name, u, keep):
        """Eq. 5 and SiLU, in scan order: the window ends at its step, or has it in the middle."""
        weight, bias = self.w[name + ".local_mixing.weight"], self.w[name + ".local_mixing.bias"]
        time, width = u.shape[0], weight.shape[1]
        first = -(width - 1) if self.c.ssm_conv_mode == "causal" else -((width - 1) // 2)
        out = np.zeros_like(u)
        for t in range(time):
            if not keep[t]:
                continue
            total = bias.copy()
            for tap in range(width):
                s = t + first + tap
                if 0 <= s < time and keep[s]:
                    total = total + weight[:, tap] * u[s]
            out[t] = silu(total)
        return out

    def scan(self, name, u, keep):
        """Eqs. 6 to 8 and the recurrence, one step after the other."""
        n = self.c.ssm_state_size
        rank = self.w[name + ".dt_proj.weight"].shape[1]
        coefficients = u @ self.w[name + ".x_proj.weight"].T
        a = -np.exp(self.w[name + ".recurrence.A_log"])
        d, b, c = coefficients[:, :rank], coefficients[:, rank : rank + n], coefficients[:, rank + n :]
        deltas = softplus(d @ self.w[name + ".dt_proj.weight"].T + self.w[name + ".recurrence.delta_bias"])
        state = np.zeros_like(a)
        out = np.zeros_like(u)
        for t in range(u.shape[0]):
            if not keep[t]:
                continue
            delta, bt, ct = deltas[t], b[t], c[t]
            state = np.exp(delta[:, None] * a) * state + delta[:, None] * bt[None, :] * u[t][:, None]
            out[t] = state @ ct + self.w[name + ".recurrence.D"] * u[t]
        return out


def pool(kind, h, mask, score_weight=None):
    """Eqs. 11 to 13 and the rivals of the pooling table; h (batch, time, D)."""
    out = np.zeros((h.shape[0], h.shape[2]))
    for b in range(h.shape[0]):
        tokens = np.flatnonzero(mask[b])
        if kind == "attention":
            alpha = softmax(h[b] @ score_weight[0])
            out[b] = alpha @ h[b]
        elif len(tokens) == 0:
            continue
        elif kind == "map":
            out[b] = softmax(h[b, tokens] @ score_weight[0]) @ h[b, tokens]
        elif kind == "mean":
            out[b] = h[b, tokens].mean(0)
        elif kind == "cls":
            out[b] = h[b, tokens[0]]
    return out


class Heads:
    """What follows the encoder of a whole model.

    Args:
        config: Any object with the configuration's fields.
        weights: Parameter name to float64 array, of the whole model.
    """

    def __init__(self, config, weights):
        self.c, self.w = config, weights
        self.encoder = Equations(config, {name.removeprefix("mabert."): value for name, value in weights.items()})

    def classify(self, ids, mask):
        """Pooling, BERT's dense layer and ModernBERT's norm where they are asked for, and Eq. 14; (batch, labels)."""
        x = pool(self.c.pooling, self.encoder.encode(ids, mask), np.asarray(mask), self.w.get("pooler.score.weight"))
        if self.c.pooler_act is not None:
            x = ACTIVATIONS[self.c.pooler_act](self.encoder.linear("pooler.dense", x))
        x = self.encoder.norm("pooler.norm", x) if self.c.pooler_norm else x
        return self.encoder.linear("classifier", x)

    def fill(self, ids, mask):
        """BERT's transform and decoder; (batch, time, vocabulary)."""
        x = gelu(self.encoder.linear("predictions.transform.dense", self.encoder.encode(ids, mask)))
        return self.encoder.linear("predictions.decoder", self.encoder.norm("predictions.transform.norm", x))


def weights_of(module):
    """A module's parameters as float64 arrays."""
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def settings_of(config):
    """A configuration as plain values."""
    return SimpleNamespace(**config.to_dict())
