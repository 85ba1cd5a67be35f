"""Stoke's face."""
