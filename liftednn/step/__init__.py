"""Steps on the weights of linear maps, as `MiniBatch` and `optim.Lifted` take them."""
