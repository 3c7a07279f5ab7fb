"""What imagenet.py is made of."""
