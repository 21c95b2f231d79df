"""Experiments (sec. 7): data sets and the demonstration."""
