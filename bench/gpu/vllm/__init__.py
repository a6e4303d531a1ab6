"""Longbatch in front of vLLM on one GPU, beside vLLM alone and plain clients."""
