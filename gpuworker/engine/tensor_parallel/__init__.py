"""One replica on several ranks: Megatron's split, rank 0 schedules and the others follow.

Shoeybi et al., "Megatron-LM" (2019): query, key, value, gate and up products are split by output feature
(whole heads), the attention output and down products by input feature, so that a layer needs two sums over
the ranks and nothing else. Embedding and norms are whole everywhere; the head is split by vocabulary.

Rank 0 is the worker process. It sends every plan, every move and every block transfer to the others, child
processes that run the same model runner over their slices and never decide anything: `TensorParallelRunner`.
"""
