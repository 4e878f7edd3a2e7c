"""What the model families the engine computes consist of: settings and tensors, as Hugging Face names them.

Standard library only. The worker uses it when it loads a model, the importer before it stores one.
"""
