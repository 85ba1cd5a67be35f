"""Trackers: what a run logs its numbers to. Any object with a method `log` is one; others are found here by name."""

from restoke.trackers.registry import names, register, tracker_class
from restoke.trackers.tracker import Plain, Tracker, as_tracker

__all__ = ["Plain", "Tracker", "as_tracker", "names", "register", "tracker_class"]
