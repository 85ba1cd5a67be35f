"""Tests of leaving in order."""
