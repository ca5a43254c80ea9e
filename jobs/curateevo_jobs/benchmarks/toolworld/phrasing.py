"""How a request is worded: an opener, one of the skill's phrasings, a closer.

A phrasing never uses the words of its skill's tool: which tool to call has to be learnt from demonstrations.
"""

from __future__ import annotations

from enum import StrEnum


class Skill(StrEnum):
    """What a task asks for. Results are reported by skill."""

    WEATHER = "weather"
    TIMER = "timer"
    MONEY = "money"
    REFUND = "refund"
    CANCEL = "cancel"
    MESSAGE = "message"
    BUY = "buy"
    STOCK = "stock"
    SHIP = "ship"
    ACCOUNT = "account"
    CHAT = "chat"


OPENERS = ("", "Hi. ", "Okay. ", "One more thing. ")
CLOSERS = ("", " Thank you.", " Cheers.")
RETOUCHES = ("Please: ", "Hello, ", "Well, ")
"""Prefixes of near duplicates. They are no openers, so that a retouched prompt is never in the dev pool."""

PHRASINGS: dict[Skill, tuple[str, ...]] = {
    Skill.WEATHER: (
        "What is it like outside in {city}?",
        "Is it raining in {city} today?",
        "Tell me the forecast for {city}.",
        "How warm is {city} now?",
        "Do I need an umbrella in {city}?",
        "Will it be cold in {city}?",
    ),
    Skill.TIMER: (
        "Wake me in {minutes} minutes.",
        "Start a {minutes} minute countdown.",
        "Remind me after {minutes} minutes.",
        "Count down {minutes} minutes.",
        "Give me {minutes} minutes, then ring.",
        "Ring the bell in {minutes} minutes.",
    ),
    Skill.MONEY: (
        "Change {amount} dollars into {currency}.",
        "How much is {amount} bucks in {currency}?",
        "I have {amount} dollars, what is that in {currency}?",
        "{amount} dollars in {currency} please.",
        "What do {amount} dollars make in {currency}?",
        "Swap {amount} dollars for {currency}.",
    ),
    Skill.REFUND: (
        "{customer} wants the cash back.",
        "Give {customer} the payment back.",
        "Return the payment to {customer}.",
        "Please reimburse {customer}.",
        "Pay {customer} back.",
        "Undo the payment of {customer}.",
    ),
    Skill.CANCEL: (
        "{customer} changed her mind, stop the delivery.",
        "Call off what {customer} wanted.",
        "Drop the purchase of {customer}.",
        "{customer} does not want it anymore.",
        "Stop everything for {customer}.",
        "Take {customer} off the list.",
    ),
    Skill.MESSAGE: (
        "Tell {to} about the {topic}.",
        "Let {to} know about the {topic}.",
        "Write to {to} on the {topic}.",
        "Inform {to} regarding the {topic}.",
        "{to} should hear about the {topic}.",
        "Give {to} the news on the {topic}.",
    ),
    Skill.BUY: (
        "Get me {quantity} {item}.",
        "We need {quantity} {item}, get them.",
        "Purchase {quantity} units of {item}.",
        "Bring in {quantity} more {item}.",
        "Please fetch {quantity} {item}.",
        "Add {quantity} {item} to the basket.",
    ),
    Skill.STOCK: (
        "Do we have any {item} left?",
        "Are we out of the {item}?",
        "How many {item} are there?",
        "Look on the shelf for a {item}.",
        "Is a {item} available?",
        "Can we still sell a {item}?",
    ),
    Skill.SHIP: (
        "Deliver a {item} to {city}.",
        "Post the {item} off to {city}.",
        "A box with the {item} must go to {city}.",
        "Dispatch the {item} for {city}.",
        "Bring the {item} over to {city}.",
        "{city} is waiting for the {item}.",
    ),
    Skill.ACCOUNT: (
        "Log {customer} in.",
        "Unlock access for {customer}.",
        "{customer} needs access again.",
        "Sign {customer} in now.",
        "Let {customer} into the profile.",
        "{customer} forgot how to enter.",
    ),
    Skill.CHAT: (
        "Thanks, {city} was lovely.",
        "I like my new {item}.",
        "{to} and I are old friends.",
        "Good morning from {city}!",
        "My {item} is blue.",
        "{to} says hello.",
    ),
}
