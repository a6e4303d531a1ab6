"""Engines behind NVIDIA Triton: gRPC streams and the tensors of each kind of model."""
