"""One command for a new card: are the kernels right, and how fast is the engine on them?

    python -m chatd.gpu_check --minutes 8 [--json FILE]

Needs torch, triton and numpy only, and no model: weights are random, at the shape of Llama-3-8B. Kernels are
compared with reference and timed against their floors; then the engine as it serves, with its scheduler,
cache and overlap, decodes at several batch sizes and reads prompts that are new, cached, or come back from
host memory; once kernel by kernel and once with graphs. ``--device cpu --shape tiny`` runs the same program
without a card, and measures nothing.
"""
