"""What happens to images on the device: resizing, crops, colours and strokes."""
