"""Transforms of images on the device: resizing, crops, colours and strokes."""
