"""The trainers (sec. 6): full sweeps over blocks, and mini-batches."""
