"""Boxes of detectors, regions of images, and samples at computed places."""
