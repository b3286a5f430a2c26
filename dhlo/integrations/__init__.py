"""dhlo inside other libraries: a backend of torch.compile, an export backend of transformers."""
