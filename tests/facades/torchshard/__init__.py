"""Tests of TorchShard's face."""
