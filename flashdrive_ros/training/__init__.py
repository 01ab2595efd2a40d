"""Training: the small model's tokenizer (and, later, the model itself)."""
