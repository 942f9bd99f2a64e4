"""Recurrent layers, embedding, linear, softmax, and two small models trained for a few steps."""
import torch
from torch import nn
from torch.nn import functional as F

from .store import GoldenFile

STEPS, BATCH, INPUT, HIDDEN = 7, 3, 5, 17


def fill(draw, module, bound):
    """Uniform parameters in the module's own order."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(draw.uniform(-bound, bound, *parameter.shape))


def recurrent(name, kind, dtype=torch.float32, **options):
    directions = 2 if options.get("bidirectional") else 1
    layers = options.get("num_layers", 1)
    told = " ".join(f"{k}={v}" for k, v in sorted(options.items()))
    file = GoldenFile(name, f"{kind.__name__} input={INPUT} hidden={HIDDEN} steps={STEPS} batch={BATCH} "
                            f"{told}".strip())
    # The float64 form shares its draws with the float32 form.
    draw = GoldenFile(name.replace("_f64", ""), "").draw()
    module = kind(INPUT, HIDDEN, **options)
    fill(draw, module, 0.4)
    module = module.to(dtype)
    shape = (BATCH, STEPS, INPUT) if options.get("batch_first") else (STEPS, BATCH, INPUT)
    inputs = {"x": draw.normal(*shape, dtype=dtype),
              "h0": draw.normal(layers * directions, BATCH, HIDDEN, scale=0.5, dtype=dtype)}
    if kind is nn.LSTM:
        inputs["c0"] = draw.normal(layers * directions, BATCH, HIDDEN, scale=0.5, dtype=dtype)

    def compute(x, h0, c0=None):
        if c0 is None:
            y, hn = module(x, h0)
            return {"y": y, "hn": hn}
        y, (hn, cn) = module(x, (h0, c0))
        return {"y": y, "hn": hn, "cn": cn}

    file.run("", file.metadata["about"], compute, inputs, dict(module.named_parameters()))
    return file


def recurrent_files():
    yield recurrent("lstm_1layer", nn.LSTM)
    yield recurrent("lstm_1layer_f64", nn.LSTM, torch.float64)
    yield recurrent("lstm_1layer_no_bias", nn.LSTM, bias=False)
    yield recurrent("lstm_batch_first", nn.LSTM, batch_first=True)
    yield recurrent("lstm_2layer", nn.LSTM, num_layers=2)
    yield recurrent("lstm_2layer_bidirectional", nn.LSTM, num_layers=2, bidirectional=True)
    yield recurrent("gru_1layer", nn.GRU)
    yield recurrent("gru_1layer_f64", nn.GRU, torch.float64)
    yield recurrent("gru_2layer_bidirectional", nn.GRU, num_layers=2, bidirectional=True)
    yield recurrent("rnn_tanh_1layer", nn.RNN, nonlinearity="tanh")
    yield recurrent("rnn_relu_2layer", nn.RNN, nonlinearity="relu", num_layers=2)


def print_cell():
    """The one-cell LSTM of the specification: two steps, inputs 1 and 2, by hand-set parameters."""
    module = nn.LSTM(1, 1).double()
    values = ((0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8), (0.01, 0.02, 0.03, 0.04), (0.0, 0.0, 0.0, 0.0))
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values):
            parameter.copy_(torch.tensor(value, dtype=torch.float64).view(parameter.shape))
        y, (_, c) = module(torch.tensor([[[1.0]], [[2.0]]], dtype=torch.float64))
    print("one-cell LSTM: h " + " ".join(f"{v:.12f}" for v in y.flatten().tolist()) + f" c {c.item():.12f}; "
          "specification: h 0.101243307370 0.299092705206 c 0.445470134909")


def embedding():
    file = GoldenFile("embedding", "Embedding [11, 5], ids [7, 3] with repeats; the padding row is not zero "
                                   "and gets no gradient")
    for case, padding in (("plain", None), ("padding_0", 0), ("padding_last", -1)):
        draw = file.draw(case)
        ids = draw.integers(0, 11, 7, 3)
        ids[0, 0], ids[3, 1], ids[5, 2] = 0, 0, 10
        weight = draw.normal(11, 5)
        file.run(case, f"padding_idx={padding}", lambda ids: F.embedding(ids, weight, padding_idx=padding),
                 {"ids": ids}, {"weight": weight})
    return file


def linear():
    file = GoldenFile("linear", "Linear: y = x weight^T + bias, weight [13, 7]")
    for case, shape, bias in (("rows", (5, 7), True), ("no_bias", (5, 7), False), ("vector", (7,), True),
                              ("rank_3", (3, 2, 7), True)):
        draw = file.draw(case)
        weight = draw.normal(13, 7, scale=0.4)
        params = {"weight": weight, "bias": draw.normal(13, scale=0.4)} if bias else {"weight": weight}
        file.run(case, f"x {list(shape)} bias={bias}", lambda x: F.linear(x, weight, params.get("bias")),
                 {"x": draw.normal(*shape)}, params)
    return file


def softmax():
    file = GoldenFile("softmax", "softmax and log_softmax of x [3, 5, 7] along each dim")
    for name, op in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        for dim in (0, 1, 2, -1):
            case = f"{name}_dim{dim}" if dim >= 0 else f"{name}_last"
            draw = file.draw(case)
            file.run(case, f"{name} dim={dim}", lambda x: op(x, dim=dim),
                     {"x": draw.normal(3, 5, 7, scale=2.0)})
        huge = torch.tensor([[1000.0, 999.0, -1000.0], [-2000.0, -2001.0, -2000.0],
                             [float("-inf"), 0.0, 1.0]])
        file.run(f"{name}_huge", f"{name} dim=1 of huge entries and of minus infinity",
                 lambda x: op(x, dim=1), {"x": huge}, grad=False)
    return file


def word_lm(tied):
    """Embedding, two LSTM layers, Linear, cross entropy; SGD with the gradient clipped; the state is carried
    and detached."""
    vocabulary, emsize, hidden, steps, batch, windows = 23, 11, 11, 5, 3, 5
    name = "word_lm_tied" if tied else "word_lm"
    file = GoldenFile(name, f"vocabulary=23 emsize=11 nhid=11 nlayers=2 batch=3 bptt=5 tied={tied}: "
                            f"{windows} windows, loss = mean cross entropy, clip_grad_norm max 0.25, "
                            "p -= 2 * grad, hidden carried and detached")
    draw = file.draw()
    model = nn.Module()
    model.encoder = nn.Embedding(vocabulary, emsize)
    model.rnn = nn.LSTM(emsize, hidden, 2)
    model.decoder = nn.Linear(hidden, vocabulary)
    fill(draw, model, 0.3)
    if tied:
        model.decoder.weight = model.encoder.weight
    tokens = draw.integers(0, vocabulary, windows * steps + 1, batch)
    file.put("in.tokens", tokens)
    for key, parameter in model.named_parameters():
        file.put("init." + key, parameter)
    state = (torch.zeros(2, batch, hidden), torch.zeros(2, batch, hidden))
    losses, norms = [], []
    for window in range(windows):
        first = window * steps
        model.zero_grad()
        state = tuple(s.detach() for s in state)
        y, state = model.rnn(model.encoder(tokens[first:first + steps]), state)
        loss = F.cross_entropy(model.decoder(y).view(-1, vocabulary),
                               tokens[first + 1:first + 1 + steps].reshape(-1))
        loss.backward()
        if window == 0:
            for key, parameter in model.named_parameters():
                file.put("grad." + key, parameter.grad)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.25))
        losses.append(loss.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(2.0 * parameter.grad)
    file.put("out.loss", torch.stack(losses))
    file.put("out.norm", torch.stack(norms))
    for key, parameter in model.named_parameters():
        file.put("final." + key, parameter)
    file.put("final.hn", state[0])
    file.put("final.cn", state[1])
    file.note("", "grad.* are of the first window before clipping; tied: decoder.weight is encoder.weight "
                  "and is stored once")
    return file


def policy():
    """The policy network of the pole: three REINFORCE steps under Adam, actions and returns given."""
    file = GoldenFile("policy", "affine1 Linear(4, 13), relu, affine2 Linear(13, 2), softmax; "
                                "loss = -sum(log_prob(action) * return); "
                                "Adam lr=0.01, three steps; no dropout")
    draw = file.draw()
    model = nn.Module()
    model.affine1, model.affine2 = nn.Linear(4, 13), nn.Linear(13, 2)
    fill(draw, model, 0.5)
    for key, parameter in model.named_parameters():
        file.put("init." + key, parameter)
    observations, actions, returns = draw.normal(3, 7, 4), draw.integers(0, 2, 3, 7), draw.normal(3, 7)
    file.put("in.observations", observations)
    file.put("in.actions", actions)
    file.put("in.returns", returns)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, probs = [], []
    for step in range(3):
        optimizer.zero_grad()
        p = F.softmax(model.affine2(F.relu(model.affine1(observations[step]))), dim=1)
        loss = -(torch.distributions.Categorical(p).log_prob(actions[step]) * returns[step]).sum()
        loss.backward()
        if step == 0:
            for key, parameter in model.named_parameters():
                file.put("grad." + key, parameter.grad)
        optimizer.step()
        losses.append(loss.detach())
        probs.append(p.detach())
    file.put("out.loss", torch.stack(losses))
    file.put("out.probs", torch.stack(probs))
    for key, parameter in model.named_parameters():
        file.put("final." + key, parameter)
    file.note("", "step i uses observations[i], actions[i], returns[i]; grad.* are of the first step")
    return file


def files():
    yield from recurrent_files()
    yield embedding()
    yield linear()
    yield softmax()
    yield word_lm(False)
    yield word_lm(True)
    yield policy()
