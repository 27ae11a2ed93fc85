"""Language models that generate one token at a time, as a server runs them.

`Decoder` is handmade, with random weights: each step reads all weights and the keys and values of earlier tokens, so it
is bound by memory and launches, like serving. `generator` is a Llama of the transformers library, built from a
configuration, with random weights and a static cache. Both are built on the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

WIDTH, HEADS, LAYERS, TOKENS = 2048, 16, 12, 32000
CONTEXT = 1024  # tokens in the cache of keys and values
PROMPT, GENERATED = 512, 16  # tokens of one call of `generate`


class Block(torch.nn.Module):
    """A layer with its cache of the keys and values of earlier tokens."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.project, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("remembered", torch.randn(2, requests, HEADS, CONTEXT, WIDTH // HEADS))

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """token: [requests, 1, WIDTH]; place: index of its key and value, as a tensor of one element."""
        requests = token.shape[0]
        parts = self.project(self.before(token)).view(requests, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.remembered.index_copy_(3, place, parts[1:])
        keys, values = self.remembered
        seen = torch.nn.functional.scaled_dot_product_attention(parts[0], keys, values)
        token = token + self.out(seen.transpose(1, 2).reshape(requests, 1, WIDTH))
        return token + self.narrow(torch.nn.functional.gelu(self.wide(self.between(token))))


class Decoder(torch.nn.Module):
    """A model that returns the next token of each request."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(requests) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """tokens: [requests, 1]; returns the next ones in the same shape."""
        state = self.embedding(tokens)
        for block in self.blocks:
            state = block(state, place)
        return self.head(state).argmax(-1)


def decoder(requests: int, device: str) -> Callable[[], None]:
    """Return a step that generates one token for each request and waits for it, as a server does to send it."""
    with _made_on(device):
        model = Decoder(requests).eval()
    tokens = torch.zeros(requests, 1, dtype=torch.long, device=device)
    places = torch.arange(CONTEXT, device=device).split(1)
    number = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal tokens, number
        tokens = model(tokens, places[number % CONTEXT])
        tokens.tolist()
        number += 1

    return step


def generator(requests: int, device: str) -> Callable[[Callable[[], None]], None]:
    """Return a function that generates tokens for each request, and calls its argument after each one."""
    import transformers

    configuration = transformers.LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
    )
    with _made_on(device):
        model = transformers.LlamaForCausalLM(configuration).eval()
    prompt = {"input_ids": torch.ones(requests, PROMPT, dtype=torch.long, device=device)}
    prompt["attention_mask"] = prompt["input_ids"]
    settings = transformers.GenerationConfig(
        max_new_tokens=GENERATED, do_sample=False, cache_implementation="static", disable_compile=True, pad_token_id=0
    )

    class Marking(transformers.StoppingCriteria):  # called after each token
        def __init__(self, mark: Callable[[], None]) -> None:
            self.mark = mark

        def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            input_ids[:, -1].tolist()
            self.mark()
            return torch.zeros(requests, dtype=torch.bool, device=device)

    @torch.no_grad()
    def generate(mark: Callable[[], None]) -> None:
        stopping = transformers.StoppingCriteriaList([Marking(mark)])
        model.generate(**prompt, generation_config=settings, stopping_criteria=stopping)

    return generate


@contextlib.contextmanager
def _made_on(device: str) -> Iterator[None]:
    """Build 16-bit weights on the device itself."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
