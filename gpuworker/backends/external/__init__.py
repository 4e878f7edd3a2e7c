"""Replicas that are servers of somebody else's: vLLM, SGLang, llama.cpp, text-generation-inference.

To gateways and dispatcher such a worker is like any other; see docs/backends.md.
"""
