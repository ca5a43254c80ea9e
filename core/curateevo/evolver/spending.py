"""What may be spent on a model: asked before every call with the most it can cost, then charged with its cost."""

from __future__ import annotations

from dataclasses import dataclass

from curateevo.api.spec import LlmBudget, TokenPrice

PRICED_TOKENS = 1_000_000
"""Prices are of so many tokens."""


class NoRoom(Exception):
    """The budget has no room for the next call; the text says which."""


@dataclass(slots=True)
class Ledger:
    """Tokens, US dollars and calls of one stage, against what is left of the run's budget."""

    budget: LlmBudget
    price: TokenPrice | None
    """None: tokens cost no money."""
    section: str = "proposer"
    """Where in the spec the budget stands: for messages."""
    tokens: int = 0
    usd: float = 0.0
    calls: int = 0

    def room(self, prompt_tokens: int, wanted: int, least: int) -> int:
        """Tokens that the next answer may take: `wanted`, or what is left. Raises NoRoom for less than `least`."""
        left = self.budget.tokens - self.tokens - prompt_tokens
        if self.calls + 1 > self.budget.calls:
            raise NoRoom(f"{self.section}.budget.calls: {self.budget.calls} were left, no room for a call")
        if left < least:
            raise NoRoom(f"{self.section}.budget.tokens: {self.budget.tokens} were left, no room for a call")
        if self.price is not None:
            money = self.budget.usd - self.usd - self._usd(prompt_tokens, 0)
            if money < self._usd(0, least) or (money <= 0 and self._usd(1, 1) > 0):
                raise NoRoom(f"{self.section}.budget.usd: {self.budget.usd:.4g} were left, no room for a call")
            if self.price.output > 0:
                affordable = money / self.price.output * PRICED_TOKENS  # infinite at a tiny price
                left = int(min(left, affordable))
        return min(left, wanted)

    def charge(self, prompt_tokens: int, completion_tokens: int, calls: int = 1) -> None:
        """Count a call. What was reserved with it is given back by negative numbers."""
        self.tokens += prompt_tokens + completion_tokens
        self.usd += self._usd(prompt_tokens, completion_tokens)
        self.calls += calls

    def _usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        if self.price is None:
            return 0.0
        return (prompt_tokens * self.price.input + completion_tokens * self.price.output) / PRICED_TOKENS
