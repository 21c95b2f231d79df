"""The steps of recurrent layers: their gates read inputs, and states that the cells of torch give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from liftednn.optim import Lifted
from tests.test_optim import draw


class Recurrent(nn.Module):
    """A recurrent layer that gives its last states to a head."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(3, 4, **options)
        self.head, self.first = nn.Linear(4 * (1 + self.layer.bidirectional), 2), options.get("batch_first", False)

    def forward(self, x: Any, hx: Any = None) -> Tensor:
        states = self.layer(x, hx)[0]
        states = nn.utils.rnn.pad_packed_sequence(states)[0] if not isinstance(states, Tensor) else states
        return self.head(states[:, -1] if self.first else states[-1])  # type: ignore[no-any-return]


def states_of(layer: Any, x: Tensor, hx: Any) -> list[Tensor]:
    """States before each of the times of x (t, n, p), by the cell of torch."""
    cell = {nn.RNN: nn.RNNCell, nn.GRU: nn.GRUCell, nn.LSTM: nn.LSTMCell}[type(layer)](3, 4)
    cell.load_state_dict({name.removesuffix("_l0"): part for name, part in layer.state_dict().items()})
    hx = tuple(each[0] for each in hx) if isinstance(hx, tuple) else None if hx is None else hx[0]
    found = []
    for each in x:
        h = hx[0] if isinstance(hx, tuple) else hx
        found.append(torch.zeros(x.shape[1], 4) if h is None else h)
        hx = cell(each, hx)
    return found


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_gates_read_inputs_and_the_states_before(kind: Any, batch_first: bool, given: bool) -> None:
    module, x, y = Recurrent(kind, batch_first=batch_first), draw(5, 7, 3).float(), draw(7, 2, seed=1).float()
    h = draw(1, 7, 4, seed=2).float()
    hx: Any = None if not given else (h, 2 * h) if kind is nn.LSTM else h
    with torch.no_grad():
        rows = {"weight_ih_l0": x.flatten(0, 1), "weight_hh_l0": torch.cat(states_of(module.layer, x, hx))}
    optimiser = Lifted(module, nn.MSELoss())
    fn.mse_loss(module(x.transpose(0, 1) if batch_first else x, hx), y).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    for name, expected in rows.items():
        gates = [found for key, found in optimiser.state[getattr(module.layer, name)].items() if "metric" in key]
        assert len(gates) == {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}[kind]
        for gate in gates:
            assert gate["root"]
            torch.testing.assert_close(gate["mean"][0], expected.mean(0), rtol=1e-4, atol=1e-5)
            centred = expected - expected.mean(0)
            torch.testing.assert_close(gate["xx"][0][0], centred.T @ centred, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bidirectional": True}, {"packed": True}])
def test_adamw_moves_recurrent_layers_whose_states_are_not_seen(options: dict[str, Any]) -> None:
    packed, x = options.pop("packed", False), draw(5, 7, 3).float()
    module = Recurrent(nn.LSTM, **options)
    optimiser, inputs = Lifted(module, nn.MSELoss()), nn.utils.rnn.pack_sequence(list(x.unbind(1))) if packed else x
    fn.mse_loss(module(inputs), draw(7, 2, seed=1).float()).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    assert all("exp_avg" in optimiser.state[p] for p in module.layer.parameters())


def test_an_lstm_without_a_head_learns() -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(2, 6, batch_first=True), draw(40, 8, 2).float()
    y = 0.5 * x.cumsum(1).sum(-1, keepdim=True).tanh()
    optimiser, losses = Lifted(layer, lr=0.02), list[float]()
    for _ in range(150):
        loss = fn.mse_loss(layer(x)[0][..., :1], y)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
