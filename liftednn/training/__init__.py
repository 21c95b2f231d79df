"""The trainers (sec. 6): full passes over all blocks, and mini-batches."""
