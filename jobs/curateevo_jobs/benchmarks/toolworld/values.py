"""The words that tool arguments may take: each is one token of the base model, and numbers stay below 100."""

from __future__ import annotations


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


CITIES = word_list(
    "Paris Tokyo Oslo Cairo Lima Delhi Rome Berlin Madrid Boston "
    "Dublin Sydney Vienna Prague Athens Lisbon Seoul Austin Quito Perth"
)
PEOPLE = word_list("Ana Bob Carl Dina Eve Finn Gina Hugo Iris Jack Kara Liam Mona Nico Olga Paul Rosa Sam Tina Vera")
ITEMS = word_list("lamp desk chair phone mug book pen clock shoe bag hat fan rug sofa bike")
CURRENCIES = word_list("USD EUR GBP JPY INR")
CODES = word_list(
    "amber birch cedar coral delta ember fjord glade hazel indigo jade karma lotus maple nectar onyx pearl "
    "quartz raven saffron tango umber velvet willow xenon yucca zephyr anchor basil comet dune echo falcon "
    "ginger harbor ivory jungle kettle lemon mango"
)

WORDS_BY_ARGUMENT = {
    "city": CITIES,
    "to": PEOPLE,
    "customer": PEOPLE,
    "topic": ITEMS,
    "item": ITEMS,
    "currency": CURRENCIES,
    "code": CODES,
    "pin": CODES,
}
"""What each text argument is drawn from."""

NUMBER_ARGUMENTS = frozenset({"minutes", "amount", "order", "quantity"})
"""The arguments that are integers from 2 to 99."""
